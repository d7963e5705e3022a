# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration lines that look like the last one, read at the speed of the regular expression.

A run prints the same keys for hours. From one line that was read the slow way this builds a
pattern that accepts exactly the same keys in the same order, for a whole block at once; what does
not fit falls back to the slow way, and both must agree. A tight layout also takes the values that
hardly ever change (the total, the batch size, the NaN counter) for fixed text, which is faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter, sub
from typing import NamedTuple

from mwatch.model.event import Iteration, Scalar
from mwatch.parse.coverage import Coverage
from mwatch.parse.fields import KNOWN, is_count, split_segment, squeeze
from mwatch.parse.numbers import MAX_COUNT, seconds_to_ms
from mwatch.parse.transport import count_lines

_HEAD = re.compile(
    r"(?P<lead>[^|\n]*?)(?P<stamp>\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})?\] )?"
    r"iteration +\d{1,18}/(?P<total> *\d{1,18} )\|"
)
# Wide on purpose: "anything but the delimiter" is the fastest to match, and what was matched is
# checked when it is converted.
_STAMP = rb"\[(20[^\]]{17,24})\] "
_NO_STAMP = rb"()"
_STEP = rb"iteration +(\d{1,18})/"
_TOTAL = rb" *(\d{1,18}) \|"
_STEADY = frozenset({"global_batch_size", "nan"})
_WHOLE = re.compile(rb"-?\d{1,17}")
_STAMP_TEXTS = re.compile(rb"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})?\n)+")
_VALUE = rb"([^|]{0,24})\|"  # longer is no number, and may hide another message
Row = tuple[bytes, ...]
"""Timestamp and total (both may be empty) around the iteration; then one text per slot."""
FIRST_SLOT = 3
_INDEX = {name: index for index, name in enumerate(Iteration._fields)}
MAKE: Callable[[Iterable[object]], Iteration] = partial(tuple.__new__, Iteration)
"""`Iteration._make` at half its cost; the rows have the right length by construction."""


Convert = Callable[[bytes], float | int]


def _seconds(text: bytes) -> float:
    return seconds_to_ms(float(text))


def _number(text: bytes) -> float | int:
    return int(text) if _WHOLE.fullmatch(text.strip()) else float(text)


def counts(texts: Iterable[bytes]) -> list[int]:
    values = list(map(int, texts))
    if max(values) >= MAX_COUNT or min(values) <= -MAX_COUNT:
        raise ValueError("a count out of all bounds")
    return values


def _count(text: bytes) -> int:
    return counts((text,))[0]


class Slot(NamedTuple):
    """Where the value of one segment goes, and how it is converted."""

    kind: str  # "field", "loss" or "extra"
    name: str
    convert: Convert

    def convert_all(self, texts: Sequence[bytes]) -> Iterable[float | int]:
        """Most columns hold one text for hours; that is converted once."""
        if texts.count(texts[0]) == len(texts):
            return repeat(self.convert(texts[0]), len(texts))
        return counts(texts) if self.convert is _count else list(map(self.convert, texts))


