# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay` and `mwatch report`: a recorded run as text, or as one HTML page.

For a run that mwatch watched there is a report, `story.json`. Both commands, and `mwatch diagnose`,
read it, because the watcher observed more (processes, probes, its own actions) than a log contains.
Logs are replayed if there is no such file, or if an option requires a new evaluation.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.render.report import render_replay, render_runs
from mwatch.cli.shared.cluster import exit_if_unreachable, is_job
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import (
    AsJson,
    Catalogue,
    Checkpoints,
    Context,
    Kubeconfig,
    Namespace,
    Policy,
    Until,
    argument,
    flag,
    option,
)
from mwatch.cli.shared.terminal import show, write
from mwatch.errors import InputError

if TYPE_CHECKING:
    from mwatch.report.run_report import RunReport

_PROGRESS_SECONDS = 0.5
_PAGE = "report.html"
Names = Annotated[
    list[str] | None,
    argument(
        "[DIR|LOG...|-]",
        "Read these log files (one per pod and attempt) or folders; - is standard input.",
    ),
]
Runs = Annotated[
    list[str] | None,
    argument(
        "[JOB|RUN|DIR|LOG...|-]",
        "Read this live job, this run of 'mwatch run' (its name or folder), or these log files or "
        "folders; - is standard input.",
    ),
]

PageFile = Annotated[
    Path | None,
    option(
        "FILE", "Write the page here; by default RUN/report.html or ./report.html.", "--out", "-o"
    ),
]


def replay(
    names: Names = None,
    *,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        option("FILE", "Write the report to this .md or .json file too.", "--out", "-o"),
    ] = None,
    checkpoints: Checkpoints = None,
    until: Until = None,
    policy: Policy = None,
    catalogue: Catalogue = None,
) -> None:
    """Replay recorded logs: timeline, findings, goodput, decisions.

    Give any number of files of one job: pods are merged by their clocks, attempts by their order.
    Times are those of the log. The command changes nothing.

    Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad input, 3 not enough data.

    Example: mwatch replay pod-*.log --out incident.md
    """
    if out is not None:
        from mwatch.report.files import check_target
        from mwatch.report.markdown import SUFFIXES

        check_target(out, *SUFFIXES)
    stop_if_several(names, until, policy, catalogue, as_json=as_json)
    made = make_report(names, checkpoints, until, policy, catalogue)
    if out is not None:
        from mwatch.report.markdown import write_report

        write_report(made, out)
    if as_json:
        write_json("recording", made.to_json())
    else:
        show(render_replay(made))
    raise typer.Exit(made.exit_code)


def report(
    names: Runs = None,
    *,
    out: PageFile = None,
    force: Annotated[bool, flag("--force", "Write over a file that already exists.")] = False,
    exit_code: Annotated[
        bool, flag("--exit-code", "Exit by the verdict, as 'mwatch diagnose' does.")
    ] = False,
    title: Annotated[
        str | None, option("TITLE", "Set the title of the page; by default the name of the run.")
    ] = None,
    as_json: AsJson = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    checkpoints: Checkpoints = None,
    until: Until = None,
    policy: Policy = None,
    catalogue: Catalogue = None,
) -> None:
    """Write an HTML page about a run or a live job.

    The page shows curves with incidents, attempts, goodput, evidence and the end of the log. It is
    one file that loads nothing, so it can be mailed. Of logs, a .tgz of 'mwatch diagnose --bundle'
    is read too. A name that is no run, file or folder here is a live job; with -n, --context or
    --kubeconfig every name is. Of a job, the controller is asked, else its sidecars, else the logs
    of its pods. The command does not change the run. Without --out, a page that mwatch wrote about
    the same run is replaced; no other file is, unless you give --force.

    Exit codes: 0 the page was written, 2 bad input or no such job, 3 the cluster is unreachable.
    With --exit-code: 0 healthy or finished, 1 something is wrong, 3 not enough data.

    Example: mwatch report runs/pretrain_gpt --out monday.html

    Example: mwatch report megatron-training -n training
    """
    where = (namespace, kubeconfig, context)
    story = None if any(where) else story_of(names or [])
    is_live = story is None and is_job(names[0] if names else "-", *where)
    with _compiled_meanwhile(is_needed=story is None and not is_live):
        from mwatch.report.files import check_target
        from mwatch.report.html import page
        from mwatch.report.log_ends import of_run

    target = out or (story.parent / _PAGE if story else Path(_PAGE))
    check_target(target, *page.SUFFIXES, fix=page.FIX)
    earlier = page.written_mark(target) if out is None else None
    if not (force or earlier):
        _check_free(target)
    if is_live:
        made = _report_of_job(names or [], where, policy, (checkpoints, until, catalogue))
    else:
        stop_if_several(names, until, policy, catalogue, as_json=as_json, needs_one=True)
        made = make_report(names, checkpoints, until, policy, catalogue, has_curves=True)
    if not force and earlier != page.run_mark(made):
        _check_free(target)
    text = page.render(of_run(made, story.parent) if story else made, title or "")
    size = page.write_page(text, target)
    _print_summary(made, target, size, as_json=as_json)
    raise typer.Exit(made.exit_code if exit_code else 0)


