# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the wrappers of a job are told about its next attempt, and what a person has asked for.

Both are in the ledger: a controller that starts gives the same answer as the one before it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from mwatch.model.timeline import Quarantine, Rollback

MAX_TEXT = 300
MAX_ROLLBACKS = 16


class NextStart(Struct, frozen=True):
    attempt: int  # Larger than any before it: the fencing token
    resume_from: int | None = None
    from_beginning: bool = False  # With no checkpoint: whatever lies there is not to be used
    reason: str = ""
    has_choice: bool = True  # False: the wrappers choose by their own rule
    rollbacks: tuple[Rollback, ...] = ()
    quarantine: Quarantine | None = None
    not_before: float | None = None  # Seconds since 1970; known once the restart is RELEASED

    def document(self, now: float) -> dict[str, Any]:
        """Of a restart that is RELEASED, in the shape that the wrapper reads
        (`mwatch_trainer.attempt.order`)."""
        left = max(0.0, (self.not_before or 0.0) - now)
        choice = {"resume_from": self.resume_from, "from_beginning": self.from_beginning}
        return {
            "attempt": self.attempt,
            **(choice if self.has_choice else {}),
            "not_before": self.not_before,
            "in_seconds": left,
            "reason": self.reason,
            "rollbacks": to_builtins(_without_marks(self.rollbacks)),
            "quarantine": to_builtins(self.quarantine),
        }


class RestartRequest(Struct, frozen=True):
    """A restart that a person wants."""

    id: str
    at: float
    who: str
    why: str
    resume_from: int | None = None


def shortened(start: NextStart) -> NextStart:
    """Return the start with texts and rollbacks bounded, as the ledger holds it."""
    rollbacks = _without_marks(start.rollbacks[-MAX_ROLLBACKS:])
    return replace(start, reason=start.reason[:MAX_TEXT], rollbacks=rollbacks)


def _without_marks(rollbacks: tuple[Rollback, ...]) -> tuple[Rollback, ...]:
    """Drop the marks: the wrapper makes its own, from the checkpoints that it finds."""
    return tuple(replace(each, reason=each.reason[:MAX_TEXT], marked=()) for each in rollbacks)
