# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status` and `mwatch top`: the watched jobs, one line each, printed once or live."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mwatch.cli.render.jobs import render_fleet
from mwatch.cli.shared.cluster import UNREACHABLE, exit_if_unreachable
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import AsJson, Context, Kubeconfig, Namespace, flag, option
from mwatch.cli.shared.terminal import show
from mwatch.errors import InputError
from mwatch.kube.errors import KubeError

if TYPE_CHECKING:
    from mwatch.cli.render.job_sources import JobSource
    from mwatch.diagnose.fleet_status import Fleet

_RUNS = Path("runs")

AllNamespaces = Annotated[
    bool, flag("--all-namespaces", "Show the jobs of every namespace you may read.", "-A")
]
Runs = Annotated[
    Path | None, option("DIR", "Show only the runs in this folder; by default also those in runs/.")
]
Once = Annotated[bool, flag("--once", "Print one table and exit, on a terminal too.")]
Every = Annotated[float, option("SECONDS", "Refresh at this interval.", min=1.0, max=3600.0)]
Count = Annotated[int | None, option("N", "Print this many tables.", min=1, hidden=True)]


def status(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show every watched job in one line.

    A watched job has the label mwatch.dev/watch. The controller is asked if one runs; otherwise
    some sidecars of each job, and Kubernetes. 'mwatch diagnose JOB' shows one job in full.

    Exit codes: 0 all are healthy, 1 a job has a problem, 3 a job or the cluster is unreachable.

    Example: mwatch status -n training
    """
    from mwatch.diagnose.fleet_status import look
    from mwatch.kube.access import open_access

    with exit_if_unreachable(), closing(open_access(kubeconfig, context)) as access:
        fleet = look(access, None if all_namespaces else namespace or access.namespace, time.time())
    if as_json:
        write_json("status", fleet.to_json())
    else:
        show(render_fleet(fleet, with_namespace=all_namespaces))
    raise typer.Exit(fleet.exit_code)


def top(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    runs: Runs = None,
    every: Every = 5.0,
    once: Once = False,
    count: Count = None,
    as_json: AsJson = False,
) -> None:
    """Show the watched jobs and the runs of this machine live.

    Keys: Enter opens a job (verdict, ranks, incidents, checkpoints, log), s sorts, / filters, r
    refreshes, q or Ctrl-C exits. With -n, -A, --context or --kubeconfig only the cluster is read,
    with --runs only that folder; otherwise both, and the runs are those under runs/.

    Where the output is not a terminal, one table is printed. The screen needs Textual: pip install
    'mwatch[top]'.

    Exit codes: 0 ended, 2 bad input, 3 the cluster is unreachable.

    Example: mwatch top -n training --every 2
    """
    where = _Where(namespace, all_namespaces, kubeconfig, context)
    sources = _sources(where, runs)
    try:
        is_screen = not (once or count or as_json) and _has_screen()
        if is_screen and _has_textual():
            from mwatch.cli.render.top_screen import TopApp

            TopApp(sources, seconds=every, with_namespace=all_namespaces).run()
            return
        _print_tables(sources, count or 1, every, as_json, all_namespaces)
    finally:
        for each in sources:
            each.close()


class _Where(NamedTuple):
    namespace: str | None
    all_namespaces: bool
    kubeconfig: str | None
    context: str | None


def _sources(where: _Where, runs: Path | None) -> list[JobSource]:
    from mwatch.cli.render.job_sources import ClusterJobs, LocalRuns
    from mwatch.kube.access import open_access
    from mwatch.kube.errors import NoCluster

    is_cluster = any(where)
    if runs is not None and is_cluster:
        text = "give a folder of runs or a cluster (-n, -A, --context, --kubeconfig), not both"
        raise typer.BadParameter(text, param_hint="--runs")
    folder = runs or _RUNS
    if runs is not None and not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one with --runs")
    sources: list[JobSource] = []
    if folder.is_dir() and not is_cluster:
        sources.append(LocalRuns(folder))
    if runs is not None:
        return sources
    with exit_if_unreachable():
        try:
            access = open_access(where.kubeconfig, where.context)
            space = None if where.all_namespaces else where.namespace or access.namespace
            sources.insert(0, ClusterJobs(access, space))
        except NoCluster:
            if not sources:
                raise
    return sources


def _has_screen() -> bool:
    """Textual reads standard input and writes to standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    is_terminal = all(each is not None and each.isatty() for each in streams)
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def _has_textual() -> bool:
    from importlib.util import find_spec

    if find_spec("textual") is not None:
        return True
    typer.echo(
        "mwatch: this is one table; the live screen needs Textual: pip install 'mwatch[top]'",
        err=True,
    )
    return False


def _print_tables(
    sources: list[JobSource], count: int, every: float, as_json: bool, with_namespace: bool
) -> None:
    for index in range(count):
        if index:
            time.sleep(every)
        fleet, error = _read(sources)
        if as_json:
            write_json("status", fleet.to_json(), indent=2 if count == 1 else None)
        else:
            show(render_fleet(fleet, with_namespace=with_namespace))
        if error is not None:
            raise typer.Exit(UNREACHABLE)


def _read(sources: list[JobSource]) -> tuple[Fleet, KubeError | None]:
    """The jobs of all sources; a cluster that cannot be read does not hide the runs."""
    from mwatch.diagnose.fleet_status import Fleet

    found, failed = list[Fleet](), None
    for each in sources:
        try:
            found.append(each.read())
        except KubeError as error:
            failed = error
    if failed is not None:
        if not found:
            with exit_if_unreachable():
                raise failed
        found.append(Fleet(found[0].at, (), (str(failed),), 0.0))
    return Fleet.of(found), failed
