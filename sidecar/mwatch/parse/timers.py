# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's timer reports in their four forms, and the straggler report.

Since core_v0.16 the first line goes through `logging` and has a prefix, the others have none.
Step timers are divided by the log interval even where fewer steps were done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event, Straggler, Timers
from mwatch.parse.context import Block, Context, Recogniser
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number

_F = r"(-?\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_OPEN = re.compile(r"times? across ranks \(ms\):\s*$")
_MIN_MAX = re.compile(rf"\s+(\S[^:]{{0,99}}?)[ .]*: \({_F}, {_F}\)\s*")
_MAX = re.compile(rf"\s+(\S[^:]{{0,99}}?)[ .]*: {_F}\s*")
_NAME = re.compile(r"\s+(\S[^:]{0,99}?)[ .]*:\s*")
_RANK = re.compile(rf"\s+rank\s+(\d+)\s*: {_F}\s*")
_OLD = re.compile(r"time \(ms\)((?: \| [^|\n]{1,100}: \d{1,40}(?:\.\d{0,40})?)+)")
_OLD_FIELD = re.compile(rf"\| ([^|:]{{1,100}}): {_F}")
_STRAGGLER = re.compile(r"(M[nx]\w{1,8})/Rnk: *([-\d.]+) ?[A-Za-z%/]*?/(\d{1,7})(?= |\||$)")
_MAX_TIMERS = 200
_STEP = " iteration "
_AT_START = "model-and-optimizer-setup"


class _Report(Block):
    tolerates = (
        50  # the head goes through `logging`, the values do not: another stream gets between
    )

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._values: dict[str, tuple[float, float]] = {}
        self._name: str | None = None

    def feed(self, line: Line) -> bool:
        if len(self._values) >= _MAX_TIMERS:
            return False
        if found := _MIN_MAX.fullmatch(line.body):
            self._values[found[1]] = (float(found[2]), float(found[3]))
        elif (found := _RANK.fullmatch(line.body)) and self._name:
            self._widen(self._name, float(found[2]))
        elif found := _MAX.fullmatch(line.body):
            self._values[found[1]] = (float(found[2]), float(found[2]))
        elif found := _NAME.fullmatch(line.body):
            self._name = found[1]
        if found:
            self.tolerates = 1
            if found[1] == _AT_START:
                self._context.coverage.process_started()  # all that a last rank says of its start
        elif self._values and _STEP in line.text:
            self.done = True  # the next lines are read together again
        return found is not None

    def _widen(self, name: str, value: float) -> None:
        low, high = self._values.get(name, (value, value))
        self._values[name] = (min(low, value), max(high, value))

    def finish(self) -> Iterable[Event]:
        if self._values:
            line = self._line
            yield Timers(self._values, stamp(line.text), line.rank, self._context.file, line.number)


def _read(line: Line, context: Context) -> Iterable[Event]:
    if _OPEN.search(line.text):
        context.opened = _Report(line, context)
        return
    for found in _OLD.finditer(line.text):
        values = {name: (float(ms), float(ms)) for name, ms in _OLD_FIELD.findall(found[1])}
        yield Timers(values, stamp(line.text), line.rank, context.file, line.number)


def _read_straggler(line: Line, context: Context) -> Iterable[Event]:
    measures: dict[str, tuple[float, int]] = {}
    for name, text, rank in _STRAGGLER.findall(line.text):
        value = number(text)
        if value is not None:
            measures[name] = (value, int(rank))
    if measures:
        yield Straggler(measures, stamp(line.text), line.rank, context.file, line.number)


RECOGNISER = Recogniser((r"across ranks \(ms\):", r"time \(ms\) \|"), _read)
STRAGGLER = Recogniser((r"Rtt/Rnk",), _read_straggler)
