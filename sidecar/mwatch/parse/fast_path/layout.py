# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decode iteration lines with the same keys as an earlier one, without parsing the keys.

A run prints the same keys for hours. A line read on the slow path becomes a pattern for the same
keys in the same order; other lines take the slow path, and both paths must agree. Columns of
numbers are read as JSON lists, three times as fast as one `float()` per value. JSON has no `nan`
and no `007`, so only texts in the expected notation are read this way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import sub
from typing import NamedTuple

from mwatch import json_codec
from mwatch.model.event import Iteration
from mwatch.parse.lines.context import Coverage
from mwatch.parse.lines.fields import (
    KNOWN,
    MAX_COUNT,
    is_count,
    seconds_to_ms,
    split_segment,
    squeeze,
)

_HEAD = re.compile(
    r"(?P<lead>[^|\n]*?)(?P<stamp>\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})?\] )?"
    r"iteration +\d{1,18}/ *\d{1,18} \|"
)
# Permissive on purpose: "anything but the delimiter" is the fastest to match, and the matched text
# is checked when it is converted.
_STAMP = rb"\[(20[^\]]{17,24})\] "
_NO_STAMP = rb"()"
_STEP = rb"iteration +(\d{1,18})/"
_TOTAL = rb" *(\d{1,18}) \|"
_WHOLE = re.compile(rb"-?\d{1,17}")
_STAMP_TEXT = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})?")
_VALUE = rb"([^|]{0,24})\|"  # a longer text is not a number and may contain another message
Row = tuple[bytes, ...]  # timestamp (may be empty), iteration and total; then one text per slot
STAMP, ITERATION, TOTAL, FIRST_SLOT = range(4)  # places in a row
_INDEX = {name: index for index, name in enumerate(Iteration._fields)}
_TIMESTAMP, _ITERATION, _TOTAL_ITERATIONS, _LOSSES, _EXTRA, _COVERS, _FIRST, _LINE = (
    _INDEX[name]
    for name in (
        "timestamp", "iteration", "total_iterations", "losses", "extra", "covers",
        "first_of_process", "line",
    )
)  # fmt: skip
MAKE: Callable[[Iterable[object]], Iteration] = partial(tuple.__new__, Iteration)
"""Same as `Iteration._make` at half the cost; the rows have the right length by construction."""
Convert = Callable[[bytes], float | int]
_COUNT = re.compile(rb" *\d{1,17} *")


class Cells(NamedTuple):
    """One column of lines of one shape: the first text and, if they differ, all texts."""

    text: bytes
    lines: int
    each: bytes | bytearray  # all texts, each with a newline; empty if all are the same


