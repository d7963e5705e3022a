# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Styled lines for a terminal; plain text when piped, and without colour where NO_COLOR is set.

A line never wraps: what is too long is cut, so that a table stays a table. Text from a log may
hold anything; a terminal must not obey it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence

from mwatch.cli.output import write

PIPED_WIDTH = 160
_NARROWEST = 60

Segment = tuple[str, str]
"""Text and its style: `bold red`, or nothing."""
Line = Sequence[Segment]


def show(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    from mwatch.cli.output import clean

    is_terminal = sys.stdout.isatty()
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=is_terminal, width=width(), highlight=False, emoji=False,
        markup=False, legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        text = Text.assemble(*((plain(clean(part)), style) for part, style in line))
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    write(out.getvalue().rstrip("\n"))


def width() -> int:
    """Columns of the terminal; wide when piped, for whoever reads that can scroll."""
    if not sys.stdout.isatty():
        return PIPED_WIDTH
    from shutil import get_terminal_size

    return max(get_terminal_size().columns, _NARROWEST)


def plain(text: str) -> str:
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return " " if char in "\t\r\n" else ascii(char)[1:-1]


def wrapped(text: str, columns: int, most: int) -> list[str]:
    """In at most so many lines; what does not fit is cut."""
    from textwrap import wrap

    from mwatch.cli.output import clean  # before a cut, after which half a secret is not known

    lines = wrap(" ".join(plain(clean(text)).split()), max(columns, 20)) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: max(columns - 3, 1)] + "..."]
    return lines
