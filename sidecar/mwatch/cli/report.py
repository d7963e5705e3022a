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

from mwatch.cli.output import write
from mwatch.cli.recorded import AsJson, Catalogue, Checkpoints, Policy, Until, make_report

if TYPE_CHECKING:
    from mwatch.report.recorder import RunStory

_PAGE = "report.html"
_FINE = frozenset({"healthy", "finished"})
_UNKNOWN = frozenset({"unknown", "blind"})

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|DIR|LOG...|-]",
        help="Read this run of 'mwatch run' (its name or folder), or these log files or folders; "
        "- is standard input.",
    ),
]


def report(
    names: Runs = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the page here; by default RUN/report.html or ./report.html."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(
            metavar="TITLE", help="Set the title of the page; by default the name of the run."
        ),
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
    from mwatch.report.html.page import check_target, render, write_page

    kept = _kept(names or [])
    target = out or (kept.parent / _PAGE if kept else Path(_PAGE))
    check_target(target)
    story = _read(kept) if kept else _replayed(names, checkpoints, until, policy, catalogue)
    size = write_page(render(story, title or ""), target)
    _print_result(story, target, size, as_json=as_json)
    raise typer.Exit(3 if story.cause in _UNKNOWN else 0 if story.cause in _FINE else 1)


def _kept(names: list[str]) -> Path | None:
    """The story that `mwatch run` left, where one run is named, by its folder or its name."""
    from mwatch.report.story_json import NAME

    if len(names) != 1 or names == ["-"]:
        return None
    named = Path(names[0])
    places = [named, named / NAME] if named.exists() else [Path("runs") / named / NAME]
    return next((each for each in places if each.name == NAME and each.is_file()), None)


def _read(kept: Path) -> RunStory:
    from mwatch.report.story_json import read

    return read(kept)


def _replayed(
    names: list[str] | None,
    checkpoints: list[str] | None,
    until: str | None,
    policy: Path | None,
    catalogue: list[Path] | None,
) -> RunStory:
    from mwatch.report.recorder import StoryRecorder
    from mwatch.report.story_json import told

    first = Path(names[0]) if names and names != ["-"] else None
    recorder = StoryRecorder(first.resolve().stem if first else "recorded run", "replay")
    return told(recorder, make_report(names, checkpoints, until, policy, catalogue, recorder))


def _print_result(story: RunStory, target: Path, size: int, *, as_json: bool) -> None:
    if as_json:
        import json

        result = {
            "report": str(target),
            "bytes": size,
            "run": story.run,
            "verdict": {"cause": story.cause, "summary": story.summary},
            "incidents": len(story.incidents),
            "goodput": story.goodput,
        }
        write(json.dumps(result, indent=2))
        return
    number = len(story.incidents)
    incidents = f"{number} incident" + "s" * (number != 1)
    write(f"{target} ({size / 1e3:.0f} kB): {story.cause.replace('_', ' ')}, {incidents}")
