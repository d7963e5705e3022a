# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller`: watches, and where they allow it restarts, the jobs of one namespace.

Exit codes: 0 asked to end (SIGTERM, SIGINT), or all is well with --once; 1 something is wrong,
3 something cannot be seen (--once); 2 bad options, or no way to the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mwatch.cli.output import write

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Else the kubeconfig's, or the pod's."),
]
Kubeconfig = Annotated[
    str | None, typer.Option(metavar="FILE", help="Else $KUBECONFIG, ~/.kube/config, or the pod's.")
]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="Of the kubeconfig.")]
Port = Annotated[int, typer.Option(metavar="N", help="To serve on; 0: any.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="To listen on (else all).")]
Policy = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Thresholds of jobs that name no policy of their own (TOML)."
    ),
]
Fleet = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What may be done to all jobs together (TOML).")
]
Evidence = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep bundles that were fetched from pods here.")
]
Poll = Annotated[float, typer.Option(metavar="SECONDS", help="Between two questions to a pod.")]
Once = Annotated[bool, typer.Option("--once", help="Look at all jobs once, tell, do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="JSON: its lines, or with --once all it sees.")]


def controller(
    *,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    port: Port = 9402,
    host: Host = "::",
    policy: Policy = None,
    fleet: Fleet = None,
    evidence: Evidence = None,
    poll: Poll = 5.0,
    once: Once = False,
    json: Json = False,
) -> None:
    """Watch all jobs of a namespace with the label mwatch.dev/watch=true.

    Serves /metrics, /healthz and /v1/jobs; acts only on jobs whose annotation mwatch.dev/mode is
    act, and only while it holds the Lease mwatch-controller.

    Example: mwatch controller -n training --evidence /var/lib/mwatch
    """
    from json import dumps

    from mwatch.cli.render.run_lines import SidecarLines
    from mwatch.config.controller import ControllerSettings
    from mwatch.controller import controller as controller_run

    settings = ControllerSettings(
        namespace, kubeconfig, context, port, host, policy, fleet, evidence, poll, once, json
    ).checked()
    if not once:
        lines = SidecarLines(as_json=json, clean=controller_run.clean)
        raise typer.Exit(controller_run.run(settings, lines.noted))
    document = controller_run.once(settings, lambda text: None)
    if json:
        write(dumps(document))
    else:
        _show(document["jobs"])
    raise typer.Exit(controller_run.exit_code(document))


def _show(jobs: list[dict[str, object]]) -> None:
    for job in jobs:
        said = job["verdict"] if isinstance(job["verdict"], dict) else {}
        pods = job["pods"] if isinstance(job["pods"], dict) else {}
        write(
            f"{job['kind']}/{job['name']}  {job['mode']}  {job['phase'] or '-'}  "
            f"attempt {job['attempt']}  iteration {job['iteration'] or '-'}  "
            f"{pods.get('answering')}/{pods.get('wanted')} pods  "
            f"{said.get('cause', 'unknown')}: {said.get('summary', '')}"
        )
    if not jobs:
        write("no job with the label mwatch.dev/watch=true")
