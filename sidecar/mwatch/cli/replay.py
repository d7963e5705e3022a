# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay`: what mwatch would have seen, said and done in a recorded run.

Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad usage or an input that cannot be
read, 3 it cannot be told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mwatch.cli.recorded import (
    AsJson,
    Catalogue,
    Checkpoints,
    Names,
    Policy,
    Until,
    make_report,
    write_json,
)


def replay(
    names: Names = None,
    *,
    as_json: AsJson = False,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Also write it to a .md or .json file."),
    ] = None,
    checkpoints: Checkpoints = None,
    until: Until = None,
    policy: Policy = None,
    catalogue: Catalogue = None,
) -> None:
    """Play recorded logs: timeline, findings, goodput, and what mwatch would have done.

    Files of one job, in any number: pods are joined by their clocks, attempts by their order.
    Nothing is changed. Times are the log's own.

    Exit code: 0 healthy or finished, 1 something is wrong, 2 bad input, 3 it cannot be told.

    Example: mwatch replay pod-*.log --report incident.md
    """
    if report_file is not None:
        from mwatch.report.markdown import check_target

        check_target(report_file)
    report = make_report(names, checkpoints, until, policy, catalogue)
    if report_file is not None:
        from mwatch.report.markdown import write_report

        write_report(report, report_file)
    if as_json:
        write_json(report)
    else:
        from mwatch.cli.render.report import render_replay
        from mwatch.cli.terminal import show

        show(render_replay(report))
    raise typer.Exit(report.exit_code)
