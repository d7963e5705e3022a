# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When an attempt last did something, and what can be said of it from then on."""

from __future__ import annotations

from mwatch.detect.cadence import slowest_step
from mwatch.model.job import Attempt, Job
from mwatch.model.settings import HangSettings, Settings


def last_iteration_at(attempt: Attempt) -> float | None:
    """When an iteration was last seen to be finished, by anybody."""
    seen = [] if attempt.line_at is None else [attempt.line_at]
    first = attempt.first_iteration
    if first is not None:
        ranks = attempt.ranks.values()
        seen += [rank.progressed_at for rank in ranks if (rank.iteration or 0) >= first]
    return max(seen, default=None)


def step_limit(job: Job, settings: Settings) -> float | None:
    """After so many seconds without an iteration the probe's reader worries; None: no data."""
    hang: HangSettings = settings.hang
    p99 = job.calibration.step_p99() or slowest_step(job)
    if p99 is None:
        return None
    return max(hang.probe_floor_seconds, hang.probe_factor * p99)


def went_on(job: Job, at: float, settings: Settings) -> bool:
    """Iterations were finished well after `at`: whatever happened then did not stop the job."""
    last = last_iteration_at(job.attempt)
    margin = step_limit(job, settings) or settings.hang.probe_floor_seconds
    return last is not None and last > at + margin


def iteration_at(attempt: Attempt, at: float) -> int | None:
    """The iteration that was being done at that moment, as far as the lines tell."""
    later = next((step for step in attempt.steps if step.at >= at), None)
    if later is not None:
        return later.first_covered
    return next_iteration(attempt)


def next_iteration(attempt: Attempt) -> int | None:
    """The one after the last that is known to be finished."""
    if attempt.iteration is not None:
        return attempt.iteration + 1
    return None if attempt.resumed_from is None else attempt.resumed_from + 1
