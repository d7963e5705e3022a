# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch parse`: convert a trainer's log to JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mwatch.cli.shared.options import Catalogue, argument, flag, option

if TYPE_CHECKING:
    from mwatch.model.event import Flavour


def parse(
    files: Annotated[
        list[str] | None,
        argument("[FILE...|-]", "Read these log files; by default standard input (-)."),
    ] = None,
    follow: Annotated[bool, flag("--follow", "Keep reading as the files grow or rotate.")] = False,
    flavour: Annotated[
        Literal["auto", "megatron", "deepspeed", "bridge", "composer", "torchtitan"],
        option(
            "NAME",
            "Assume that this trainer wrote the log: megatron, deepspeed, bridge, composer, "
            "torchtitan; auto finds out.",
        ),
    ] = "auto",
    since_line: Annotated[
        int, option("N", "Print only the events of line N and later.", min=1)
    ] = 1,
    catalogue: Catalogue = None,
) -> None:
    """Print the events of a trainer's log as JSON, one object per line.

    A summary with the count of each event goes to standard error.

    Example: mwatch parse trainer.log | jq -c 'select(.event == "iteration")'
    """
    if not files and sys.stdin.isatty():
        raise typer.BadParameter(
            "give a log file, or pipe a log to standard input", param_hint="FILE"
        )
    forced = None if flavour == "auto" else flavour
    _run(files or ["-"], follow, forced, since_line, catalogue or [])


def _run(
    files: list[str], follow: bool, flavour: Flavour | None, since_line: int, catalogues: list[Path]
) -> None:
    from mwatch.config.catalogue import load
    from mwatch.parse.grammar import Grammar
    from mwatch.replay import events as app

    grammar = Grammar(load(catalogues), flavour)
    summary = app.Summary()
    writer = app.EventWriter(sys.stdout.buffer, summary, since_line)
    try:
        if follow and "-" not in files:
            app.follow_files(files, grammar, writer, summary)
        else:
            progress = _show_progress if sys.stderr.isatty() else None
            app.parse_files(files, grammar, writer, summary, progress)
    finally:
        for problem in summary.problems:
            print(f"mwatch: {problem}", file=sys.stderr)
        print(f"mwatch: {summary}", file=sys.stderr)
    if summary.problems:
        raise typer.Exit(2)


def _show_progress(file: str, done: int, size: int) -> None:
    share = f" of {size / 1e6:.0f} MB ({done / size:.0%})" if size else ""
    print(
        f"\r\x1b[Kmwatch: {file}: {done / 1e6:.0f} MB{share}", end="\r", file=sys.stderr, flush=True
    )
