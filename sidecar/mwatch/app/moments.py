# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When each line of a recorded log was printed, as well as the log tells.

A printed stamp counts (`stamps`). A line without one happened when the line before it did; an
iteration line as much later as its iterations took; the end of a save or an evaluation just
before the next iterations began; the start of a process when it first tells the time. A log
without any stamp gets a clock that begins at 0. Time never runs backwards within a stream: a
clock that was set back, or an hour that daylight saving added, is taken out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from mwatch.app.stamps import Stamp, Stamped, Stamps
from mwatch.app.step_clock import STEPPED, StepClock, took
from mwatch.app.zones import zone_step
from mwatch.model.event import (
    Arguments,
    Batch,
    Checkpoint,
    Event,
    Exit,
    Iteration,
    Phase,
    Validation,
)
from mwatch.model.observation import Observed
from mwatch.model.step_lines import PlacedLines, StepLines

MAX_HELD = 20_000
"""Events without a time before the first stamp; more than any start-up prints."""
Piece = Event | StepLines
Placed = Observed | PlacedLines


class Moments:
    """Of one stream. `near`: about when it was written, for stamps without a year; `anchor`:
    where to begin when it prints no stamps but other streams do; `has_steps`: False where only
    other streams print iteration lines (`loose_lines` then knows more)."""

    def __init__(
        self,
        stream: str,
        *,
        near: float | None = None,
        anchor: float | None = None,
        has_steps: bool = True,
    ) -> None:
        self._stream = stream
        self._has_steps = has_steps
        self._stamps = Stamps(near)
        self._clock = StepClock(anchor)
        self._held: list[Event] = []
        self._foreign = 0.0
        """By how much stamps of other writers are ahead: a collector that prints UTC."""

    @property
    def is_relative(self) -> bool:
        """No stamp was there when the first one was needed: times count from 0."""
        return self._clock.is_relative

    def observe(self, events: Iterable[Event]) -> list[Observed]:
        """Each event at its time; those that a later stamp may place are held back until then."""
        return cast(list[Observed], self.observe_pieces(events))

    def observe_pieces(self, pieces: Iterable[Piece]) -> list[Placed]:
        """As `observe`, of events among which there may be many lines at once."""
        pending = [*self._held, *pieces]
        stamps = self._stamps.of_all(pending)
        heads = [each.events[0] if isinstance(each, StepLines) else each for each in pending]
        firsts = [stamp[0] if isinstance(stamp, list) else stamp for stamp in stamps]
        if self._clock.last is None and not self._begin(heads, firsts):
            self._held = heads  # no line is among them: that would have been the begin
            return []
        ready = self._ready(heads, firsts)
        self._held = heads[ready:]
        limits = self._limits(heads[:ready], firsts)
        return self._place(pending[:ready], stamps, limits)

    def rest(self) -> list[Observed]:
        """The input ended: what is held back has no stamp after it."""
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
        """How many can be placed now: up to the first whose time the next stamp will tell."""
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
        if clock.is_relative and not clock.shift:
            clock.shift = last - stamp
        at = stamp + clock.shift
        if type(event) not in _OWN:
            at -= self._foreign
        if limit is not None and at > limit:
            self._foreign += zone_step(at - limit, 2 * STEPPED)
            at = limit
        return max(at, last)

    def _limits(self, events: Sequence[Event], stamps: Sequence[Stamp]) -> dict[int, float]:
        """For a stamp: the next iteration line's, after which it cannot be. For a result that
        has none: when the next iterations must have begun, for it was there by then. For the
        first words of a process: the earliest time that it names itself."""
        limits: dict[int, float] = {}
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
"""Their stamps are the trainer's own; others may be a collector's, in another zone."""


def _first_mark(events: Sequence[Event], stamps: Sequence[Stamp]) -> float | None:
    """The earliest time that the start-up names: newer releases tell theirs afterwards."""
    named: list[float] = []
    for event, stamp in zip(events, stamps, strict=True):
        if isinstance(event, Iteration):
            break
        if isinstance(event, Phase) and stamp is not None:
            named.append(stamp)
    return min(named, default=None)


def _is_start(event: Event) -> bool:
    """What a process says before it has told the time; the one before it may be long gone."""
    return isinstance(event, Arguments) or (isinstance(event, Phase) and event.name == "starting")


def _is_result(event: Event) -> bool:
    """Printed when something long was over: a save, a load, an evaluation."""
    if isinstance(event, Checkpoint):
        return event.edge != "begin"
    return isinstance(event, Validation)
