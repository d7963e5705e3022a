# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When a decision is carried out: detecting is fast, acting waits until it is worth it.

A stall that could heal is left alone until it has cost as much as a restart of this job would.
A crash that only the log tells of waits until training would have shown itself again: a
traceback may have been caught. What cannot heal waits for the backoff alone, and where nobody
saw how the processes ended, for their last words.
"""

from __future__ import annotations

from mwatch.decide import late_words, silence
from mwatch.decide.policy import RULES, Proof
from mwatch.model.finding import CulpritState, Finding
from mwatch.model.job import Job
from mwatch.model.phase import Slot
from mwatch.model.settings import Settings


def act_at(
    job: Job,
    finding: Finding,
    settings: Settings,
    *,
    backoff_seconds: float,
    lost_iterations: int,
) -> float:
    """The same at each look, as long as nothing moves: looking again does not put it off."""
    earliest = _began(job, finding) + backoff_seconds
    wait = _wait_seconds(job, finding, lost_iterations, settings)
    if wait:
        earliest = max(earliest, job.attempt.last_progress + wait)
    return max(earliest, late_words.heard_out_at(job, finding, settings) or earliest)


def _wait_seconds(job: Job, finding: Finding, lost: int, settings: Settings) -> float:
    """How long after the last progress this finding may be acted on; 0: at once."""
    proof = RULES[finding.cause].proof
    if silence.is_over(job) or proof is Proof.OWN or silence.is_sick(finding):
        return 0.0
    if silence.tells_a_death(finding):
        return silence.usual_seconds(job, settings)
    return _restart_seconds(job, lost, settings) if _may_heal(finding) else 0.0


def _may_heal(finding: Finding) -> bool:
    """A rank that has not joined yet may be waiting for its data: it can still come."""
    is_late = finding.culprit is not None and finding.culprit.state is CulpritState.NEVER_JOINED
    return is_late or not finding.cannot_heal


def _restart_seconds(job: Job, lost: int, settings: Settings) -> float:
    """What a restart costs now: as measured, but with the steps that this one would lose."""
    learnt = job.calibration
    again = lost * (learnt.step_median() or 0.0) - (learnt.recomputed.median() or 0.0)
    cost = learnt.restart_cost(settings) + max(0.0, again) + _unseen_load_seconds(job)
    return min(cost * settings.act.stall_factor, settings.act.max_stall_seconds)


def _unseen_load_seconds(job: Job) -> float:
    """A job that began anew has never loaded; it will move the bytes that it has saved."""
    durations = job.calibration.durations
    if durations[Slot.LOADING]:
        return 0.0
    return durations[Slot.FIRST_SAVE].median() or durations[Slot.SAVING].median() or 0.0


def _began(job: Job, finding: Finding) -> float:
    """The end of the attempt if it is over: the first sign of it may be hours older."""
    since = job.attempt.last_progress if finding.since_time is None else finding.since_time
    ended = job.attempt.ended_at
    return since if ended is None else max(since, ended)
