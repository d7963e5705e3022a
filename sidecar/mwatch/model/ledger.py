# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a job went, over all its attempts. The parts add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Spent(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    LOADING = "loading"
    FIRST_STEP = "first_step"
    TRAINING = "training"
    """The only good part: iterations that were done for the first time, at usual speed."""
    SAVING = "saving"
    EVALUATING = "evaluating"
    HANG_UNDETECTED = "hang_undetected"
    DETECTING = "detecting"
    WAITING_TO_ACT = "waiting_to_act"
    RESTARTING = "restarting"
    RECOMPUTED = "recomputed"
    SLOW = "slow"
    IDLE = "idle"
    """Nobody can tell: between attempts, or a gap that nothing explains."""


def _nothing() -> dict[Spent, float]:
    return dict.fromkeys(Spent, 0.0)


@dataclass(slots=True)
class Ledger:
    seconds: dict[Spent, float] = field(default_factory=_nothing)
    started_at: float | None = None
    settled_at: float | None = None
    """Time up to here is in `seconds`; later time is still open."""
    gpu_seconds: dict[Spent, float] = field(default_factory=_nothing)
    """Weighted by the world size that was known then; 1 while unknown."""

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """Share of wall time that was good; None before any time has passed."""
        wall = self.wall_seconds
        return self.seconds[Spent.TRAINING] / wall if wall > 0 else None
