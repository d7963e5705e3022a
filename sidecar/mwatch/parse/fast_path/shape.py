# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Find iteration lines that differ only in their digits, so their values are at the same offsets.

The shape of a line is the line with every digit replaced by a zero. A pattern is tried on one line
of each shape. Comparing the following lines with copies of the shape, at memory speed, shows how
many of them are alike; a value is then cut out of all of them by its offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mwatch.parse.fast_path.layout import ITERATION, Cells, Column, LineLayout, Row, whole_numbers

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ZERO = ord("0")
_DIGITS = re.compile(rb"\d+")
_COMPARED = 1 << 14  # bytes at a time, so that they and their zeros stay in the nearest cache
_FEW = 16  # fewer lines are cheaper to cut out one by one than digit by digit
_MAX_WIDTH = 1 << 12
_MAX_SHAPES = 128
Span = tuple[int, int]


class LineShape:
    def __init__(self, layout: LineLayout, line: bytes, spans: Sequence[Span]) -> None:
        self.layout = layout
        self.width = len(line)
        self._zeros = line.translate(_ZEROS)
        self._spans = spans
        self.iteration = spans[ITERATION]
        self._fixed = _fixed_digits(line, spans)
        self._copies = b""
        self._places: dict[int, list[int]] = {}

    def is_of(self, line: bytes) -> bool:
        """Whether a line of this shape also has the fixed digits, as in `mtp_1 loss`."""
        return all(line[place] == digit for place, digit in self._fixed)

    def end(self, block: bytes, start: int) -> int:
        """Return where the run of lines of this shape that begins at `start` ends."""
        if not self._copies:
            self._copies = self._zeros * (_COMPARED // self.width)
        at = start + self.width
        step = self.width
        piece = block[at : at + step].translate(_ZEROS)
        while len(piece) == step and self._copies.startswith(piece):
            at += step
            step = min(4 * step, len(self._copies))
            piece = block[at : at + step].translate(_ZEROS)
        alike = 0
        while piece.startswith(self._zeros, alike):
            alike += self.width
        at += alike
        return self._end_of_fixed(block, start, at) if self._fixed else at

    def _end_of_fixed(self, block: bytes, start: int, end: int) -> int:
        for place, digit in self._fixed:
            column = block[start + place : end : self.width]
            alike = len(column) - len(column.lstrip(bytes((digit,))))
            end = start + alike * self.width
        return end

    def row(self, block: bytes, at: int) -> Row:
        return tuple([block[at + low : at + high] for low, high in self._spans])

    def column(self, index: int, block: bytes, start: int, end: int) -> Cells:
        low, high = self._spans[index]
        text = block[start + low : start + high]
        lines = (end - start) // self.width
        if lines < _FEW:
            texts = [block[at + low : at + high] for at in range(start, end, self.width)]
            is_same = texts.count(text) == lines
            return Cells(text, lines, b"" if is_same else b"\n".join((*texts, b"")))
        cells = bytearray()
        for place in self._digits(index):
            digits = block[start + place : end : self.width]
            if digits.count(digits[:1]) < lines:
                cells = cells or bytearray((text + b"\n") * lines)
                cells[place - low :: high - low + 1] = digits
        return Cells(text, lines, cells)

    def _digits(self, index: int) -> list[int]:
        places = self._places.get(index)
        if places is None:
            places = [place for place in range(*self._spans[index]) if self._zeros[place] == _ZERO]
            self._places[index] = places
        return places


def _fixed_digits(line: bytes, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return offset and value of the digits that belong to the keys."""
    ends = (0, *(high for _, high in spans))
    starts = (*(low for low, _ in spans), len(line))
    between = [(low, high) for low, high in zip(ends, starts, strict=True) if low < high]
    return [
        (place, line[place])
        for low, high in between
        for found in _DIGITS.finditer(line, low, high)
        for place in range(found.start(), found.end())
    ]


class Stretch(NamedTuple):
    """Consecutive lines of one shape."""

    shape: LineShape
    start: int
    end: int


class Rows:
    """The texts of consecutive lines of one layout, cut out on demand."""

    def __init__(self, block: bytes, stretches: Sequence[Stretch]) -> None:
        self.block = block
        self.layout = stretches[0].shape.layout
        self.start = stretches[0].start
        self.end = stretches[-1].end
        self._stretches = stretches

    def __getitem__(self, position: int) -> Row:
        for shape, start, end in self._stretches if position >= 0 else self._stretches[::-1]:
            lines = (end - start) // shape.width
            if -lines <= position < lines:
                at = (start if position >= 0 else end) + position * shape.width
                return shape.row(self.block, at)
            position -= lines if position >= 0 else -lines
        raise IndexError(position)

    def part(self, low: int, high: int) -> Rows:
        """Return lines `low` to `high`, at least one."""
        found: list[Stretch] = []
        for shape, start, end in self._stretches:
            lines = (end - start) // shape.width
            first, last = max(low, 0), min(high, lines)
            if first < last:
                at = start + first * shape.width
                found.append(Stretch(shape, at, start + last * shape.width))
            low, high = low - lines, high - lines
        return Rows(self.block, found)

    def iterations(self) -> list[int]:
        if self.end - self.start < _COMPARED:  # few lines are cheaper one by one
            found: list[int] = []
            for shape, start, end in self._stretches:
                low, high = shape.iteration
                lines = range(start, end, shape.width)
                found += [int(self.block[at + low : at + high]) for at in lines]
            return found
        return whole_numbers(self.column(ITERATION))

    def column(self, index: int) -> Column:
        return Column([shape.column(index, self.block, *ends) for shape, *ends in self._stretches])


class Shapes:
    """The shapes found in one file, limited in number."""

    def __init__(self) -> None:
        self._known: dict[bytes, LineShape] = {}

    def rows(self, block: bytes, start: int, layouts: Iterable[LineLayout]) -> Rows | None:
        """Return the lines of one layout from `start` on; None if there are none."""
        stretches: list[Stretch] = []
        at = start
        while stop := block.find(b"\n", at) + 1:
            shape = self._shape(block[at:stop], layouts)
            if shape is None or (stretches and shape.layout is not stretches[0].shape.layout):
                break
            end = shape.end(block, at)
            stretches.append(Stretch(shape, at, end))
            at = end
        return Rows(block, stretches) if stretches else None

    def _shape(self, line: bytes, layouts: Iterable[LineLayout]) -> LineShape | None:
        if len(line) > _MAX_WIDTH:
            return None
        zeros = line.translate(_ZEROS)
        known = self._known.get(zeros)
        if known and known.is_of(line):
            return known
        for layout in layouts:
            if found := layout.match(line):
                if len(self._known) >= _MAX_SHAPES:
                    self._known.clear()
                shape = LineShape(layout, line, found.regs[1:])
                self._known[zeros] = shape
                return shape
        return None
