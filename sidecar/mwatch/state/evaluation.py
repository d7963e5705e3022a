# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluations: periodic ones are silent until their result, and only a timer tells how long."""

from __future__ import annotations

import math

from mwatch.model.event import Timers, Validation
from mwatch.model.job import Job, Stream
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, phases

_TIMER = "evaluate"


def fold_validation(job: Job, stream: Stream, at: float, result: Validation) -> None:
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    attempt.evaluations += 1
    attempt.evaluated_after = result.iteration
    if attempt.bad_validation_at is None and not all(map(math.isfinite, result.losses.values())):
        attempt.bad_validation_at = (
            result.iteration if result.iteration is not None else attempt.iteration
        )
    if attempt.phase is JobPhase.EVALUATING:
        if not phases.is_seen_to_last(attempt, at):
            phases.enter(job, at, phases.resting(attempt))
    elif attempt.phase is JobPhase.TRAINING and not attempt.saw_evaluating:
        _look_back(job, attempt.phase_since, at)


def fold_timers(job: Job, stream: Stream, at: float, timers: Timers) -> None:
    """A report of the last rank; its line has no time of its own in a recorded log."""
    if not attempts.is_current(job, stream, at) or _TIMER not in timers.values:
        return
    seconds = timers.values[_TIMER][1] / 1000.0
    attempt = job.attempt
    if attempt.saw_evaluating:
        return  # its time is booked already
    if attempt.phase is JobPhase.TRAINING and math.isfinite(seconds) and seconds > 0:
        began = max(attempt.phase_since, attempt.line_at or at)
        if at - began < seconds:
            _look_back(job, began, began + seconds)


def _look_back(job: Job, since: float, until: float) -> None:
    """From the last line to the result the job was evaluating, though nobody had said so."""
    began = max(since, job.attempt.line_at or since)
    if until > began:
        phases.enter(job, began, JobPhase.EVALUATING)
        phases.enter(job, until, phases.resting(job.attempt))