class Layout:
    def __init__(
        self, pattern: re.Pattern[bytes], slots: Sequence[Slot], model: Iteration, is_tight: bool
    ) -> None:
        self.pattern = pattern
        self.is_tight = is_tight
        self.slots = slots
        self.model = model
        self._underscores = pattern.pattern.count(b"_")
        self._plan = [(_INDEX[slot.name] if slot.kind == "field" else -1, slot) for slot in slots]

    def same_as(self, other: Layout) -> bool:
        return self.pattern == other.pattern and self.model.rank == other.model.rank

    def all(self, block: bytes) -> list[Row]:
        """The rows of a block, if each of its lines has this layout; else nothing."""
        fits = self.pattern.match
        if not (block.endswith(b"\n") and fits(block)):
            return []
        second = block.find(b"\n") + 1
        if second < len(block) and not fits(block, second):
            return []  # a cheap look before the whole block is tried
        rows: list[Row] = self.pattern.findall(block)
        lines = count_lines(block)
        return [] if lines != len(rows) or self._has_odd_underscores(block, lines) else rows

    def _has_odd_underscores(self, text: bytes, lines: int) -> bool:
        """Whether a value holds one: float() would read 1_0 as ten."""
        return b"_" in text and text.count(b"_") != self._underscores * lines

    def decode(self, row: Row, line: int, covers: int) -> Iteration | None:
        """The event of one row; None where only the slow way can read a value."""
        values: list[object] = list(self.model)
        losses: dict[str, float] = {}
        extra: dict[str, Scalar] = {}
        try:
            for (index, slot), text in zip(self._plan, row[FIRST_SLOT:], strict=True):
                if index >= 0:
                    values[index] = slot.convert(text)
                elif slot.kind == "loss":
                    losses[slot.name] = slot.convert(text)
                else:
                    extra[slot.name] = slot.convert(text)
            values[_INDEX["timestamp"]] = stamp_texts(row[:1])[0] if row[0] else None
        except ValueError:
            return None
        values[_INDEX["iteration"]] = int(row[1])
        values[_INDEX["total_iterations"]] = int(row[2]) if row[2] else self.model.total_iterations
        values[_INDEX["losses"]] = losses
        values[_INDEX["covers"]] = covers
        values[_INDEX["first_of_process"]] = False
        values[_INDEX["extra"]] = extra
        values[_INDEX["line"]] = line
        return MAKE(values)


def steady_covers(rows: Sequence[Row], coverage: Coverage) -> list[int]:
    """What each line covers, if all simply cover what lies between them; else nothing."""
    previous, interval = coverage.steady, coverage.log_interval
    if previous is None:
        return []
    iterations = list(map(int, map(itemgetter(1), rows)))
    covers = list(map(sub, iterations, chain((previous,), iterations)))
    if min(covers) < 1 or (interval is not None and max(covers) > interval):
        return []  # a restart, or a line was lost
    return covers


def stamp_texts(texts: Iterable[bytes]) -> list[str]:
    """Timestamps in ISO form; ValueError where the brackets held something else."""
    joined = b"\n".join(texts) + b"\n"
    if not _STAMP_TEXTS.fullmatch(joined):
        raise ValueError(joined[:80])
    return joined.decode("ascii").replace(" ", "T").split("\n")[:-1]


def learn(text: str, event: Iteration, *, tight: bool = False) -> Layout | None:
    """The layout of a line that was read the slow way; None if it is no plain one."""
    head = _HEAD.match(text)
    if not head or (event.timestamp is not None) != bool(head["stamp"]) or not text.isascii():
        return None
    if "skipped samples" in event.extra:
        return None  # iterations are jumped over: what a line covers is no plain difference
    *segments, tail = text[head.end() :].split("|")
    slots: list[Slot] = []
    stamp = _STAMP if head["stamp"] else _NO_STAMP
    total = re.escape(head["total"].encode()) + rb"()\|" if tight else _TOTAL
    pattern = b"(?m)^" + re.escape(head["lead"].encode()) + stamp + _STEP + total
    for segment in segments:
        parts = split_segment(segment)
        slot = _slot(parts[0], event) if parts else None
        if parts is None or slot is None or slot in slots:
            return None
        if tight and slot.name in _STEADY:
            pattern += re.escape(segment.encode()) + rb"\|"
            continue
        slots.append(slot)
        key = segment[: len(segment) - len(parts[1])]
        pattern += re.escape(key.encode()) + _VALUE
    if tail.strip() or not slots:
        return None
    return Layout(re.compile(pattern + rb"[ \t\r]*\n"), slots, event, tight)


def _slot(key: str, event: Iteration) -> Slot | None:
    meaning = KNOWN.get(squeeze(key))
    if meaning:
        if getattr(event, meaning.field) is None or f"{key} average" in event.extra:
            return None
        plain: Convert = _count if is_count(meaning.field) else float
        return Slot("field", meaning.field, _seconds if meaning.in_seconds else plain)
    if key in event.losses:
        return Slot("loss", key, float)
    return Slot("extra", key, _number) if isinstance(event.extra.get(key), int | float) else None
