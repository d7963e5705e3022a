# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one decision about an attempt, and the record of earlier actions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from mwatch.model.cause import Cause
from mwatch.model.finding import Finding

MAX_ACTS = 256


class Action(StrEnum):
    NONE = "none"
    RESTART = "restart"
    STOP = "stop"


CHOSEN_BY_TRAINER = (
    "mwatch knows no checkpoint of this run, so the trainer picks one, as at any start"
)
"""The reason if no checkpoint is known: the trainer loads the one in its tracker file, if any."""


def describe_action(action: Action, resume_from: int | None, why: str = "") -> str:
    """Return the action as an infinitive: `restart from checkpoint 40`.

    `why`: the reason for that checkpoint.
    """
    if action is Action.NONE:
        return "do nothing"
    if action is Action.STOP:
        return "stop the job"
    return f"restart {describe_start(resume_from, why)}"


def describe_start(resume_from: int | None, why: str = "") -> str:
    if resume_from is not None:
        return f"from checkpoint {resume_from}"
    if why == CHOSEN_BY_TRAINER:
        return "from the checkpoint that the trainer picks"
    return "from the beginning"


@dataclass(frozen=True, slots=True)
class Witness:
    """An observation for or against an action."""

    name: str
    agrees: bool
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """An action to be taken at `act_at`, which may be withdrawn before then.

    NONE with a finding: no action, for the reason in `reason`.
    """

    action: Action
    cause: Cause
    attempt: int
    reason: str
    resume_from: int | None = None  # iteration of the checkpoint; None: from the beginning, or none
    resume_reason: str = ""
    act_at: float | None = None
    finding: Finding | None = None
    witnesses: tuple[Witness, ...] = ()
    quarantine_from: int | None = None  # checkpoints from this iteration on are not to be trusted
    avoid_node: bool = False
    spends_budget: bool = True
    proposal: str | None = None  # for a person, such as a flag to add
    is_advice: bool = False  # for a person: mwatch itself does not act on a log alone


@dataclass(frozen=True, slots=True)
class Act:
    """An action that was carried out or, when only observing, would have been."""

    at: float
    attempt: int
    action: Action
    cause: Cause
    fingerprint: str = ""
    resume_from: int | None = None
    iteration: int | None = None  # the furthest iteration of the attempt
    spends_budget: bool = True
    first_bad: int | None = None
    """The first iteration with bad numbers, for a rollback; None: not a rollback."""
    quarantine_from: int | None = None


@dataclass(slots=True)
class DecisionRecord:
    """Actions across attempts, kept in the controller's ledger."""

    acts: deque[Act] = field(default_factory=lambda: deque(maxlen=MAX_ACTS))

    def of_attempt(self, attempt: int) -> Act | None:
        return next((act for act in self.acts if act.attempt == attempt), None)