def _report_of_job(
    names: list[str],
    where: tuple[str | None, str | None, str | None],
    policy: Path | None,
    for_logs: tuple[object, ...],
) -> RunReport:
    """`for_logs`: options that a live job does not take."""
    if len(names) != 1:
        raise typer.BadParameter("give exactly one live job", param_hint="JOB")
    if any(for_logs):
        text = "--checkpoints, --until and --catalogue are only for recorded logs"
        raise typer.BadParameter(text, param_hint="JOB")
    from mwatch.config.loader import load_policy
    from mwatch.diagnose.job import JobRequest
    from mwatch.diagnose.job_page import report_job

    settings = None if policy is None else load_policy(policy)
    with exit_if_unreachable("" if any(where) else names[0]):
        return report_job(JobRequest(names[0], *where, settings))


def _check_free(target: Path) -> None:
    if os.path.lexists(target):
        fix = "give --force to replace it, or name another file with --out"
        raise InputError(f"{target} already exists; {fix}")


def _print_summary(made: RunReport, target: Path, size: int, *, as_json: bool) -> None:
    if as_json:
        body = {
            "report": str(target),
            "url": target.absolute().as_uri(),
            "bytes": size,
            "run": made.run,
            "verdict": {"cause": made.verdict.cause, "summary": made.verdict.summary},
            "incidents": len(made.incidents),
            "goodput": made.goodput,
        }
        write_json("report", body)
        return
    number = len(made.incidents)
    incidents = f"{number} incident" + "s" * (number != 1)
    write(f"{target} ({size / 1e3:.0f} kB): {made.verdict.cause.replace('_', ' ')}, {incidents}")
    write(target.absolute().as_uri())


def stop_if_several(
    names: list[str] | None,
    until: str | None,
    policy: Path | None,
    catalogue: list[Path] | None,
    *,
    as_json: bool,
    needs_one: bool = False,
) -> None:
    """List the runs of a folder that holds several, each with its verdict, and exit.

    `needs_one`: the command is about one run, so this is an error of the user.
    """
    if not names or story_of(names) is not None:
        return
    with _compiled_meanwhile():
        from mwatch.config.loader import load_policy
        from mwatch.replay.replay import ReplayRequest, replay, run_name
        from mwatch.replay.separate_runs import separate_runs

    runs = separate_runs(names)
    if not runs:
        return
    settings, now = load_policy(policy), time.time()
    made = [
        (run, replay(ReplayRequest(run, (), until, settings, catalogue or []), now)) for run in runs
    ]
    codes = {each.exit_code for _, each in made}
    if as_json:
        listed = [
            {
                "run": run_name(run),
                "files": run,
                "verdict": each.to_json()["verdict"],
                "decision": each.to_json()["decision"],
            }
            for run, each in made
        ]
        write_json("runs", {"runs": listed})
    else:
        show(render_runs(names[0], made))
    if needs_one:
        typer.echo("mwatch: a page is about one run: name the log files of one run", err=True)
        raise typer.Exit(2)
    raise typer.Exit(next(code for code in (1, 3, 0) if code in codes))


def _compiled_meanwhile(*, is_needed: bool = True) -> AbstractContextManager[None]:
    """Compile what logs are read with, while the body imports what judges them."""
    if not is_needed:
        return nullcontext()
    from mwatch.config.catalogue import compiled_meanwhile

    return compiled_meanwhile()


def make_report(
    names: list[str] | None,
    checkpoints: list[str] | None,
    until: str | None,
    policy: Path | None,
    catalogue: list[Path] | None,
    *,
    has_curves: bool = False,
) -> RunReport:
    """Raise InputError or BadParameter if there is nothing to read."""
    if not names and sys.stdin.isatty():
        raise typer.BadParameter(
            "give a log file or a folder, or pipe a log to standard input", param_hint="LOG"
        )
    story = story_of(names or [])
    if story is not None and not (checkpoints or until or policy or catalogue):
        from mwatch.report.story_json import read

        return read(story).seen_at(time.time())
    from mwatch.config.loader import load_policy
    from mwatch.replay.replay import ReplayRequest, replay

    request = ReplayRequest(
        names or ["-"], checkpoints or [], until, load_policy(policy), catalogue or []
    )
    progress = _Progress() if sys.stderr.isatty() else None
    try:
        return replay(request, time.time(), progress, has_curves=has_curves)
    finally:
        if progress:
            progress.clear()


def story_of(names: list[str]) -> Path | None:
    """Find the story.json of a run that is named by its folder or its name."""
    if len(names) != 1 or names == ["-"]:
        return None
    from mwatch.report.files import STORY

    named = Path(names[0])
    places = [named, named / STORY] if named.exists() else [Path("runs") / named / STORY]
    return next((each for each in places if each.name == STORY and each.is_file()), None)


class _Progress:
    """Progress on standard error, about twice a second."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._has_shown = False

    def __call__(self, done: int, size: int) -> None:
        if time.monotonic() - self._shown_at < _PROGRESS_SECONDS:
            return
        self._shown_at = time.monotonic()
        self._has_shown = True
        share = f" of {size / 1e6:.0f} MB ({done / size:.0%})" if size else ""
        self._put(f"mwatch: {done / 1e6:.0f} MB{share}\r")

    def clear(self) -> None:
        if self._has_shown:
            self._put("")

    def _put(self, text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
