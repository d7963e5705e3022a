# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch replay` and `mwatch diagnose` share: their arguments, and making the report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.replay.player import Listener
    from mwatch.report.run_report import RunReport

_PROGRESS_SECONDS = 0.5

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR|LOG...|-]",
        help="Read these log files (one per pod and attempt) or folders; - is standard input.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="Read the checkpoints in this folder too; repeatable."),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME|now",
        help="Assume the run was still up then, so that silence until then counts.",
    ),
]
Policy = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read thresholds from this TOML file.")
]
Catalogue = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Add the faults of this TOML file; repeatable."),
]


def make_report(
    names: list[str] | None,
    checkpoints: list[str] | None,
    until: str | None,
    policy: Path | None,
    catalogue: list[Path] | None,
    listener: Listener | None = None,
) -> RunReport:
    """Raises InputError, or a usage error where no input was given."""
    if not names and sys.stdin.isatty():
        raise typer.BadParameter(
            "give a log file or a folder, or pipe a log to standard input", param_hint="LOG"
        )
    from mwatch.config.policy import load
    from mwatch.model.settings import Settings
    from mwatch.replay.replay import ReplayRequest, replay

    request = ReplayRequest(
        names or ["-"],
        checkpoints or [],
        until,
        Settings() if policy is None else load(policy),
        catalogue or [],
    )
    progress = _Shown() if sys.stderr.isatty() else None
    try:
        return replay(request, time.time(), progress, listener)
    finally:
        if progress:
            progress.clear()


class _Shown:
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


def write_json(report: RunReport) -> None:
    from mwatch.report.markdown import to_json

    write(to_json(report))
