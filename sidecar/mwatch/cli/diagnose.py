# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose`: one screen about a recorded run.

Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad usage or an input that cannot be
read, 3 it cannot be told.
"""

from __future__ import annotations

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


def diagnose(
    names: Names = None,
    *,
    as_json: AsJson = False,
    checkpoints: Checkpoints = None,
    until: Until = None,
    policy: Policy = None,
    catalogue: Catalogue = None,
) -> None:
    """Say what is wrong with a recorded run, who is to blame, and what to do.

    Reads logs of all pods and attempts, and checkpoint folders beside them; changes nothing.
    'mwatch replay' tells the whole story.

    Exit code: 0 healthy or finished, 1 something is wrong, 2 bad input, 3 it cannot be told.

    Example: mwatch diagnose logs/ --checkpoints /data/ckpt
    """
    report = make_report(names, checkpoints, until, policy, catalogue)
    if as_json:
        write_json(report)
    else:
        from mwatch.cli.render_diagnose import render
        from mwatch.cli.terminal import show

        show(render(report))
    raise typer.Exit(report.exit_code)
