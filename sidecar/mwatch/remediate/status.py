# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller's hands are doing to one job, in values that no longer change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Doing(StrEnum):
    NOTHING = "nothing"
    HELD = "held"
    """Something is due, and `held_by` keeps it back."""
    EVIDENCE = "evidence"
    """It is being saved; nothing has been changed yet."""
    RESTARTING = "restarting"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    """The old gang is gone; the new attempt does not train yet."""


class HeldBy(StrEnum):
    """What keeps a due action back; the refusals of a plan have words of their own (`Why`)."""

    OBSERVE = "observe"
    PAUSE = "pause"
    HALT = "halt"
    SWITCH = "switch"
    MAINTENANCE = "maintenance"
    COMMON_CAUSE = "common_cause"
    BREAKER = "breaker"
    NOT_LEADER = "not_leader"
    STALE_SIGHT = "stale_sight"
    LEDGER = "ledger"
    CLUSTER = "cluster"
    PODS = "pods"
    """New pods take the place of lost ones, and their wrappers have not come to the desk yet."""
    TOKEN = "token"
    """The job's token is being made: without it there is no evidence."""


@dataclass(frozen=True, slots=True)
class RemediationStatus:
    doing: Doing = Doing.NOTHING
    text: str = ""
    """One line for people."""
    since: float | None = None
    action: str = ""
    """`restart` or `stop`: under way, or kept back."""
    held_by: str = ""
    """A word of HeldBy, or of a plan's refusal."""
    incident: str = ""
    way: str = ""
    """How: in-place, delete-pods, suspend-resume, fail-one."""
    queue_place: int | None = None
    """From 1 on, where the breaker keeps it back."""
    shared: str = ""
    """What the jobs of a common cause have in common."""
    paused_until: float | None = None
    is_paused: bool = False
    pause_text: str = ""
    """Who and why."""
    next_attempt: int | None = None
    """The number that wrappers are given."""
    resume_from: int | None = None
    not_before: float | None = None
    last: str = ""
    """What was done last, or would have been."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "doing": self.doing.value}
