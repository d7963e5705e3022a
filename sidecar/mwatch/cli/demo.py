# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch demo`: a small training run on this machine, with injected faults and recovery.

Exit codes: 0 if training recovered from every fault and finished, else 1; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mwatch.cli.run import is_screen, view_of
from mwatch.cli.shared.formats import duration
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import Plain, flag, option
from mwatch.cli.shared.terminal import Line, show, table
from mwatch.cli.ui import ui

if TYPE_CHECKING:
    from mwatch.run.demo import DemoResult, Row

Quick = Annotated[bool, flag("--quick", "Inject only two faults.")]
Real = Annotated[
    bool | None,
    flag(
        "--real/--stand-in",
        "Train with megatron-core, or use a stand-in of the standard library; by default what is "
        "installed.",
        show_default=False,
    ),
]
Runs = Annotated[Path, option("DIR", "Keep the folder of the run here.")]
Port = Annotated[
    int,
    option(
        "PORT",
        "Serve the page and /metrics on this port, or the next free one; 0 serves nothing.",
        min=0,
        max=65535,
    ),
]
Stay = Annotated[bool, flag("--stay", "Serve the page after the end too, until Ctrl-C.")]
AsJson = Annotated[bool, flag("--json", "Print the result as JSON.")]


def demo(
    *,
    real: Real = None,
    quick: Quick = False,
    runs: Runs = Path("runs"),
    port: Port = 9401,
    stay: Stay = False,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Train a small GPT, break it in five ways and recover it each time.

    The training is real (megatron-core on this machine). A rank stops, a weight becomes NaN, the
    loss scale collapses, a rank is killed, and the newest checkpoint is corrupt. The demo takes
    under three minutes on two cores, once installed. Each fault is announced before it happens, and
    the page of the run is up meanwhile; --stay keeps it up.

    Without megatron-core and torch a stand-in takes their place for half a minute: two processes
    that train nothing and print what Megatron prints. One stops, the loss becomes NaN, one is
    killed.

    Example: mwatch demo --stand-in --stay
    """
    from mwatch.run import demo as app
    from mwatch.run.process import TrainerOutput

    on_terminal = not (plain or as_json) and is_screen(sys.stderr)
    view = partial(view_of, is_act=True, on_terminal=on_terminal, as_json=as_json)
    output = TrainerOutput.VIEW if on_terminal else TrainerOutput.LOG_ONLY
    result = app.demo(
        quick=quick,
        is_stand_in=None if real is None else not real,
        parent=runs,
        port=port or None,
        output=output,
        view=view,
    )
    if as_json:
        write_json("demo", _record(result), indent=None)
    else:
        show(_table(result))
    if stay and result.interrupted_by is None:
        _stay(result, runs, port)
    raise typer.Exit(result.interrupted_by or (0 if result.is_fine else 1))


def _stay(result: DemoResult, runs: Path, port: int) -> None:
    """Serve the page of the run, or a list where there are two."""
    run = str(result.folders[0].path) if len(result.folders) == 1 else None
    ui(run, runs=runs, port=port, no_browser=True)


def _table(result: DemoResult) -> list[Line]:
    heads = ("fault", "found in", "cause", "culprit", "restarted from", "lost", "")
    first, *rest = table([heads, *(_cells(row) for row in result.rows)])
    lines: list[Line] = [[], [(first, "bold")]]
    for text, row in zip(rest, result.rows, strict=True):
        style = "bold green" if row.is_recovered else "bold red"
        outcome = _outcome(row)
        lines.append([(text.removesuffix(outcome), ""), (outcome, style)])
    fine = sum(row.is_recovered for row in result.rows)
    summary = f"{fine} of {len(result.rows)} recovered in {duration(result.seconds)}"
    is_done = not any(result.exit_codes)
    ended = "training finished" if is_done else "training did not finish"
    lines += [[], [(f"{summary}; {ended}", "bold green" if result.is_fine else "bold red")]]
    lines += [[(f"report: {os.path.relpath(folder.report)}", "")] for folder in result.folders]
    if result.is_stand_in:
        lines.append([("the trainer was a stand-in; the real one: pip install 'mwatch[demo]'", "")])
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    from mwatch.model.decision import Action

    record = row.record
    if record is None:
        return (row.title, "-", "-", "-", "-", "-", _outcome(row))
    culprit = record.culprit
    rank = "-" if culprit is None or culprit.rank is None else f"rank {culprit.rank}"
    after = row.detected_after
    place = "the beginning" if record.resume_from is None else f"checkpoint {record.resume_from}"
    return (
        row.title,
        "-" if after is None else duration(after),
        record.cause.value.replace("_", " "),
        rank,
        place if record.action is Action.RESTART else f"not: {record.action.value}",
        "-" if record.lost_iterations is None else f"{record.lost_iterations} steps",
        _outcome(row),
    )


def _outcome(row: Row) -> str:
    return "recovered" if row.is_recovered else "FAILED"


def _record(result: DemoResult) -> dict[str, Any]:
    return {
        "is_fine": result.is_fine,
        "trainer": "stand-in" if result.is_stand_in else "megatron-core",
        "seconds": round(result.seconds, 1),
        "exit_codes": list(result.exit_codes),
        "reports": [str(folder.report) for folder in result.folders],
        "faults": [
            {
                "fault": row.title,
                "detected_after_seconds": row.detected_after,
                "cause": row.record and row.record.cause.value,
                "rank": row.record and row.record.culprit and row.record.culprit.rank,
                "action": row.record and row.record.action.value,
                "resume_from": row.record and row.record.resume_from,
                "lost_iterations": row.record and row.record.lost_iterations,
                "is_recovered": row.is_recovered,
            }
            for row in result.rows
        ],
    }
