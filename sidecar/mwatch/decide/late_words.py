# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are gone, and nobody said how: their last lines may still be under way.

A log that is shipped comes late, by a minute and more; the word that a process is gone comes at
once. So a job that has just finished looks like one that was stuck and died. Whoever saw an exit
code, an error or a good-bye knows more, and none of this is asked.
"""

from __future__ import annotations

from mwatch.decide import resume, silence
from mwatch.decide.policy import RULES, Proof
from mwatch.model.finding import Cause, Finding
from mwatch.model.job import Job
from mwatch.model.observation import SignState
from mwatch.model.settings import Settings


def heard_out_at(job: Job, finding: Finding, settings: Settings) -> float | None:
    """Until when to wait for more of its words; None: nothing is missing."""
    if not _is_guessed(job, finding):
        return None
    gone = _gone(job)
    return max(gone) + settings.act.lost_pod_seconds if gone else None


def may_be_done(job: Job, finding: Finding) -> str | None:
    """Why its processes may be gone because it has ended; None: they are not, or it has not."""
    attempt, total = job.attempt, job.layout.total_iterations
    if total is None or attempt.iteration is None or not _gone(job):
        return None
    if not _is_guessed(job, finding):
        return None
    saved = resume.choose(job, before=None).iteration
    if saved is not None and saved >= total:
        return f"checkpoint {saved} is of its last iteration"
    if attempt.iteration >= total - max(2, job.layout.log_interval or 1):
        return "it was in its last iterations"
    return None


def _gone(job: Job) -> list[float]:
    """When each process that is gone was found to be."""
    attempt = job.attempt
    dead = [seen.since for seen in attempt.signs.values() if seen.sign.state is SignState.DEAD]
    return dead + [gone.at for gone in attempt.gone.values()]


def _is_guessed(job: Job, finding: Finding) -> bool:
    """A finished job is taken for this while its last lines are missing."""
    if finding.cause is not Cause.FINISHED_EARLY:
        is_silence = RULES[finding.cause].proof is Proof.SILENCE
        if not is_silence or silence.tells_a_death(finding):
            return False
    attempt = job.attempt
    if attempt.errors or attempt.exit is not None:
        return False
    ends = [gone.exit for gone in attempt.gone.values()]
    return not any(end.exit_code or end.signal or end.reason for end in ends)
