# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Findings by hand, and the log of incidents that they make: without lines and detectors."""

from __future__ import annotations

from typing import Any

from mwatch.engine.incidents import Incident, IncidentLog
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, Job

STALLED = ("stalled", Cause.HANG)
RANK_SILENT = ("rank_silent", Cause.HANG)
SLOW = ("slow", Cause.SLOW)
NO_LOSS = ("loss_missing", Cause.NAN)
BAD_NORM = ("grad_norm_bad", Cause.NAN)
KILLED = ("crashed", Cause.KILLED)
CRASH = ("crashed", Cause.CRASH)
OOM = ("crashed", Cause.OOM)
PREEMPTED = ("preempted", Cause.PREEMPTED)
DRAINED = ("drained", Cause.DRAINED)
HARDWARE = ("gpu_fault", Cause.HARDWARE)


def finding(detector: str, cause: Cause, **more: Any) -> Finding:
    usual: dict[str, Any] = {"severity": Severity.CRITICAL, "summary": f"{detector}: {cause}"}
    return Finding(detector=detector, cause=cause, **(usual | more))


def decision(about: Finding, attempt: int = 1, action: Action = Action.RESTART) -> Decision:
    return Decision(action, about.cause, attempt, "proof", 5, "the newest", None, about)


class Findings:
    """A job of which findings are told by hand; attempt 1 begins at 0."""

    def __init__(self) -> None:
        self.job = Job("run", {})
        self.job.attempt = Attempt(1, 0.0)
        self.log = IncidentLog()

    @property
    def incidents(self) -> list[Incident]:
        return list(self.log.kept)

    @property
    def counts(self) -> dict[str, int]:
        """By `cause/action`."""
        return {f"{cause}/{action}": n for (cause, action), n in self.log.over.items()}

    def at(
        self,
        moment: float,
        *found: tuple[str, Cause],
        decides: tuple[str, Cause] | None = None,
        **more: Any,
    ) -> Decision:
        """All that is found at `moment`; `decides`: what a restart is decided for."""
        self.job.now = moment
        findings = [finding(*each, **more) for each in found]
        number = self.job.attempt.number
        made = Decision(Action.NONE, Cause.UNKNOWN, number, "nothing to do")
        if decides is not None:
            made = decision(finding(*decides), number)
        self.log.update(self.job, findings, made)
        return made

    def acts(self, on: tuple[str, Cause], *, is_carried_out: bool = True) -> None:
        made = decision(finding(*on), self.job.attempt.number)
        self.log.acted(made, self.job.now, is_carried_out=is_carried_out, reached=None)

    def progresses(self, iteration: int) -> None:
        attempt = self.job.attempt
        attempt.iteration, attempt.progress_at = iteration, self.job.now
        if self.log.awaits_progress:
            self.log.progressed(attempt, self.job.now)

    def restarts(self, moment: float) -> None:
        self.job.now = moment
        self.job.past.append(self.job.attempt)
        number = self.job.attempt.number + 1
        self.job.attempt = Attempt(number, moment, progress_at=moment)
        self.log.end_attempt(self.job)
