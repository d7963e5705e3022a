# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Books time where it went. Called by the fold at each turn of the job; never asks a clock."""

from __future__ import annotations

from mwatch.model.job import Job, Step
from mwatch.model.phase import JobPhase


def attempt_started(job: Job, at: float) -> None:
    """`job.attempt` is the new attempt; the time since the last one ended is now known."""


def phase_changed(job: Job, at: float, before: JobPhase) -> None:
    """`job.attempt.phase` is the new phase, from `at` on."""


def step_reported(job: Job, step: Step) -> None:
    """The newest line of `job.attempt.steps`; called once, before `best_iteration` is raised."""


def attempt_ended(job: Job, at: float) -> None:
    """Nothing more will come from `job.attempt`; called once per attempt."""


def stall_judged(job: Job, *, detected_at: float, decided_at: float | None) -> None:
    """A stall of `job.attempt` was found, and (later) an action on it was decided."""


def settle(job: Job, at: float) -> None:
    """Book what is open up to `at`, for a report; may be called at any time, and again."""
