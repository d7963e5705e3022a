# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The current line of history, and which checkpoints belong to it.

After a rollback from 600 to 400 the old 500 and 600 are on an abandoned line: they are complete,
and must never be loaded again. A new 500 after the rollback is good, so checkpoints are
distinguished by the time they were written. Kept as `<save>/.mwatch/timeline.json`. A rollback
without mwatch, or a copy with new times, is not noticed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

MAX_ROLLBACKS = 64
MAX_ATTEMPTS = 64


class CheckpointStanding(StrEnum):
    GOOD = "good"  # on the current line, without a bad sign
    SUSPECT = "suspect"  # written at or after the first bad sign, with no rollback yet
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


class Rollback(Struct, frozen=True, omit_defaults=True):
    at: float
    to_iteration: int  # 0: from the beginning
    first_bad: int | None  # the first iteration with a bad sign; None: requested by a person
    reason: str
    marked: tuple[tuple[int, float], ...] = ()
    """Iteration and time of checkpoints that existed then: the storage clock may be ahead, and a
    checkpoint written just before would look newer than the rollback."""

    def abandons(self, iteration: int, written_at: float | None) -> bool:
        if iteration <= self.to_iteration:
            return False
        seen = [at for number, at in self.marked if number == iteration]
        return written_at is None or written_at <= max([self.at, *seen])


class BegunAttempt(NamedTuple):
    number: int
    started_at: float | None
    resumed_from: int | None


class Quarantine(Struct, frozen=True):
    """Numbers went bad at `first_bad`; later checkpoints are not to be trusted."""

    at: float
    first_bad: int
    reason: str


@dataclass(slots=True)
class Timeline:
    rollbacks: deque[Rollback] = field(default_factory=lambda: deque(maxlen=MAX_ROLLBACKS))
    attempt: int = 0  # the fencing token: number of the newest attempt
    attempts: deque[BegunAttempt] = field(default_factory=lambda: deque(maxlen=MAX_ATTEMPTS))
    quarantine: Quarantine | None = None

    def begin(self, number: int, started_at: float | None, resumed_from: int | None) -> None:
        """Record an attempt, or correct the newest one."""
        self.attempt = max(self.attempt, number)
        if self.attempts and self.attempts[-1].number == number:
            self.attempts.pop()
        self.attempts.append(BegunAttempt(number, started_at, resumed_from))

    def suspect(self, at: float, first_bad: int, reason: str) -> None:
        """Keep the earliest bad sign; only a rollback to before it clears it."""
        if self.quarantine is None or first_bad < self.quarantine.first_bad:
            self.quarantine = Quarantine(at, first_bad, reason)

    def roll_back(self, rollback: Rollback) -> None:
        if self.quarantine is not None and rollback.to_iteration < self.quarantine.first_bad:
            self.quarantine = None
        kept = bounded([*self.rollbacks, rollback])
        self.rollbacks.clear()
        self.rollbacks.extend(kept)

    def is_abandoned(self, iteration: int, written_at: float | None) -> bool:
        """A checkpoint of unknown age above a rollback's target counts as abandoned."""
        return any(rollback.abandons(iteration, written_at) for rollback in self.rollbacks)

    def is_suspect(self, iteration: int) -> bool:
        return self.quarantine is not None and iteration >= self.quarantine.first_bad

    def standing(self, iteration: int, written_at: float | None) -> CheckpointStanding:
        """Return the standing of a complete checkpoint."""
        if self.is_abandoned(iteration, written_at):
            return CheckpointStanding.ABANDONED
        return CheckpointStanding.SUSPECT if self.is_suspect(iteration) else CheckpointStanding.GOOD


def bounded(rollbacks: list[Rollback]) -> list[Rollback]:
    """Bound the list: drop the oldest that a later rollback covers, else merge the two oldest into
    one that abandons at least as much."""
    kept = list(rollbacks)
    while len(kept) > MAX_ROLLBACKS:
        oldest, rest = kept[0], kept[1:]
        is_covered = any(
            each.at >= oldest.at and each.to_iteration <= oldest.to_iteration for each in rest
        )
        if not is_covered:
            point = min(oldest.to_iteration, rest[0].to_iteration)
            rest[0] = replace(rest[0], at=max(oldest.at, rest[0].at), to_iteration=point)
        kept = rest
    return kept
