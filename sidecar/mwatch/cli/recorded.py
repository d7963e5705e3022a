# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How `mwatch replay`, `diagnose` and `report` get the report of a recorded run.

A run that mwatch watched has left its report, `story.json`. All three commands read it, because the
watcher saw more (processes, probes, its own actions) than a log holds. Logs are replayed if there
is no such file, or if an option asks for another answer than the one given then.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mwatch.cli.terminal import write

if TYPE_CHECKING:
    from mwatch.report.run_report import RunReport

_PROGRESS_SECONDS = 0.5


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
    from mwatch.report.story_json import NAME

    named = Path(names[0])
    places = [named, named / NAME] if named.exists() else [Path("runs") / named / NAME]
    return next((each for each in places if each.name == NAME and each.is_file()), None)


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


def write_json(report: RunReport) -> None:
    from mwatch.report.markdown import to_json

    write(to_json(report))
