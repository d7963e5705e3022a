# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Start-up and shut-down markers of rank 0, and the straggler report."""

from __future__ import annotations

from mwatch.model.event import Phase, Straggler
from mwatch.model.job import Job, Stream
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, phases


def fold(job: Job, stream: Stream, at: float, mark: Phase) -> None:
    if mark.name == "starting" and mark.edge == "begin" and is_new_process(job, stream, at):
        attempts.start(job, stream, at)
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    if mark.name == "first-step":
        if phases.is_before_steps(attempt) or attempt.phase is JobPhase.LOADING:
            phases.enter(job, at, JobPhase.FIRST_STEP)
    elif mark.name == "training" and mark.edge == "end":
        attempt.is_done = attempt.exit is None
        phases.enter(job, at, JobPhase.STOPPING)
    elif mark.name == "evaluating" and mark.edge == "begin":
        phases.enter(job, at, JobPhase.EVALUATING)
    elif mark.name == "async-finalize":
        phases.enter(job, at, JobPhase.ASYNC_FINALIZE)


def is_new_process(job: Job, stream: Stream, at: float) -> bool:
    """Rank 0 says once that it starts; a stream that has said more than that starts again."""
    attempt = job.attempt
    if stream.attempt != attempt.number:
        return True
    if attempt.is_numbered and attempt.steps and at < attempt.steps[0].at:
        return False  # told late: it is how the process that made these steps has begun
    has_begun = not phases.is_before_steps(attempt) or attempt.first_iteration is not None
    return has_begun or attempt.ended_at is not None or bool(attempt.errors)


def fold_straggler(job: Job, stream: Stream, at: float, report: Straggler) -> None:
    if attempts.is_current(job, stream, at):
        job.attempt.straggler = report
