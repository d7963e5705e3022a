# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How long things take in this job, learnt from the job itself.

Kept as JSON beside the checkpoints, under the key of the layout. Bounded: a few dozen newest
durations of each kind. A deadline is a robust quantile times a factor, between a floor and a
ceiling; before there is data it is a documented default.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mwatch.model.phase import Slot
from mwatch.model.settings import DeadlineSettings, Settings
from mwatch.stats import median, quantile

MAX_DURATIONS = 64
MAX_STEPS = 512


def _durations() -> dict[Slot, deque[float]]:
    return {slot: deque(maxlen=MAX_DURATIONS) for slot in Slot}


@dataclass(slots=True)
class Calibration:
    key: str = ""
    durations: dict[Slot, deque[float]] = field(default_factory=_durations)
    """Seconds that each finished phase took; TRAINING: seconds between iteration lines."""
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    """Seconds of one step, without first steps of a process."""
    recomputed: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    """Seconds that each resume spent on iterations that had been done before."""

    def learn(self, slot: Slot, seconds: float) -> None:
        if seconds >= 0:
            self.durations[slot].append(seconds)

    def step_median(self) -> float | None:
        return median(self.steps) if self.steps else None

    def step_p99(self) -> float | None:
        return quantile(self.steps, 0.99) if self.steps else None

    def deadline(self, slot: Slot, settings: Settings) -> float:
        """Seconds after which this phase counts as stalled."""
        rule: DeadlineSettings = settings.deadlines.of(slot)
        seen = self.durations[slot]
        if not seen:
            return rule.default_seconds
        learnt = quantile(seen, settings.deadlines.quantile) * rule.factor
        return min(max(learnt, rule.floor_seconds), rule.ceiling_seconds)

    def restart_cost(self, settings: Settings) -> float:
        """Seconds that a restart of this job costs: start, load, first step, recomputed steps."""
        slots = (Slot.STARTING, Slot.LOADING, Slot.FIRST_STEP)
        known = [median(self.durations[slot]) for slot in slots if self.durations[slot]]
        if not known:
            return settings.act.default_restart_cost_seconds
        again = median(self.recomputed) if self.recomputed else 0.0
        return max(sum(known) + again, settings.act.min_restart_cost_seconds)
