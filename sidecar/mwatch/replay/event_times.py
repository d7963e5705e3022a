# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Assign a time to each line of a recorded log.

A printed timestamp is used as it is. A line without one gets the time of the line before it, with
these exceptions: an iteration line is later by the duration of its iterations; the end of a save or
an evaluation is just before the next iterations began; the start of a process is the first time it
prints. A log without any timestamp gets a clock that starts at 0. Time never runs backwards within
a stream: a clock that was set back, or the extra hour of daylight saving, is compensated.

`place` does the same for pods that print no iteration lines. Up to core_v0.15, rank 0 prints
checkpoint lines without a time, hours after its last timestamp. Alone they show only an order.
Together with the pod that prints iteration lines they show more: a save at iteration N begins when
N is done and ends before the next iterations begin. Any other line without a time happened no later
than just before the pod's next timestamp, and the last lines of a pod no later than the time when
the other pods fell silent.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple, cast

from mwatch.model.event import (
    Arguments,
    Batch,
    Checkpoint,
    Error,
    Event,
    Exit,
    Iteration,
    Phase,
    StepLines,
    Validation,
)
from mwatch.model.observation import Observed
from mwatch.model.step import PlacedLines
from mwatch.replay.timestamps import (
    STEPPED,
    Stamp,
    Stamped,
    Stamps,
    StepClock,
    is_stamped,
    took,
    zone_step,
)

MAX_HELD = 20_000
"""Events without a time that are held before the first timestamp; no start-up prints as many."""
_LATE_SECONDS = 5.0
"""Delay after which an exit would be acted on without the traceback that explains it."""
Piece = Event | StepLines
Placed = Observed | PlacedLines


def _first_line(piece: Piece) -> int:
    return piece.numbers[0] if isinstance(piece, StepLines) else piece.line


