# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one thing to do about an attempt, and the memory of what was done before."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from mwatch.model.finding import Cause, Finding

MAX_ACTS = 256


class Action(StrEnum):
    NONE = "none"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Witness:
    """One voice for (or against) an action."""

    name: str
    agrees: bool
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`action` is what shall be done at `act_at`; before that moment it may still be withdrawn.

    NONE with a finding: watched, but not acted on, and `reason` says why.
    """

    action: Action
    cause: Cause
    attempt: int
    reason: str
    resume_from: int | None = None
    """Iteration of the checkpoint; None: from the beginning, or nothing to resume."""
    resume_reason: str = ""
    act_at: float | None = None
    finding: Finding | None = None
    witnesses: tuple[Witness, ...] = ()
    quarantine_from: int | None = None
    """Checkpoints of this iteration and later ones are not to be trusted."""
    avoid_node: bool = False
    spends_budget: bool = True
    proposal: str | None = None  # What a person may want to do, such as a flag to add


@dataclass(frozen=True, slots=True)
class Act:
    """An action that was carried out (or, when only observing, would have been)."""

    at: float
    attempt: int
    action: Action
    cause: Cause
    fingerprint: str = ""
    resume_from: int | None = None
    iteration: int | None = None  # The furthest iteration that the attempt reached
    spends_budget: bool = True
    first_bad: int | None = None
    """Of a rollback: the iteration that the numbers were first bad at; None: no rollback."""
    quarantine_from: int | None = None


@dataclass(slots=True)
class DecisionRecord:
    """What survives attempts, and the controller: kept in its ledger."""

    acts: deque[Act] = field(default_factory=lambda: deque(maxlen=MAX_ACTS))

    def of_attempt(self, attempt: int) -> Act | None:
        return next((act for act in self.acts if act.attempt == attempt), None)
