# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch report`: one HTML page of a run, from its folder or from recorded logs.

Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad usage or an unreadable
input, 3 not enough data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.options import AsJson, Catalogue, Checkpoints, Policy, Until, argument, option
from mwatch.cli.recorded import make_report, story_of
from mwatch.cli.terminal import write

if TYPE_CHECKING:
    from mwatch.report.run_report import RunReport

_PAGE = "report.html"

Runs = Annotated[
    list[str] | None,
    argument(
        "[RUN|DIR|LOG...|-]",
        "Read this run of 'mwatch run' (its name or folder), or these log files or folders; "
        "- is standard input.",
    ),
]


def report(
    names: Runs = None,
    *,
    out: Annotated[
        Path | None,
        option("FILE", "Write the page here; by default RUN/report.html or ./report.html."),
    ] = None,
    title: Annotated[
        str | None, option("TITLE", "Set the title of the page; by default the name of the run.")
    ] = None,
    as_json: AsJson = False,
    checkpoints: Checkpoints = None,
    until: Until = None,
    policy: Policy = None,
    catalogue: Catalogue = None,
) -> None:
    """Write an HTML page about a run.

    The page shows curves with incidents, attempts, goodput and evidence. It is one file without
    external links, so it can be mailed. The command does not change the run.

    Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad input, 3 not enough data.

    Example: mwatch report runs/pretrain_gpt --out monday.html
    """
    from mwatch.report.files import check_target
    from mwatch.report.html.page import FIX, SUFFIXES, render, write_page

    story = story_of(names or [])
    target = out or (story.parent / _PAGE if story else Path(_PAGE))
    check_target(target, *SUFFIXES, fix=FIX)
    made = make_report(names, checkpoints, until, policy, catalogue, has_curves=True)
    size = write_page(render(made, title or ""), target)
    _print_summary(made, target, size, as_json=as_json)
    raise typer.Exit(made.exit_code)


def _print_summary(made: RunReport, target: Path, size: int, *, as_json: bool) -> None:
    if as_json:
        import json

        body = {
            "report": str(target),
            "bytes": size,
            "run": made.run,
            "verdict": {"cause": made.verdict.cause, "summary": made.verdict.summary},
            "incidents": len(made.incidents),
            "goodput": made.goodput,
        }
        write(json.dumps(body, indent=2))
        return
    number = len(made.incidents)
    incidents = f"{number} incident" + "s" * (number != 1)
    write(f"{target} ({size / 1e3:.0f} kB): {made.verdict.cause.replace('_', ' ')}, {incidents}")
