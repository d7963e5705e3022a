# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch replay`, `diagnose` and `report` share: their arguments, and the way to a report.

A run that mwatch watched has left its report, `story.json`: all three read it, for the watcher saw
more (processes, probes, its own actions) than a log holds. Logs are played where there is none, or
where an option asks for another answer than the one that was given then.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.output import write

if TYPE_CHECKING:
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
    *,
    has_curves: bool = False,
) -> RunReport:
    """InputError, or a wrong usage, where it cannot be made."""
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
        names or ["-"],
        checkpoints or [],
        until,
        load_policy(policy),
        catalogue or [],
    )
    progress = _Shown() if sys.stderr.isatty() else None
    try:
        return replay(request, time.time(), progress, has_curves=has_curves)
    finally:
        if progress:
            progress.clear()


def story_of(names: list[str]) -> Path | None:
    """What `mwatch run` left, where one run is named, by its folder or its name."""
    if len(names) != 1 or names == ["-"]:
        return None
    from mwatch.report.story_json import NAME

    named = Path(names[0])
    places = [named, named / NAME] if named.exists() else [Path("runs") / named / NAME]
    return next((each for each in places if each.name == NAME and each.is_file()), None)


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