class Column:
    def __init__(self, parts: Sequence[Cells]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(part.lines for part in self._parts)

    @property
    def only(self) -> bytes | None:
        """The text, if it is the same in all lines."""
        text = self._parts[0].text
        return None if any(part.each or part.text != text for part in self._parts) else text

    def joined(self) -> bytes:
        """The texts, with a newline after each."""
        return b"".join(each or (text + b"\n") * lines for text, lines, each in self._parts)

    def texts(self) -> list[bytes]:
        return self.joined().split(b"\n")[:-1]

    def are_written(self, written: re.Pattern[bytes]) -> bool:
        """Whether all texts match; lines of one shape differ only in digits, so one is checked."""
        return all(written.fullmatch(part.text) for part in self._parts)

    def numbers(self, written: re.Pattern[bytes]) -> list[float | int] | None:
        """Read the column as JSON; None if a text is in another notation or not valid JSON."""
        if not self.are_written(written):
            return None
        listed = b",".join(
            each[:-1].replace(b"\n", b",") if each else b",".join([text] * lines)
            for text, lines, each in self._parts
        )
        try:
            found: list[float | int] = json_codec.decode(b"[%b]" % listed)
        except ValueError:
            return None
        return found


def _seconds(text: bytes) -> float:
    return seconds_to_ms(float(text))


def _stamp(text: bytes) -> str:
    return stamps(Column([Cells(text, 1, b"")])).decode("ascii").rstrip("\n")


def _number(text: bytes) -> float | int:
    return int(text) if _WHOLE.fullmatch(text.strip()) else float(text)


def _count(text: bytes) -> int:
    value = int(text)
    if not -MAX_COUNT < value < MAX_COUNT:
        raise ValueError("count out of range")
    return value


_WRITTEN: dict[Convert, re.Pattern[bytes]] = {
    _count: _COUNT,
    float: re.compile(rb" *-?\d+\.\d+(?:[eE][-+]\d+)? *"),
}


class LineSlot(NamedTuple):
    """Where the value of one segment goes, and how it is converted."""

    kind: str  # "field", "loss" or "extra"
    name: str
    convert: Convert

    def convert_all(self, column: Column) -> Iterable[float | int]:
        """Convert a column; most columns hold the same text for hours, which is converted once."""
        if column.only is not None:
            return repeat(self.convert(column.only), len(column))
        written = _WRITTEN.get(self.convert)
        values = column.numbers(written) if written else None
        return list(map(self.convert, column.texts())) if values is None else values


def whole_numbers(column: Column) -> list[int]:
    return column.numbers(_COUNT) or list(map(int, column.texts()))  # type: ignore[return-value]


class LineLayout:
    def __init__(
        self, pattern: re.Pattern[bytes], slots: Sequence[LineSlot], model: Iteration
    ) -> None:
        self.pattern = pattern
        self.slots = slots
        self.model = model
        self.fields = {slot.name: i for i, slot in enumerate(slots) if slot.kind == "field"}
        self._underscores = pattern.pattern.count(b"_")
        self._plan = [(_INDEX[slot.name] if slot.kind == "field" else -1, slot) for slot in slots]

    def same_as(self, other: LineLayout) -> bool:
        return self.pattern == other.pattern and self.model.rank == other.model.rank

    def match(self, line: bytes) -> re.Match[bytes] | None:
        """Match a line with its newline; the groups are a `Row`."""
        if line.count(b"_") != self._underscores:
            return None  # there is one in a value: float() would read 1_0 as ten
        return self.pattern.fullmatch(line)

    def decode(self, row: Row, line: int, covers: int) -> Iteration | None:
        """Return the event of one row; None if only the slow path can read a value."""
        values: list[object] = list(self.model)
        named: dict[str, dict[str, float]] = {"loss": {}, "extra": {}}
        try:
            for (index, (kind, name, convert)), text in zip(
                self._plan, row[FIRST_SLOT:], strict=True
            ):
                if index >= 0:
                    values[index] = convert(text)
                else:
                    named[kind][name] = convert(text)
            values[_TIMESTAMP] = _stamp(row[STAMP]) if row[STAMP] else None
        except ValueError:
            return None
        values[_ITERATION], values[_TOTAL_ITERATIONS] = int(row[1]), int(row[2])
        values[_LOSSES], values[_EXTRA] = named["loss"], named["extra"]
        values[_COVERS], values[_FIRST] = covers, False
        values[_LINE] = line
        return MAKE(values)


def steady_covers(iterations: Sequence[int], coverage: Coverage) -> list[int]:
    """Return the iterations that each line covers; empty after a restart or a lost line."""
    previous, interval = coverage.steady, coverage.log_interval
    if previous is None:
        return []
    covers = list(map(sub, iterations, chain((previous,), iterations)))
    if min(covers) < 1 or (interval is not None and max(covers) > interval):
        return []  # a restart or a lost line
    return covers


def stamps(column: Column) -> bytes:
    """Return timestamps in ISO form, each with a newline; ValueError if the brackets contain
    something else."""
    if not column.are_written(_STAMP_TEXT):
        raise ValueError(column.joined()[:80])
    return column.joined().replace(b" ", b"T")


def learn(text: str, event: Iteration) -> LineLayout | None:
    """Return the layout of a line read on the slow path; None if the line is not a plain one."""
    head = _HEAD.match(text)
    if not head or (event.timestamp is not None) != bool(head["stamp"]) or not text.isascii():
        return None
    if "skipped samples" in event.extra:
        return None  # iterations are skipped, so coverage is not a plain difference
    *segments, tail = text[head.end() :].split("|")
    slots: list[LineSlot] = []
    stamp = _STAMP if head["stamp"] else _NO_STAMP
    pattern = re.escape(head["lead"].encode()) + stamp + _STEP + _TOTAL
    for segment in segments:
        parts = split_segment(segment)
        slot = _slot(parts[0], event) if parts else None
        if parts is None or slot is None or slot in slots:
            return None
        slots.append(slot)
        key = segment[: len(segment) - len(parts[1])]
        pattern += re.escape(key.encode()) + _VALUE
    if tail.strip() or not slots:
        return None
    return LineLayout(re.compile(pattern + rb"[ \t\r]*\n"), slots, event)


def _slot(key: str, event: Iteration) -> LineSlot | None:
    meaning = KNOWN.get(squeeze(key))
    if meaning:
        if getattr(event, meaning.field) is None or f"{key} average" in event.extra:
            return None
        plain: Convert = _count if is_count(meaning.field) else float
        return LineSlot("field", meaning.field, _seconds if meaning.in_seconds else plain)
    if key in event.losses:
        return LineSlot("loss", key, float)
    return (
        LineSlot("extra", key, _number) if isinstance(event.extra.get(key), int | float) else None
    )
