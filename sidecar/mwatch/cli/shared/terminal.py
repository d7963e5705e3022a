# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Write text to standard output: without secrets, in any encoding, styled on a terminal.

A log that was recorded without mwatch may contain secrets and control characters; secrets are
removed, control characters escaped. A styled line never wraps: on a terminal long lines are cut to
keep tables aligned; in a pipe nothing is cut.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from rich.text import Text

PIPED_WIDTH = 160
_NARROWEST = 60

Segment = tuple[str, str]
"""Text and its style, such as `bold red`, or no style."""
Line = Sequence[Segment]
_columns: ContextVar[int | None] = ContextVar("columns", default=None)


def write(text: str) -> None:
    """Print a scrubbed text; characters that the terminal cannot show are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(
            scrub_text(text).encode(encoding, "backslashreplace").decode(encoding) + "\n"
        )
        sys.stdout.flush()
    except BrokenPipeError:
        ignore_closed_pipe()


def ignore_closed_pipe() -> None:
    """After `| head`: without this, the interpreter prints an error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(lines: Iterable[Line]) -> None:
    if sys.stdout.isatty():
        write(_painted(lines))
    else:
        write("\n".join("".join(map(_text, line)).rstrip() for line in lines).rstrip("\n"))


def _painted(lines: Iterable[Line]) -> str:
    """Styled text for a terminal. Only this needs rich, which is slow to load."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=width(), highlight=False, emoji=False, markup=False,
        legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        text = styled(line)
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    return out.getvalue().rstrip("\n")


def styled(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((_text(segment), segment[1]) for segment in line))


def _text(segment: Segment) -> str:
    return plain(scrub_text(segment[0]))


@contextmanager
def within(columns: int) -> Iterator[None]:
    """Render lines for a part of a screen instead of standard output."""
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def is_bounded() -> bool:
    """Whether long text must be cut: on a screen, but not in a pipe."""
    return _columns.get() is not None or sys.stdout.isatty()


def width() -> int:
    """Columns of the screen; wide in a pipe, because the reader can scroll."""
    if not is_bounded():
        return PIPED_WIDTH
    if (columns := _columns.get()) is not None:
        return columns
    from shutil import get_terminal_size

    return max(get_terminal_size().columns, _NARROWEST)


def cut_middle(text: str, columns: int) -> str:
    """Cut a line that is too long for a terminal in the middle, because both ends matter."""
    left = max(columns, 20) - 3
    if not is_bounded() or len(text) <= left + 3:
        return text
    head = left * 2 // 3
    return f"{text[:head]}...{text[head - left :]}"


def plain(text: str) -> str:
    """Escape control characters."""
    return "".join(
        char if char.isprintable() else " " if char in "\t\r\n" else ascii(char)[1:-1]
        for char in text
    )


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def wrapped(text: str, columns: int, most: int) -> list[str]:
    """Wrap into at most `most` lines and cut the rest; scrubs first, as half a secret is missed."""
    from textwrap import wrap

    lines = wrap(" ".join(plain(scrub_text(text)).split()), max(columns, 20)) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: max(columns - 3, 1)] + "..."]
    return lines
