# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Merge the observations of all pods in the order of one clock, and estimate the clock differences
of recorded pods.

The merge is lazy and holds one observation of each stream. The order within a stream never changes,
even if its times go back. Of observations at the same time an iteration line comes first, because
whatever a pod does at an iteration follows its line.

Bounds of a clock difference: a save of iteration N begins after the line of N and ends before the
next iterations begin; the first iteration begins when rank 0 prints that it does; the same line
printed by two pods has one time. The smallest difference that keeps causes before effects is used.
The times of a pod without any of these lines are moved only by whole half hours, as for another
time zone, if both its first and its last time agree with that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple

from mwatch.model.event import Batch, Checkpoint, Iteration, Phase
from mwatch.model.observation import Observed
from mwatch.stats import quantile

_LINES = frozenset({Iteration, Batch})


class _Head:
    """The next observation of one stream."""

    __slots__ = ("_items", "_offset", "_order", "at", "key", "observed")

    def __init__(self, order: int, items: Iterator[Observed], offset: float) -> None:
        self._order = order
        self._items = items
        self._offset = offset
        self.at = -math.inf
        """Time in the sort key; it never goes back within a stream."""

    def advance(self) -> bool:
        observed = next(self._items, None)
        if observed is None:
            return False
        at = observed.at + self._offset
        if math.isnan(at):
            at = self.at
        self.at = max(self.at, at)
        self.observed = observed if at == observed.at else observed._replace(at=at)
        self.key = (self.at, type(observed.what) not in _LINES, self._order)
        return True

    def __lt__(self, other: _Head) -> bool:
        return self.key < other.key


def merge(
    streams: Mapping[str, Iterable[Observed]], offsets: Mapping[str, float]
) -> Iterator[Observed]:
    """Yield all observations in order of time; `offsets`: seconds to add to a stream's times."""
    heads = [
        _Head(order, iter(items), offsets.get(name, 0.0))
        for order, (name, items) in enumerate(streams.items())
    ]
    waiting = [head for head in heads if head.advance()]
    heapify(waiting)
    while waiting:
        first = waiting[0]
        yield first.observed
        if first.advance():
            heapreplace(waiting, first)
        else:
            heappop(waiting)


TOLERANCE_SECONDS = 2.0
MAX_OFFSET_SECONDS = 86_400.0
MAX_EVENTS = 200_000  # observations per stream: the beginning is enough
_MAX_MARKS = 4096
_MAX_SAVES = 512
_HALF_HOUR = 1800.0
_LARGE = 600.0  # a larger difference is not a wrong clock but another time zone
_ZONE_ENDS = 120.0
_STAMP = 1.0  # stamps are cut to seconds
_FIRST_STEP = 10.0  # from rank 0's line to the first step, at most
_ODD = 0.1  # share of bounds that may be of another attempt
_CONTRADICTION = 5.0


class Bounds(NamedTuple):
    """Bounds of what to add to a stream's times."""

    low: float
    high: float


@dataclass(slots=True)
class _Marks:
    """Times of one stream, by its own clock."""

    lines: dict[int, float] = field(default_factory=dict)
    begins: dict[int, float] = field(default_factory=dict)
    """When the steps of a line began, by the iteration before them."""
    starts: list[float] = field(default_factory=list)  # when the first steps of each process began
    announced: list[float] = field(default_factory=list)  # when rank 0 printed that they begin
    saves: dict[int, list[float]] = field(default_factory=dict)
    """Begin and end of synchronous saves, by iteration."""
    first: float | None = None
    last: float | None = None
    newest: int | None = None


def estimate_offsets(
    streams: Mapping[str, Iterable[Observed]], *, max_events: int = MAX_EVENTS
) -> dict[str, float]:
    """Return the seconds to add to each stream's times; 0 without evidence of a difference."""
    marks = {name: _read(islice(items, max_events)) for name, items in streams.items()}
    if len(marks) < 2:
        return dict.fromkeys(marks, 0.0)
    reference = max(marks.values(), key=lambda each: (len(each.lines), len(each.saves)))
    return {
        name: 0.0 if each is reference else _offset(reference, each) for name, each in marks.items()
    }


