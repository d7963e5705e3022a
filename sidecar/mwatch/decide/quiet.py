# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a job is called that nothing is wrong with: healthy, finished, or not known.

Blind is not healthy: a job of which nothing can be read is unknown.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.decide import resume
from mwatch.model.event import ASKED_EXITS
from mwatch.model.finding import Cause
from mwatch.model.job import Job
from mwatch.model.phase import JobPhase


class Calm(NamedTuple):
    cause: Cause
    reason: str


def judge(job: Job) -> Calm:
    attempt = job.attempt
    if not job.has_started:
        return Calm(Cause.UNKNOWN, "no data yet")
    if attempt.is_finished:
        return Calm(Cause.FINISHED, f"training is done{_at(job)}")
    if ended_as_asked(job):
        return Calm(Cause.FINISHED, f"training ended as it was asked to{_at(job)}")
    if attempt.phase is JobPhase.ENDED and _left_with_zero_at_the_end(job):
        return Calm(Cause.FINISHED, f"its processes ended with exit code 0{_at(job)}")
    if attempt.phase is JobPhase.ENDED:
        return Calm(Cause.UNKNOWN, "the attempt ended for an unknown reason")
    if not any(view.is_up for view in job.sources.values()):
        return Calm(Cause.UNKNOWN, "nothing of the job can be read")
    return Calm(Cause.HEALTHY, f"nothing is wrong ({attempt.phase}{_at(job)})")


def _left_with_zero_at_the_end(job: Job) -> bool:
    """The last iterations were too few for a line of their own."""
    done, total = job.attempt.iteration, job.layout.total_iterations
    if done is None or total is None or total - done >= (job.layout.log_interval or 1):
        return False
    ends = [gone.exit for gone in job.attempt.gone.values()]
    return bool(ends) and all(end.exit_code == 0 and not end.signal for end in ends)


def ended_as_asked(job: Job) -> bool:
    reported = job.attempt.exit
    return reported is not None and reported.exit.reason in ASKED_EXITS


def is_finished(job: Job) -> bool:
    """Done, and what was trained is kept: what happens after that needs no fixing."""
    attempt = job.attempt
    if attempt.save is not None or not (attempt.is_finished or ended_as_asked(job)):
        return False
    return not job.checkpoints or resume.choose(job, before=None).iteration == attempt.iteration


def _at(job: Job) -> str:
    iteration = job.attempt.iteration
    return "" if iteration is None else f", iteration {iteration}"
