# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The line of history that is being continued, and which checkpoints belong to it.

After a rollback from 600 to 400 the old 500 and 600 are of an abandoned line: they are there,
complete, and never to be loaded again. A new 500 written after the rollback is another matter,
so a checkpoint is told apart by when it was written. Kept as `<save>/.mwatch/timeline.json`.
It cannot know of a rollback that was done without mwatch, nor see through a copy that has new
times.
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
    GOOD = "good"  # On the line that is being continued, and nothing is said against it
    SUSPECT = "suspect"  # Written at or after the first bad sign, and no rollback has been done yet
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


class Rollback(Struct, frozen=True, omit_defaults=True):
    at: float
    to_iteration: int  # 0: back to the beginning
    first_bad: int | None
    """The iteration that the bad sign was first seen at; None: a person's wish."""
    reason: str
    marked: tuple[tuple[int, float], ...] = ()
    """Iteration and time of checkpoints that lay there then: the clock of the storage may be
    ahead of ours, and what was written just before would look as if it came after."""

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
    """Numbers went bad at `first_bad`; what was written from there on is not to be trusted."""

    at: float
    first_bad: int
    reason: str


@dataclass(slots=True)
class Timeline:
    rollbacks: deque[Rollback] = field(default_factory=lambda: deque(maxlen=MAX_ROLLBACKS))
    attempt: int = 0  # The fencing token: the number of the newest attempt
    attempts: deque[BegunAttempt] = field(default_factory=lambda: deque(maxlen=MAX_ATTEMPTS))
    quarantine: Quarantine | None = None

    def begin(self, number: int, started_at: float | None, resumed_from: int | None) -> None:
        """An attempt begins, or is now known better."""
        self.attempt = max(self.attempt, number)
        if self.attempts and self.attempts[-1].number == number:
            self.attempts.pop()
        self.attempts.append(BegunAttempt(number, started_at, resumed_from))

    def suspect(self, at: float, first_bad: int, reason: str) -> None:
        """The earliest bad sign counts; only a rollback behind it takes it away."""
        if self.quarantine is None or first_bad < self.quarantine.first_bad:
            self.quarantine = Quarantine(at, first_bad, reason)

    def roll_back(self, rollback: Rollback) -> None:
        if self.quarantine is not None and rollback.to_iteration < self.quarantine.first_bad:
            self.quarantine = None
        kept = bounded([*self.rollbacks, rollback])
        self.rollbacks.clear()
        self.rollbacks.extend(kept)

    def is_abandoned(self, iteration: int, written_at: float | None) -> bool:
        """A checkpoint of unknown age above a rollback's point counts as abandoned."""
        return any(rollback.abandons(iteration, written_at) for rollback in self.rollbacks)

    def is_suspect(self, iteration: int) -> bool:
        return self.quarantine is not None and iteration >= self.quarantine.first_bad

    def standing(self, iteration: int, written_at: float | None) -> CheckpointStanding:
        """Of a checkpoint that is complete."""
        if self.is_abandoned(iteration, written_at):
            return CheckpointStanding.ABANDONED
        return CheckpointStanding.SUSPECT if self.is_suspect(iteration) else CheckpointStanding.GOOD


def bounded(rollbacks: list[Rollback]) -> list[Rollback]:
    """The oldest give way: first those that a later one goes behind, then two become one that
    abandons all that both did, and perhaps more."""
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