def _read(items: Iterable[Observed]) -> _Marks:
    marks = _Marks()
    for at, _, what in items:
        if getattr(what, "timestamp", None) is None:
            continue
        marks.first = at if marks.first is None else marks.first
        marks.last = at
        if isinstance(what, Iteration | Batch):
            _read_line(marks, at, what)
        elif isinstance(what, Checkpoint):
            _read_save(marks, at, what)
        elif isinstance(what, Phase) and what.name == "first-step":
            marks.announced += [at] if len(marks.announced) < _MAX_SAVES else []
    return marks


def _read_line(marks: _Marks, at: float, line: Iteration) -> None:
    covers = line.covers or 1
    began = at - (line.elapsed_ms or 0.0) * covers / 1000.0
    is_first = line.first_of_process or marks.newest is None or line.iteration < marks.newest
    if is_first and line.elapsed_ms and len(marks.starts) < _MAX_SAVES:
        marks.starts.append(began)
    marks.newest = line.iteration
    if len(marks.lines) < _MAX_MARKS:
        marks.lines.setdefault(line.iteration, at)
        marks.begins.setdefault(line.iteration - covers, began)


def _read_save(marks: _Marks, at: float, line: Checkpoint) -> None:
    if line.op != "save" or line.iteration is None or line.is_async:
        return
    known = marks.saves.get(line.iteration)
    if known is None and line.edge == "begin" and len(marks.saves) < _MAX_SAVES:
        marks.saves[line.iteration] = [at]
    elif known is not None and len(known) == 1 and line.edge == "end":
        known.append(at)


def _offset(reference: _Marks, other: _Marks) -> float:
    bounds = list(_all_bounds(reference, other))
    if not bounds:
        return _by_zone(reference, other)
    low = quantile((each.low for each in bounds), 1 - _ODD)
    high = quantile((each.high for each in bounds), _ODD)
    if low - high > _CONTRADICTION:
        return 0.0
    if low > high:
        low = high = (low + high) / 2
    offset = min(max(0.0, low), high)
    if abs(offset) > _LARGE:
        zone = round((low + high) / 2 / _HALF_HOUR) * _HALF_HOUR
        offset = zone if low - TOLERANCE_SECONDS <= zone <= high + TOLERANCE_SECONDS else offset
    return offset if TOLERANCE_SECONDS < abs(offset) < MAX_OFFSET_SECONDS else 0.0


def _all_bounds(reference: _Marks, other: _Marks) -> Iterator[Bounds]:
    for iteration, at in other.lines.items():
        if iteration in reference.lines:
            apart = reference.lines[iteration] - at
            yield Bounds(apart - _STAMP, apart + _STAMP)
    if len(reference.starts) == len(other.announced):
        for began, announced in zip(reference.starts, other.announced, strict=True):
            yield Bounds(began - announced - _FIRST_STEP, began - announced + _STAMP)
    for iteration, times in other.saves.items():
        line, next_begin = reference.lines.get(iteration), reference.begins.get(iteration)
        if line is not None and next_begin is not None:
            yield Bounds(line - times[0] - _STAMP, next_begin - times[-1] + _STAMP)


def _by_zone(reference: _Marks, other: _Marks) -> float:
    if None in (reference.first, reference.last, other.first, other.last):
        return 0.0
    begin = (reference.first or 0.0) - (other.first or 0.0)
    end = (reference.last or 0.0) - (other.last or 0.0)
    zone = round(begin / _HALF_HOUR) * _HALF_HOUR
    is_zone = abs(begin - zone) <= _ZONE_ENDS and abs(end - zone) <= _ZONE_ENDS
    return zone if is_zone and 0 < abs(zone) < MAX_OFFSET_SECONDS else 0.0