class EventTimestamper:
    """Assigns times to the events of one stream.

    `near`: approximate time of writing, for timestamps without a year; `anchor`: start time if this
    stream has no timestamps but others do; `has_steps`: False if only other streams print iteration
    lines, which `place` handles.
    """

    def __init__(
        self,
        stream: str,
        *,
        near: float | None = None,
        latest: float = math.inf,
        anchor: float | None = None,
        has_steps: bool = True,
    ) -> None:
        self._stream = stream
        self._has_steps = has_steps
        self._stamps = Stamps(near, latest)
        self._clock = StepClock(anchor)
        self._held: list[Event] = []
        self._foreign = 0.0
        """Seconds by which timestamps of other writers are ahead, e.g. a collector printing UTC."""

    @property
    def is_relative(self) -> bool:
        """No timestamp was found early enough, so times count from 0."""
        return self._clock.is_relative

    @property
    def shift(self) -> float:
        """Seconds added to every timestamp to compensate for steps of the clock."""
        return self._clock.shift

    @property
    def _is_unanchored(self) -> bool:
        """The clock started at 0, and no timestamp has been placed on it yet."""
        return self._clock.is_relative and not self._clock.shift

    def observe(self, events: Iterable[Event]) -> list[Observed]:
        """Return events with their times; hold back those that a later timestamp may place."""
        return cast(list[Observed], self.observe_pieces(events))

    def observe_pieces(self, pieces: Iterable[Piece]) -> list[Placed]:
        """Like `observe`, for events and batches of lines."""
        pending = [*self._held, *pieces]
        stamps = self._stamps.of_all(pending)
        heads = [each.event(0) if isinstance(each, StepLines) else each for each in pending]
        firsts = [stamp[0] if isinstance(stamp, list) else stamp for stamp in stamps]
        if self._clock.last is None and not self._begin(heads, firsts):
            self._held = heads  # no iteration line is among them, or the clock would have begun
            return []
        ready = self._ready(heads, firsts)
        self._held = heads[ready:]
        limits = self._limits(heads[:ready], firsts)
        return self._place(pending[:ready], stamps, limits)

    def with_blocks(self, pieces: Sequence[Piece], closed: Sequence[Event]) -> list[Piece]:
        """Merge in the events of blocks that were closed by the end of the file.

        They come last, as in a live log, except that an event goes where its block ended if the
        lines below the block were printed much later.
        """
        if not closed:
            return list(pieces)
        lines = [_first_line(each) for each in pieces]
        last = [
            each[-1] if isinstance(each, list) else each for each in self._stamps.of_all(pieces)
        ]
        stamps = [-math.inf if each is None else each for each in last]
        above = list(accumulate(stamps, max, initial=-math.inf))
        below = list(accumulate(reversed(stamps), max, initial=-math.inf))[::-1]
        placed: dict[int, list[Piece]] = {}
        for event in closed:
            end = (event.error_line if isinstance(event, Error) else None) or event.line
            cut = bisect_right(lines, end)
            is_late = math.isfinite(above[cut]) and below[cut] - above[cut] > _LATE_SECONDS
            placed.setdefault(cut if is_late else len(pieces), []).append(event)
        whole: list[Piece] = []
        for index, each in enumerate(pieces):
            whole += [*placed.get(index, ()), each]
        return whole + placed.get(len(pieces), [])

    def rest(self) -> list[Observed]:
        """Return the events still held back at the end of the input."""
        held, self._held = self._held, []
        if held and self._clock.last is None:
            self._start_at_zero()
        stamps = self._stamps.of_all(held)
        limits = self._limits(held, cast(list[Stamp], stamps))
        return cast(list[Observed], self._place(held, stamps, limits))

    def _begin(self, events: Sequence[Event], stamps: Sequence[Stamp]) -> bool:
        for event, stamp in zip(events, stamps, strict=True):
            if stamp is not None:
                self._clock.last = min(stamp, _first_mark(events, stamps) or stamp)
                return True
            if isinstance(event, Iteration):
                break
        else:
            if len(events) < MAX_HELD:
                return False
        self._start_at_zero()
        return True

    def _start_at_zero(self) -> None:
        self._clock.last, self._clock.is_relative = 0.0, True

    def _ready(self, events: Sequence[Event], stamps: Sequence[Stamp]) -> int:
        """Count the events that can be placed now: those before the first that needs the next
        timestamp."""
        if not self._has_steps:
            return len(events)
        for index in range(len(events) - 1, -1, -1):
            if stamps[index] is not None or isinstance(events[index], Iteration):
                index += 1
                break
        else:
            index = 0
        if len(events) - index > MAX_HELD:
            return len(events)
        waiting = (
            place
            for place in range(index, len(events))
            if _is_result(events[place]) or _is_start(events[place])
        )
        return next(waiting, len(events))

    def _place(
        self, pieces: Sequence[Piece], stamps: Sequence[Stamped], limits: Mapping[int, float]
    ) -> list[Placed]:
        clock, stream = self._clock, self._stream
        placed: list[Placed] = []
        for index, piece in enumerate(pieces):
            stamp = stamps[index]
            if isinstance(piece, StepLines):
                each = stamp if isinstance(stamp, list) else [stamp] * len(piece)
                placed.append(PlacedLines(stream, clock.place_all(piece, each), piece))
                continue
            assert not isinstance(stamp, list)
            if isinstance(piece, Iteration):
                at = clock.place(piece, stamp)
            else:
                at = clock.last = self._other(piece, stamp, limits.get(index))
                clock.steps_in_a_row = False
            placed.append(Observed(at, stream, piece))
        return placed

    def _other(self, event: Event, stamp: Stamp, limit: float | None) -> float:
        clock = self._clock
        last = clock.last or 0.0
        if stamp is None:
            return last if limit is None else max(limit, last)
        if self._is_unanchored:
            clock.shift = last - stamp
        at = stamp + clock.shift
        if type(event) not in _OWN:
            at -= self._foreign
        if limit is not None and at > limit:
            self._foreign += zone_step(at - limit, 2 * STEPPED)
            at = limit
        return max(at, last)

    def _limits(self, events: Sequence[Event], stamps: Sequence[Stamp]) -> dict[int, float]:
        """Return time limits by index.

        For a timestamp: that of the next iteration line, which it cannot exceed. For a result
        without a timestamp: when the next iterations must have begun. For the first lines of a
        process: the earliest time that the process prints.
        """
        limits: dict[int, float] = {}
        if self._is_unanchored:
            return limits
        next_step: float | None = None
        begun: float | None = None
        started: float | None = None
        for index in range(len(events) - 1, -1, -1):
            event, stamp = events[index], stamps[index]
            at = None if stamp is None else stamp + self._clock.shift
            if isinstance(event, Iteration):
                next_step = at
                begun = None if at is None else at - took(event)
                started = None
            elif at is not None:
                begun = at if next_step is None else min(at, next_step)
                if next_step is not None:
                    limits[index] = next_step
                if isinstance(event, Phase):
                    started = at if started is None else min(at, started)
            elif self._has_steps:
                limit = begun if _is_result(event) else started if _is_start(event) else None
                if limit is not None:
                    limits[index] = limit
        return limits


_OWN = frozenset({Iteration, Batch, Phase, Exit})
"""Events timestamped by the trainer; other timestamps may be a collector's, in another zone."""


def _first_mark(events: Sequence[Event], stamps: Sequence[Stamp]) -> float | None:
    """Return the earliest time in the start-up lines; newer releases print it after them."""
    named: list[float] = []
    for event, stamp in zip(events, stamps, strict=True):
        if isinstance(event, Iteration):
            break
        if isinstance(event, Phase) and stamp is not None:
            named.append(stamp)
    return min(named, default=None)


