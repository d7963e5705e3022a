# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Line numbers of a block, counted only as far as somebody asks, and each byte once.

It knows newlines and the shifts that came with the block; what a line says it does not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mwatch.parse.transport import Lines, count_lines


class Numbering:
    """Offsets are asked for in the order of the block."""

    def __init__(self, lines: Lines, first: int) -> None:
        self._block = lines.block
        self._shifts = list(reversed(lines.shifts))
        self._at = 0
        self._number = first

    def of(self, starts: Sequence[int]) -> list[int]:
        """The numbers of the lines that start there."""
        if self._shifts:
            return [self._move(start) for start in starts]
        texts = map(self._block.__getitem__, map(slice, (self._at, *starts), starts))
        numbers = list(accumulate(map(count_lines, texts), initial=self._number))
        self._at, self._number = (self._at, *starts)[-1], numbers[-1]
        return numbers[1:]

    def ended(self) -> int:
        """The number of the last line that has an end; nothing can be asked after this."""
        return self._move(len(self._block)) - 1 + sum(delta for _, delta in self._shifts)

    def _move(self, start: int) -> int:
        self._number += count_lines(self._block[self._at : start])
        self._at = start
        while self._shifts and self._shifts[-1][0] <= start:
            self._number += self._shifts.pop()[1]
        return self._number
