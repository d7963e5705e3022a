# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the wrappers of a job are told about its next attempt, and what a person has asked for.

Both are in the ledger: a controller that starts gives the same answer as the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mwatch.model.timeline import Quarantine, Rollback

MAX_TEXT = 300
MAX_ROLLBACKS = 16


class NextStart(NamedTuple):
    attempt: int
    """Larger than any before it: the fencing token."""
    resume_from: int | None
    from_beginning: bool
    """With no checkpoint: whatever lies there is not to be used."""
    reason: str
    has_choice: bool = True
    """False: the wrappers choose by their own rule."""
    rollbacks: tuple[Rollback, ...] = ()
    quarantine: Quarantine | None = None
    not_before: float | None = None
    """Seconds since 1970; known once the restart is RELEASED."""

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
            "rollbacks": [_rollback_json(each) for each in self.rollbacks],
            "quarantine": None if self.quarantine is None else self.quarantine._asdict(),
        }


class RestartRequest(NamedTuple):
    """A restart that a person wants."""

    id: str
    at: float
    who: str
    why: str
    resume_from: int | None = None


def start_json(start: NextStart) -> dict[str, Any]:
    return {
        **start._asdict(),
        "reason": start.reason[:MAX_TEXT],
        "rollbacks": [_rollback_json(each) for each in start.rollbacks[-MAX_ROLLBACKS:]],
        "quarantine": None if start.quarantine is None else start.quarantine._asdict(),
    }


def start_of(body: Mapping[str, Any]) -> NextStart:
    """KeyError, TypeError or ValueError where it is none."""
    kept, moment = body.get("quarantine"), body.get("not_before")
    return NextStart(
        attempt=int(body["attempt"]),
        resume_from=body.get("resume_from"),
        from_beginning=bool(body.get("from_beginning")),
        reason=str(body.get("reason", "")),
        has_choice=bool(body.get("has_choice", True)),
        rollbacks=tuple(_rollback(each) for each in body.get("rollbacks", ())),
        quarantine=None
        if kept is None
        else Quarantine(float(kept["at"]), int(kept["first_bad"]), str(kept["reason"])),
        not_before=None if moment is None else float(moment),
    )


def request_of(body: Mapping[str, Any]) -> RestartRequest:
    resume_from = body.get("resume_from")
    return RestartRequest(
        str(body["id"]), float(body["at"]), str(body["who"]), str(body["why"]),
        None if resume_from is None else int(resume_from),
    )  # fmt: skip


def _rollback_json(rollback: Rollback) -> dict[str, Any]:
    """Without its marks: the wrapper makes those, from what it sees there."""
    found = rollback._asdict()
    del found["marked"]
    return {**found, "reason": rollback.reason[:MAX_TEXT]}


def _rollback(body: Mapping[str, Any]) -> Rollback:
    return Rollback(
        float(body["at"]), int(body["to_iteration"]), body.get("first_bad"), str(body["reason"])
    )
