# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose`: one screen about a recorded run, or about a manifest before it is applied.

Exit codes: 0 healthy or finished, 1 something is wrong, 2 bad usage or an input that cannot be
read, 3 it cannot be told.
"""

from __future__ import annotations

import json
from typing import Annotated, NoReturn

import typer

from mwatch.cli.output import write
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

Manifest = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE|-", help="A job's manifest, before it is applied."),
]


def diagnose(
    names: Names = None,
    *,
    file: Manifest = None,
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

    With -f, a manifest is checked instead: what divides, what is saved where, what hides errors.

    Example: mwatch diagnose logs/ --checkpoints /data/ckpt
    """
    if file is not None:
        _manifest(file, names, as_json)
    report = make_report(names, checkpoints, until, policy, catalogue)
    if as_json:
        write_json(report)
    else:
        from mwatch.cli.render_diagnose import render
        from mwatch.cli.terminal import show

        show(render(report))
    raise typer.Exit(report.exit_code)


def _manifest(file: str, names: list[str] | None, as_json: bool) -> NoReturn:
    if names:
        raise typer.BadParameter("give a manifest or logs, not both", param_hint="--file")
    from mwatch.app.manifest_checks import check

    checked = check(file)
    if as_json:
        write(json.dumps(checked.as_json(), indent=2))
    else:
        from mwatch.cli.render_checks import render
        from mwatch.cli.terminal import show

        show(render(checked))
    raise typer.Exit(checked.exit_code)
