# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The order for the next attempt of a job, and a person's request for a restart.

Both are in the ledger, so a new controller gives the same answer as the one before.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from mwatch.model.timeline import Quarantine, Rollback
from mwatch_trainer.scrub.scrubber import scrub_text

MAX_TEXT = 300
MAX_ROLLBACKS = 16


class NextStart(Struct, frozen=True):
    attempt: int  # the fencing token: larger than any before
    resume_from: int | None = None
    from_beginning: bool = False  # without a checkpoint, whatever the folder holds
    reason: str = ""
    has_choice: bool = True  # False: the wrappers choose by their own rule
    rollbacks: tuple[Rollback, ...] = ()
    quarantine: Quarantine | None = None
    not_before: float | None = None  # seconds since 1970; set once the restart is RELEASED

    def document(self, now: float) -> dict[str, Any]:
        """The order as the wrapper reads it (`mwatch_trainer.attempt.order`), once RELEASED."""
        left = max(0.0, (self.not_before or 0.0) - now)
        choice = {"resume_from": self.resume_from, "from_beginning": self.from_beginning}
        return {
            "attempt": self.attempt,
            **(choice if self.has_choice else {}),
            "not_before": self.not_before,
            "in_seconds": left,
            "reason": scrub_text(self.reason),
            "rollbacks": to_builtins(_without_marks(self.rollbacks)),
            "quarantine": to_builtins(self.quarantine),
        }


class RestartRequest(Struct, frozen=True):
    id: str
    at: float
    who: str
    why: str
    resume_from: int | None = None


def shortened(start: NextStart) -> NextStart:
    """Bound texts and rollbacks, for the ledger."""
    rollbacks = _without_marks(start.rollbacks[-MAX_ROLLBACKS:])
    return replace(start, reason=scrub_text(start.reason)[:MAX_TEXT], rollbacks=rollbacks)


def _without_marks(rollbacks: tuple[Rollback, ...]) -> tuple[Rollback, ...]:
    """Drop the marks: the wrapper makes its own from the checkpoints it finds."""
    return tuple(
        replace(each, reason=scrub_text(each.reason)[:MAX_TEXT], marked=()) for each in rollbacks
    )
