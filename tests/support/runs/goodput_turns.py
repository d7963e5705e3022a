# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job for the tests of the ledger, whose turns are told one by one, as the fold tells them."""

from __future__ import annotations

from typing import Any

from mwatch.model.job import Attempt, Job, Layout
from mwatch.model.phase import JobPhase
from mwatch.model.step import Step
from mwatch.state import calibration
from mwatch.state.goodput import ledger
from support.builders.job import START, step


class Story:
    """Times are seconds since the start of the job."""

    def __init__(self, *, interval: int = 10, total: int = 10_000) -> None:
        self.job = Job("run", {})
        self.job.layout = Layout(world_size=8, log_interval=interval, total_iterations=total)
        self.interval = interval
        self.job.attempt = Attempt(1, START, phase_since=START)
        ledger.attempt_started(self.job, START)

    def enter(self, at: float, phase: JobPhase) -> Story:
        attempt = self.job.attempt
        before, attempt.phase, attempt.phase_since = attempt.phase, phase, START + at
        ledger.phase_changed(self.job, START + at, before)
        return self

    def line(self, at: float, iteration: int, seconds: float | None = 1.0, **more: Any) -> Story:
        attempt, new = self.job.attempt, more.pop("new", min(self.interval, 10))
        more = {"covers": new, "new": new} | more
        said: Step = step(iteration, at=START + at, seconds=seconds, **more)
        attempt.steps.append(said)
        if attempt.first_iteration is None:
            attempt.first_iteration = said.first_covered
        if attempt.phase is not JobPhase.TRAINING:
            self.enter(at, JobPhase.TRAINING)
        calibration.step_reported(self.job, said)
        ledger.step_reported(self.job, said)
        attempt.iteration = iteration
        self.job.best_iteration = max(self.job.best_iteration or 0, iteration)
        return self

    def end(self, at: float) -> Story:
        ledger.attempt_ended(self.job, START + at)
        return self

    def again(self, at: float) -> Story:
        self.job.past.append(self.job.attempt)
        number = self.job.attempt.number + 1
        self.job.attempt = Attempt(number, START + at, phase_since=START + at)
        ledger.attempt_started(self.job, START + at)
        return self

    def trained(self, lines: int = 6) -> Story:
        """Started in 20 s, first step of 11 s, then lines at one second a step."""
        self.enter(20, JobPhase.FIRST_STEP)
        self.line(40, 10, 2.0)
        for number in range(2, lines + 1):
            self.line(30 + 10 * number, 10 * number)
        return self

    def spent(self, at: float | None = None) -> dict[str, float]:
        """Up to `at`, or to the last turn that accounted for the time before it."""
        now = self.job.ledger.booked_at if at is None else START + at
        seconds = ledger.time_spent(self.job, now).seconds
        return {spent.value: round(each, 3) for spent, each in seconds.items() if each > 1e-6}
