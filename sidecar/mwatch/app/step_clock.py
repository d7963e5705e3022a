# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The clock of one recorded stream, as its iteration lines tell it.

An iteration line prints the moment of its printing, so what it says is the clock. Where it goes
back by much, or jumps by a whole zone, somebody set it: that is taken out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mwatch.app.zones import QUARTER, zone_step
from mwatch.model.event import Iteration
from mwatch.model.step_lines import StepLines

STEPPED = 60.0  # what goes back by less is disorder, not another clock
_SURE = 5.0
_JUMP = QUARTER - _SURE
_TICK = 1e-3
_LONGEST = 30 * 86400.0
_WHOLE_SECONDS = len("2026-01-31T12:00:00")  # the true moment is within the second after it
_SECOND = 0.999


def took(event: Iteration) -> float:
    """Seconds that the iterations of the line took, without saves and evaluations."""
    seconds = (event.elapsed_ms or 0.0) * (event.covers or 1) / 1000.0
    return seconds if 0.0 <= seconds < _LONGEST else 0.0  # not so: NaN, or no time at all


def _took_all(lines: StepLines) -> list[float]:
    elapsed = lines.column("elapsed_ms")
    if elapsed is None:
        return [0.0] * len(lines)
    spans = [each * count / 1000.0 for each, count in zip(elapsed, lines.covers, strict=True)]
    return [seconds if 0.0 <= seconds < _LONGEST else 0.0 for seconds in spans]


@dataclass(slots=True)
class StepClock:
    last: float | None = None
    """The newest moment; None: no time is known yet."""
    shift: float = 0.0
    """Added to every stamp: what clock steps took away or added."""
    step_at: float = float("-inf")
    """Of the last iteration line."""
    steps_in_a_row: bool = False
    """The last event was an iteration line."""
    is_relative: bool = False
    """No stamp was there when the first one was needed: times count from 0."""

    def place(self, event: Iteration, stamp: float | None) -> float:
        is_whole = len(event.timestamp or "") == _WHOLE_SECONDS
        return self._tick(self._moment(took(event), stamp, is_whole=is_whole))

    def place_all(self, lines: StepLines, stamps: Sequence[float | None]) -> list[float]:
        """The moment of each line, as `place` would give them one by one."""
        spans = _took_all(lines)
        whole = [len(text) == _WHOLE_SECONDS for text in lines.stamps or [""] * len(lines)]
        is_new = self.is_relative and not self.shift
        if is_new or self.last is None or any(whole) or None in stamps:
            rows = zip(spans, stamps, whole, strict=True)
            return [self._tick(self._moment(took, at, is_whole=cut)) for took, at, cut in rows]
        return self._place_exact(spans, cast(Sequence[float], stamps), self.last)

    def _place_exact(
        self, spans: Sequence[float], stamps: Sequence[float], last: float
    ) -> list[float]:
        """Of stamps with fractions of seconds: hardly one of them needs a second thought."""
        ats = []
        shift = self.shift
        for seconds, stamp in zip(spans, stamps, strict=True):
            at = stamp + shift
            if not 0.0 <= at - last <= _JUMP:
                self.last = last
                at = self._moment(seconds, stamp, is_whole=False)
                shift = self.shift
            ats.append(at)
            last = at
            self.steps_in_a_row = True
        self._tick(last)
        return ats

    def _tick(self, at: float) -> float:
        self.last = self.step_at = at
        self.steps_in_a_row = True
        return at

    def _moment(self, seconds: float, stamp: float | None, *, is_whole: bool) -> float:
        last = self.last or 0.0
        if stamp is None:
            return last + max(seconds, _TICK)
        if self.is_relative and not self.shift:
            self.shift = last + seconds - stamp
        at = stamp + self.shift
        if is_whole:
            at = min(max(at, self.step_at + seconds), at + _SECOND)
        if at < last:
            if last - at > STEPPED:
                self.shift += last + seconds - at
                return last + seconds
            return last
        if at - last > _JUMP and self.steps_in_a_row:
            added = max(0.0, zone_step(at - last - seconds, _SURE))
            self.shift -= added
            at -= added
        return at
