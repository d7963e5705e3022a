# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `inject` and `uninject` share: their arguments and their output.

Also the screen of `mwatch diagnose -f`: what is wrong with a manifest before it is applied.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.cli.terminal import Line
    from mwatch.diagnose.manifest import ManifestReport
    from mwatch.model.checks.check import Problem
    from mwatch.operate.inject import Changed


File = Annotated[
    str,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE|-",
        help="Read the manifest from this file; - is standard input.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write the result to this file instead of standard output.",
    ),
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Change FILE itself.")]
Diff = Annotated[bool, typer.Option("--diff", help="Print what would change and write nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print objects, notes and problems as JSON.")]
Only = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Change this job only; repeatable.")
]
_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))
_LABEL, _MOST_LINES = 8, 6
_LEVELS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def target(file: str, out: Path | None, in_place: bool) -> Path | None:
    """Where the manifest goes; None: to the screen."""
    if file == "-" and sys.stdin.isatty():
        raise typer.BadParameter(
            "give the manifest with -f FILE, or pipe it to standard input", param_hint="--file"
        )
    if not in_place:
        return out
    if file == "-" or out is not None:
        raise typer.BadParameter("needs -f FILE and excludes --out", param_hint="--in-place")
    return Path(file)


def write_result(changed: Changed, out: Path | None, *, diff: bool, as_json: bool) -> None:
    """The manifest to the place that was chosen; notes and problems to standard error."""
    from mwatch.operate.inject import write as write_file

    if as_json:
        write(json.dumps(changed.as_json(), indent=2))
        return
    print_notes(changed)
    if diff:
        show_diff(changed)
    elif out is not None:
        write_file(out, changed.after)
    else:
        # The user's own text, byte for byte: no secret is removed.
        sys.stdout.buffer.write(changed.after.encode("utf-8"))
        sys.stdout.buffer.flush()


def print_notes(changed: Changed) -> None:
    from mwatch.cli.output import clean

    for each in changed.result.notes:
        print(f"mwatch: {clean(each)}", file=sys.stderr)
    for found in changed.found:
        print(f"mwatch: {clean(problem_line(found, changed.file))}", file=sys.stderr)


def problem_line(found: Problem, file: str) -> str:
    """`job.yaml:12: error: ... ; fix: ...`."""
    place = file if found.line is None else f"{file}:{found.line}"
    return f"{place}: {found.level.value}: {found.what}; fix: {found.fix} [{found.check}]"


def show_diff(changed: Changed) -> None:
    """Coloured on a terminal alone; never cut."""
    from mwatch.cli.output import clean

    lines = [clean(each) for each in changed.diff()]
    if not sys.stdout.isatty():
        write("\n".join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
    for line in lines:
        console.print(
            Text(line, next((style for mark, style in _STYLES if line.startswith(mark)), ""))
        )


def finding_lines(found: Problem, file: str) -> list[Line]:
    """Never cut: the fix is at the end. A long path may be."""
    from mwatch.cli.terminal import width, wrapped

    place = file if found.line is None else f"{file}:{found.line}"
    first, *rest = wrapped(f"{found.what}  [{found.check}]", width() - _LABEL - 1, _MOST_LINES)
    fix = wrapped(f"fix: {found.fix}", width() - _LABEL - 1, _MOST_LINES)
    lines: list[Line] = [
        [(f"{found.level.value:<{_LABEL}}", _LEVELS[found.level.value]), (first, "")]
    ]
    lines += [[(" " * _LABEL, ""), (each, "")] for each in rest]
    return [*lines, *([(" " * _LABEL, ""), (each, "dim")] for each in (*fix, place))]


def render(checked: ManifestReport) -> list[Line]:
    jobs = ", ".join(checked.jobs)
    lines: list[Line] = [[(jobs, "bold"), (f"  {checked.file}, {checked.checks} checks", "dim")]]
    if not checked.found:
        return [*lines, [("nothing found", "green")]]
    for each in checked.found:
        lines += finding_lines(each, checked.file)
    return lines
