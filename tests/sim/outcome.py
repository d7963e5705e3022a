# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What became of one run, held against its truth. Plain values: it travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from mwatch.model.cause import Cause
from mwatch.model.decision import Action


@dataclass(slots=True)
class Case:
    """One fault that struck, and what was made of it."""

    kind: str
    variant: str
    phase: str
    at: float
    cause: Cause
    """The truth."""
    accepted: frozenset[Cause]
    verdict: Cause = Cause.HEALTHY
    detected_after: float | None = None
    """Until the first finding that is true."""
    noticed_after: float | None = None
    """Until the first new finding of any kind."""
    bound: float | None = None
    """Seconds within which it had to be detected, where there is a promise."""
    sees_by: str = "log"
    """`probe`, or the log alone."""
    may_be_acted_on: bool = False
    """A hang with an independent witness, where what is decided is carried out."""
    acted_after: float | None = None
    action: Action | None = None
    culprit: int | None = None
    """The rank to blame, where there is one."""
    blamed: int | None = None
    """The rank that was blamed."""

    @property
    def is_fault(self) -> bool:
        return self.cause is not Cause.HEALTHY

    @property
    def is_missed(self) -> bool:
        """Nobody would have known."""
        is_told = self.noticed_after is not None or self.verdict in self.accepted
        return self.is_fault and not is_told

    @property
    def is_wrong(self) -> bool:
        """Something was said, and it was not true."""
        is_told = self.noticed_after is not None
        return self.is_fault and is_told and self.verdict not in self.accepted

    @property
    def blames_wrongly(self) -> bool:
        return self.culprit is not None and self.blamed not in (None, self.culprit)

    @property
    def is_late(self) -> bool:
        after, bound = self.detected_after, self.bound
        return bound is not None and after is not None and after > bound


@dataclass(slots=True)
class Outcome:
    seed: int
    scenario: str
    is_healthy: bool
    seconds: float = 0.0
    cases: list[Case] = field(default_factory=list)
    last_verdict: Cause = Cause.HEALTHY
    """Of a run in which nothing struck: the final one."""
    false_kills: list[str] = field(default_factory=list)
    wrong_checkpoints: list[str] = field(default_factory=list)
    wrong_actions: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    """Causes of critical findings while all was well."""
    older_checkpoints: int = 0
    """Restarts from an older checkpoint than was needed."""
    restarts: int = 0
    gpu_waiting: float = 0.0
    gpu_acting: float = 0.0
    goodput_error: float | None = None
    """Share of wall time by which the ledger is off."""
    crash: str | None = None
    """The engine itself failed."""
