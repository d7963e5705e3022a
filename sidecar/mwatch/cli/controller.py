# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller`: watches the jobs of one namespace and restarts those that allow it.

Exit codes: 0 stopped by SIGTERM or SIGINT, or all jobs are healthy (--once); 1 a job has a
problem (--once); 2 bad options; 3 the cluster, or with --once a job, is unreachable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mwatch.cli.render.run_lines import SidecarLines
from mwatch.cli.shared.options import Context, Notify, flag, notify_urls, option
from mwatch.cli.shared.terminal import write

Namespace = Annotated[
    str | None,
    option(
        "NAME",
        "Watch this namespace; by default the one of the kubeconfig or pod.",
        "--namespace",
        "-n",
    ),
]
Kubeconfig = Annotated[
    str | None,
    option(
        "FILE", "Use this kubeconfig; by default $KUBECONFIG, ~/.kube/config or the pod's account."
    ),
]
Port = Annotated[int, option("PORT", "Listen on this port; 0 takes any.")]
Host = Annotated[str, option("ADDRESS", "Listen on this address.")]
Policy = Annotated[
    Path | None,
    option("FILE", "Read thresholds for jobs without a policy of their own from this TOML file."),
]
Fleet = Annotated[
    Path | None,
    option("FILE", "Read the limits that apply to all jobs together from this TOML file."),
]
Evidence = Annotated[Path | None, option("DIR", "Keep evidence bundles fetched from pods here.")]
Poll = Annotated[float, option("SECONDS", "Poll each pod at this interval.")]
Once = Annotated[bool, flag("--once", "Print the state of all jobs once and exit; take no action.")]
Json = Annotated[
    bool, flag("--json", "Print JSON: one object per message or, with --once, one document.")
]
ExternalUrl = Annotated[
    str | None, option("URL", "Link to the controller's page at this address in notifications.")
]
NoPage = Annotated[bool, flag("--no-page", "Serve no pages for people: neither / nor /jobs.")]


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
    no_page: NoPage = False,
    notify: Notify = None,
    external_url: ExternalUrl = None,
) -> None:
    """Watch the jobs of a namespace and restart those that allow it.

    The controller watches every job with the label mwatch.dev/watch=true and serves /metrics,
    /healthz, /v1/jobs and, for people, a live page of all jobs at /. It acts only on jobs whose
    annotation mwatch.dev/mode is act, and only while it holds the Lease mwatch-controller.

    Example: mwatch controller -n training --evidence /var/lib/mwatch
    """
    from json import dumps

    from mwatch.config.controller import ControllerSettings
    from mwatch.controller import controller as controller_run
    from mwatch_trainer.scrub.scrubber import scrub_text

    settings = ControllerSettings(
        namespace, kubeconfig, context, port, host, policy, fleet, evidence, poll, json, no_page,
        notify_urls(notify), external_url or None,
    ).checked()  # fmt: skip
    if not once:
        lines = SidecarLines(as_json=json, clean=scrub_text)
        raise typer.Exit(controller_run.run(settings, lines.noted))
    document = controller_run.once(settings, lambda text: None)
    if json:
        write(dumps(document))
    else:
        _show(document["jobs"])
    raise typer.Exit(controller_run.exit_code(document))


def _show(jobs: list[dict[str, object]]) -> None:
    for job in jobs:
        verdict = job["verdict"] if isinstance(job["verdict"], dict) else {}
        pods = job["pods"] if isinstance(job["pods"], dict) else {}
        write(
            f"{job['kind']}/{job['name']}  {job['mode']}  {job['phase'] or '-'}  "
            f"attempt {job['attempt']}  iteration {job['iteration'] or '-'}  "
            f"{pods.get('answering')}/{pods.get('wanted')} pods  "
            f"{verdict.get('cause', 'unknown')}: {verdict.get('summary', '')}"
        )
    if not jobs:
        write("no job with the label mwatch.dev/watch=true")
