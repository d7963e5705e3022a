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

from collections.abc import Iterable, Sequence

from mwatch.app.stamps import Stamps
from mwatch.app.zones import QUARTER, zone_step
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

MAX_HELD = 20_000
"""Events without a time before the first stamp; more than any start-up prints."""
_STEPPED = 60.0  # what goes back by less is disorder, not another clock
_SURE = 5.0
_TICK = 1e-3
_LONGEST = 30 * 86400.0
_WHOLE_SECONDS = len("2026-01-31T12:00:00")  # the true moment is within the second after it
_SECOND = 0.999


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
        self._last = anchor
        self._held: list[Event] = []
        self._shift = 0.0
        """Added to every stamp: what clock steps took away or added."""
        self._foreign = 0.0
        """By how much stamps of other writers are ahead: a collector that prints UTC."""
        self._step_at = float("-inf")
        self._steps_in_a_row = False
        self.is_relative = False
        """No stamp was there when the first one was needed: times count from 0."""

    def observe(self, events: Iterable[Event]) -> list[Observed]:
        """Each event at its time; those that a later stamp may place are held back until then."""
        pending = [*self._held, *events] if self._held else list(events)
        stamps = self._stamps.of_all(pending)
        if self._last is None and not self._begin(pending, stamps):
            self._held = pending
            return []
        ready = self._ready(pending, stamps)
        self._held = pending[ready:]
        return self._place(pending[:ready], stamps[:ready])

    def rest(self) -> list[Observed]:
        """The input ended: what is held back has no stamp after it."""
        held, self._held = self._held, []
        if held and self._last is None:
            self._start_at_zero()
        return self._place(held, self._stamps.of_all(held))

    def _begin(self, events: Sequence[Event], stamps: Sequence[float | None]) -> bool:
        for event, stamp in zip(events, stamps, strict=True):
            if stamp is not None:
                self._last = min(stamp, _first_mark(events, stamps) or stamp)
                return True
            if isinstance(event, Iteration):
                break
        else:
            if len(events) < MAX_HELD:
                return False
        self._start_at_zero()
        return True

    def _start_at_zero(self) -> None:
        self._last, self.is_relative = 0.0, True

    def _ready(self, events: Sequence[Event], stamps: Sequence[float | None]) -> int:
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

    def _place(self, events: Sequence[Event], stamps: Sequence[float | None]) -> list[Observed]:
        limits = self._limits(events, stamps)
        placed = []
        for index, event in enumerate(events):
            stamp = stamps[index]
            if isinstance(event, Iteration):
                at = self._step_at = self._step(event, stamp)
                self._steps_in_a_row = True
            else:
                at = self._other(event, stamp, limits.get(index))
                self._steps_in_a_row = False
            self._last = at
            placed.append(Observed(at, self._stream, event))
        return placed

    def _step(self, event: Iteration, stamp: float | None) -> float:
        """An iteration line prints the moment of its printing: what it says is the clock."""
        last = self._last or 0.0
        if stamp is None:
            return last + max(took(event), _TICK)
        if self.is_relative and not self._shift:
            self._shift = last + took(event) - stamp
        at = stamp + self._shift
        if len(event.timestamp or "") == _WHOLE_SECONDS:
            at = min(max(at, self._step_at + took(event)), at + _SECOND)
        if at < last:
            if last - at > _STEPPED:
                self._shift += last + took(event) - at
                return last + took(event)
            return last
        if at - last > QUARTER - _SURE and self._steps_in_a_row:
            added = max(0.0, zone_step(at - last - took(event), _SURE))
            self._shift -= added
            at -= added
        return at

    def _other(self, event: Event, stamp: float | None, limit: float | None) -> float:
        last = self._last or 0.0
        if stamp is None:
            return last if limit is None else max(limit, last)
        if self.is_relative and not self._shift:
            self._shift = last - stamp
        at = stamp + self._shift
        if type(event) not in _OWN:
            at -= self._foreign
        if limit is not None and at > limit:
            self._foreign += zone_step(at - limit, 2 * _STEPPED)
            at = limit
        return max(at, last)

    def _limits(self, events: Sequence[Event], stamps: Sequence[float | None]) -> dict[int, float]:
        """For a stamp: the next iteration line's, after which it cannot be. For a result that
        has none: when the next iterations must have begun, for it was there by then. For the
        first words of a process: the earliest time that it names itself."""
        limits: dict[int, float] = {}
        next_step: float | None = None
        begun: float | None = None
        started: float | None = None
        for index in range(len(events) - 1, -1, -1):
            event, stamp = events[index], stamps[index]
            at = None if stamp is None else stamp + self._shift
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


def took(event: Iteration) -> float:
    """Seconds that the iterations of the line took, without saves and evaluations."""
    seconds = (event.elapsed_ms or 0.0) * (event.covers or 1) / 1000.0
    return seconds if 0.0 <= seconds < _LONGEST else 0.0  # not so: NaN, or no time at all


def _first_mark(events: Sequence[Event], stamps: Sequence[float | None]) -> float | None:
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