def _is_start(event: Event) -> bool:
    """Whether the line precedes the first timestamp of a process.

    The previous process may have ended long before.
    """
    return isinstance(event, Arguments) or (isinstance(event, Phase) and event.name == "starting")


def _is_result(event: Event) -> bool:
    """Whether the line ends something long: a save, a load, an evaluation or the training."""
    if isinstance(event, Checkpoint):
        return event.edge != "begin"
    if isinstance(event, Phase):
        return (event.name, event.edge) == ("training", "end")
    return isinstance(event, Validation)


MAX_WAITING = 20_000
"""Lines held for one pod; beyond that the oldest are released."""
_NEVER = float("inf")


class _Save(NamedTuple):
    iteration: int
    begins: bool
    observed: Observed


def place(merged: Iterable[Observed], ends: Mapping[str, float | None]) -> Iterator[Observed]:
    """Place the lines of pods that print no iteration lines.

    `ends`: those pods, each with the time when the other pods of its attempt fell silent; None: at
    the end of the recording.
    """
    waiting = _Waiting(ends)
    for observed in merged:
        at, stream, what = observed
        if at > waiting.next_end:
            yield from waiting.ended(at)
        if isinstance(what, Iteration):
            yield from waiting.over_before(observed, what)
            yield observed
            yield from waiting.done(at, what.iteration)
        elif stream in ends and not is_stamped(what):
            yield from waiting.add(observed)
        else:
            yield from waiting.flush(stream, at)
            if isinstance(what, Phase) and what.name == "starting":
                waiting.iteration = 0  # a new attempt begins
            yield observed
    yield from waiting.rest()


class _Waiting:
    """Lines whose time is not known yet, by pod and in order; saves are kept separately."""

    def __init__(self, ends: Mapping[str, float | None]) -> None:
        self._ends = ends
        self._saves: dict[str, deque[_Save]] = {}
        self._others: dict[str, deque[Observed]] = {}
        self._at = 0.0
        self.iteration = 0
        """The last iteration known to be done in this attempt."""
        self.next_end = _NEVER

    def add(self, observed: Observed) -> Iterator[Observed]:
        self._at = max(self._at, observed.at)
        name, what = observed.stream, observed.what
        if isinstance(what, Checkpoint) and what.op == "save" and what.iteration is not None:
            saves = self._saves.setdefault(name, deque())
            saves.append(_Save(what.iteration, what.edge in ("begin", "mark"), observed))
            if len(saves) > MAX_WAITING:
                yield self._now(saves.popleft().observed)
            yield from self._begun()
        else:
            others = self._others.setdefault(name, deque())
            others.append(observed)
            if len(others) > MAX_WAITING:
                yield self._now(others.popleft())
        self.next_end = min(self.next_end, self._end(name))

    def done(self, at: float, iteration: int) -> Iterator[Observed]:
        self._at, self.iteration = max(self._at, at), iteration
        yield from self._begun()

    def over_before(self, observed: Observed, line: Iteration) -> Iterator[Observed]:
        """Release the saves that ended before these iterations began."""
        if self._saves:
            self._at = max(self._at, observed.at - took(line))
            self.iteration = max(self.iteration, line.iteration - (line.covers or 1))
            yield from self._release(lambda saves: len(saves))

    def ended(self, at: float) -> Iterator[Observed]:
        for name in [name for name in self._names() if self._end(name) < at]:
            yield from self.flush(name, max(self._at, self._end(name)))

    def flush(self, stream: str, at: float) -> Iterator[Observed]:
        """Release all lines of a pod: nothing more will be learnt about their times."""
        self._at = max(self._at, at)
        saves, others = self._saves.pop(stream, None), self._others.pop(stream, None)
        if saves or others:
            yield from (self._now(save.observed) for save in saves or ())
            yield from map(self._now, others or ())
            self.next_end = min(map(self._end, self._names()), default=_NEVER)

    def rest(self) -> Iterator[Observed]:
        for name in self._names():
            yield from self.flush(name, self._at)

    def _begun(self) -> Iterator[Observed]:
        """Release saves that have begun, and those before them."""
        yield from self._release(
            lambda saves: 1 + max((i for i, save in enumerate(saves) if save.begins), default=-1)
        )

    def _release(self, count: Callable[[list[_Save]], int]) -> Iterator[Observed]:
        for name, saves in list(self._saves.items()):
            done = list(takewhile(lambda save: save.iteration <= self.iteration, saves))
            for _ in range(count(done)):
                yield self._now(saves.popleft().observed)
            if not saves:
                del self._saves[name]

    def _names(self) -> list[str]:
        return [*dict.fromkeys((*self._saves, *self._others))]

    def _now(self, observed: Observed) -> Observed:
        return observed._replace(at=max(self._at, observed.at))

    def _end(self, name: str) -> float:
        end = self._ends.get(name)
        return _NEVER if end is None else end
