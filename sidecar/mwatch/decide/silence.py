# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a job is over, has gone silent, or goes on: by its own progress.

The log and the probe tell of the same thing, iterations, and are one witness. Silence of both
while neither can be read is no silence.

Processes that are gone, and nobody said how: their last lines may still be under way.

A log that is shipped comes late, by a minute and more; the word that a process is gone comes at
once. So a job that has just finished looks like one that was stuck and died. Whoever saw an exit
code, an error or a good-bye knows more, and none of this is asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from mwatch.decide import resume
from mwatch.decide.policy import RULES, Proof
from mwatch.model.finding import Cause, Finding
from mwatch.model.job import Job
from mwatch.model.observation import SignState, Source
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.model.settings import Settings

_STALL_DETECTORS = frozenset({"stalled"})
"""They hold the silence against the deadline of the phase, so nobody need do it again."""
_DEATH_DETECTORS = frozenset({"crashed", "finished_early"})


def is_over(job: Job) -> bool:
    """A process of the gang has failed: the others can only wait for it.

    A pod that is gone, and nobody can tell how, may have been of the attempt before.
    """
    attempt = job.attempt
    died = any(gone.exit.exit_code or gone.exit.signal for gone in attempt.gone.values())
    return attempt.phase is JobPhase.ENDED or died


def reports_an_exit(finding: Finding) -> bool:
    """Rather than a silence. A hang never does: somebody else must have seen its end."""
    if RULES[finding.cause].proof is Proof.SILENCE and finding.cause is not Cause.HANG:
        return finding.detector in _DEATH_DETECTORS
    return RULES[finding.cause].proof is Proof.DEATH


def is_sick(finding: Finding) -> bool:
    """A GPU that fell off the bus does not come back, whatever else still prints."""
    return finding.cause is Cause.HARDWARE and finding.cannot_heal


def usual_seconds(job: Job, settings: Settings) -> float:
    """How long a healthy job may be silent in this phase."""
    attempt = job.attempt
    is_followed = job.sees(Source.PROBE) and job.calibration.step_p99() is not None
    if attempt.phase is JobPhase.TRAINING and is_followed:
        return step_seconds(job, settings)
    slot = slot_of(attempt.phase, attempt.saves_done) or DeadlineSlot.STARTING
    return job.calibration.deadline(slot, settings)


def step_seconds(job: Job, settings: Settings) -> float:
    """What a few steps take: news under way may still arrive for so long."""
    slowest = job.calibration.step_p99() or 0.0
    return max(settings.hang.probe_floor_seconds, settings.hang.probe_factor * slowest)


def silent_seconds(job: Job) -> float:
    return max(0.0, job.now - job.attempt.last_progress)


def is_silent(job: Job, findings: Iterable[Finding], settings: Settings) -> bool:
    stalls = (finding for finding in findings if finding.detector in _STALL_DETECTORS)
    if any(went_on_seconds(job, stall, settings) is None for stall in stalls):
        return True
    return silent_seconds(job) >= usual_seconds(job, settings)


def is_readable(job: Job) -> bool:
    return job.sees(Source.LOG) or job.sees(Source.PROBE)


def went_on_seconds(job: Job, finding: Finding, settings: Settings) -> float | None:
    """How long after the finding training still did iterations; None: it did not."""
    attempt = job.attempt
    moments = [rank.progressed_at for rank in attempt.ranks.values() if rank.iteration is not None]
    moments += [] if attempt.line_at is None else [attempt.line_at]
    if finding.since_time is None or not moments:
        return None
    later = max(moments) - finding.since_time
    return later if later > step_seconds(job, settings) else None


def last_lines_due_at(job: Job, finding: Finding, settings: Settings) -> float | None:
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
        if not is_silence or reports_an_exit(finding):
            return False
    attempt = job.attempt
    if attempt.errors or attempt.exit is not None:
        return False
    ends = [gone.exit for gone in attempt.gone.values()]
    return not any(end.exit_code or end.signal or end.reason for end in ends)
