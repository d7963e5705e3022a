# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a reader of a sidecar gives back at its next question: how much it was told.

It also names the place in the log, so that a sidecar that was started again and has lost all that
it knew (a full disk, a new volume) learns from the reader itself which lines that one knows. It
does not know which files were rotated away meanwhile: another file is new from its first line.
"""

from __future__ import annotations

from typing import NamedTuple

_MAX_DIGITS = 19


class Place(NamedTuple):
    """How far a log was told."""

    file: int
    """Its inode; 0: nothing was printed yet."""
    line: int

    def holds(self, other: Place) -> bool:
        return 0 < other.line <= self.line and other.file == self.file

    def is_past(self, other: Place) -> bool:
        """It knows something that `other` does not, as far as one can tell."""
        return self.file != 0 and (self.file != other.file or self.line > other.line)

    def then(self, other: Place) -> Place:
        """Both were told, `other` last."""
        if other.file == self.file:
            return max(self, other)
        return other if other.file else self


NOWHERE = Place(0, 0)


class Cursor(NamedTuple):
    life: str
    """Empty: whichever."""
    number: int
    start: str = ""
    """Which process of that life has given it."""
    place: Place = NOWHERE

    def __str__(self) -> str:
        if not self.place.file:
            return f"{self.life}.{self.number}"
        place = f"{self.start}-{self.place.file}-{self.place.line}"
        return f"{self.life}.{place}.{self.number}"


def read_cursor(text: str) -> Cursor | None:
    """None: it is none."""
    rest, _, last = text.rpartition(".")
    number = _whole(last)
    if number is None:
        return None
    life, dot, place = rest.partition(".")
    if not dot:
        return Cursor(life, number)
    start, *numbers = place.split("-")
    known = [each for each in map(_whole, numbers) if each is not None]
    return Cursor(life, number, start, Place(*known)) if len(known) == len(numbers) == 2 else None


def _whole(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None
