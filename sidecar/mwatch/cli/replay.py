# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay`: what mwatch would have found and done in a recorded run.

Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad usage or an unreadable
input, 3 not enough data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mwatch.cli.options import AsJson, Catalogue, Checkpoints, Names, Policy, Until, option
from mwatch.cli.recorded import make_report, write_json


def replay(
    names: Names = None,
    *,
    as_json: AsJson = False,
    report_file: Annotated[
        Path | None, option("FILE", "Write the report to this .md or .json file too.", "--report")
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

    Example: mwatch replay pod-*.log --report incident.md
    """
    if report_file is not None:
        from mwatch.report.files import check_target
        from mwatch.report.markdown import SUFFIXES

        check_target(report_file, *SUFFIXES)
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
