# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch doctor`: check whether mwatch can work on this machine, in a cluster and for a job."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.shared import options
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import argument, flag, option
from mwatch.cli.shared.terminal import Line, is_bounded, show, width, wrapped, write

if TYPE_CHECKING:
    from mwatch.diagnose.doctor.lines import DoctorReport

JobOrNone = Annotated[str | None, argument("[JOB]", "Check this running job too, or KIND/NAME.")]
Pull = Annotated[
    bool, flag("--pull", "Check the pull of mwatch's image too, by a pod that is removed again.")
]
Prometheus = Annotated[
    str, option("URL", "Ask Prometheus at this address; by default a Service with its labels.")
]
_RUNS = Path("runs")
_PAGE_PORT = 9401
_MOST_LINES = 6
_STYLES = {"ok": "green", "problem": "bold red", "skipped": "dim"}


def doctor(
    job: JobOrNone = None,
    *,
    pull: Pull = False,
    prometheus: Prometheus = "",
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Check whether mwatch can do its work here, and print the fix of what it cannot.

    One line for each check: ok, problem or skipped, with the reason. Of a cluster: API server,
    kinds, rights, clock, controller, Lease, network, PodMonitor and Prometheus; of a JOB also its
    sidecars, token, clocks, probe, flight recorder, NCCL RAS and volumes. Without JOB, -n,
    --context and --kubeconfig, this machine is checked too: GPUs, /proc, disk and port.

    Nothing is changed, except that --pull creates a pod for some seconds. A right that is missing
    is printed as a Role, ready for kubectl apply.

    Exit codes: 0 nothing is wrong, 1 something is, 2 bad usage or no such job, 3 the cluster is
    unreachable.

    Example: mwatch doctor megatron-training -n training
    """
    given = (job, namespace, kubeconfig, context)
    report = _cluster(job, (namespace, kubeconfig, context), pull, prometheus, any(given))
    if not any(given):
        from mwatch.diagnose.doctor.machine import check_machine

        report = report._replace(lines=(*check_machine(_RUNS, _PAGE_PORT), *report.lines))
    if as_json:
        write_json("doctor", report.to_json())
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _cluster(
    job: str | None,
    where: tuple[str | None, str | None, str | None],
    pulls: bool,
    prometheus: str,
    is_asked: bool,
) -> DoctorReport:
    from mwatch.diagnose.doctor.cluster import DoctorRequest, examine
    from mwatch.diagnose.doctor.lines import DoctorReport, unreachable
    from mwatch.kube.access import open_access
    from mwatch.kube.errors import KubeError, NoCluster

    namespace, kubeconfig, context = where
    try:
        access = open_access(kubeconfig, context)
    except KubeError as error:
        is_wanted = is_asked or not isinstance(error, NoCluster) or "KUBECONFIG" in os.environ
        line = unreachable(error, is_problem=is_wanted)
        return DoctorReport((line,), is_reachable=not is_wanted)
    with closing(access):
        space = namespace or access.namespace
        return examine(access, DoctorRequest(space, job, pulls, prometheus))


def _print(report: DoctorReport) -> None:
    """On a terminal long texts are wrapped; in a pipe each check is one line."""
    names = max(len(each.name) for each in report.lines)
    indent = 8 + names + 2
    lines: list[Line] = []
    for each in report.lines:
        state = each.state.value
        texts = [f"{each.text}; fix: {each.fix}" if each.fix else each.text]
        if is_bounded():
            texts = wrapped(texts[0], width() - indent, _MOST_LINES)
        head = [(f"{state:<8}", _STYLES[state]), (f"{each.name:<{names}}  ", "")]
        lines.append([*head, (texts[0], "")])
        lines += [[(" " * indent + text, "")] for text in texts[1:]]
    show(lines)
    for each in report.lines:
        if each.manifest:
            write(f"\n# {each.name}: kubectl apply -f - <<'END'\n{each.manifest}END")
