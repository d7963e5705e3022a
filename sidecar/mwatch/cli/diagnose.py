# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose`: a one-screen report on a live job, a recorded run, or a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mwatch.cli.recorded import make_report, stop_if_several
from mwatch.cli.render.report import render_diagnosis, render_job, render_manifest
from mwatch.cli.shared import options
from mwatch.cli.shared.cluster import exit_if_unreachable, is_job
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import argument, option
from mwatch.cli.shared.terminal import show

if TYPE_CHECKING:
    from mwatch.report.run_report import RunReport

Names = Annotated[
    list[str] | None,
    argument(
        "[JOB|DIR|LOG...|-]",
        "Diagnose this live job, or these log files (one per pod and attempt) or folders; "
        "- is standard input.",
    ),
]
Manifest = Annotated[
    str | None,
    option(
        "FILE|-", "Check this manifest before it is applied; - is standard input.", "--file", "-f"
    ),
]
Bundle = Annotated[
    Path | None,
    option(
        "FILE.tgz",
        "Write everything that was read of a live job into this archive, without secrets.",
    ),
]


def diagnose(
    names: Names = None,
    *,
    file: Manifest = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    bundle: Bundle = None,
    as_json: options.AsJson = False,
    checkpoints: options.Checkpoints = None,
    until: options.Until = None,
    policy: options.Policy = None,
    catalogue: options.Catalogue = None,
) -> None:
    """Find what is wrong with a job or recorded run, and what to do.

    An argument that is a file or a folder here is a recording: logs of all pods and attempts, and
    checkpoint folders beside them. Any other argument is a live job (gpt, or pytorchjob/gpt); with
    -n, --context or --kubeconfig every argument is. The command changes nothing.

    A live job is read from the API server and, by pods/proxy, from its sidecars; without sidecars,
    from the logs of its pods. With -f, a manifest is checked instead: parallel sizes, volumes,
    restart policy and options that hide errors.

    Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad input or no such job, 3 not
    enough data, or the cluster is unreachable. Failed checks alone do not change the exit code.

    Example: mwatch diagnose megatron-training -n training

    Example: mwatch diagnose logs/ --checkpoints /data/ckpt
    """
    if file is not None:
        _manifest(file, names, as_json)
    if is_job(names[0] if names else "-", namespace, kubeconfig, context):
        _job(names or [], (namespace, kubeconfig, context), policy, bundle, as_json)
    if bundle is not None:
        raise typer.BadParameter(
            "only a live job has a bundle: give its name", param_hint="--bundle"
        )
    stop_if_several(names, until, policy, catalogue, as_json=as_json)
    _recorded(make_report(names, checkpoints, until, policy, catalogue), as_json)


def _recorded(report: RunReport, as_json: bool) -> NoReturn:
    if as_json:
        write_json("recording", report.to_json())
    else:
        show(render_diagnosis(report))
    raise typer.Exit(report.exit_code)


def _manifest(file: str, names: list[str] | None, as_json: bool) -> NoReturn:
    if names:
        raise typer.BadParameter("give a manifest or names, not both", param_hint="--file")
    from mwatch.diagnose.manifest import check

    checked = check(file)
    if as_json:
        write_json("manifest", checked.as_json())
    else:
        show(render_manifest(checked))
    raise typer.Exit(checked.exit_code)


def _job(
    names: list[str],
    where: tuple[str | None, str | None, str | None],
    policy: Path | None,
    bundle: Path | None,
    as_json: bool,
) -> NoReturn:
    if len(names) != 1:
        raise typer.BadParameter("give exactly one live job", param_hint="JOB")
    from mwatch.config.loader import load_policy
    from mwatch.diagnose.job import JobRequest, diagnose_job
    from mwatch.diagnose.report import write_bundle
    from mwatch.report.files import check_target

    if bundle is not None:
        check_target(bundle)
    settings = None if policy is None else load_policy(policy)
    request = JobRequest(names[0], *where, settings, wants_logs=bundle is not None)
    with exit_if_unreachable("" if any(where) else names[0]):
        report = diagnose_job(request)
    if as_json:
        write_json("job", report.to_json())
    else:
        show(render_job(report))
    if bundle is not None:
        kept = write_bundle(report, bundle)
        typer.echo(f"mwatch: {bundle}: {kept}", err=True)
    raise typer.Exit(report.exit_code)
