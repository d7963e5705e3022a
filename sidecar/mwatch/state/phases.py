# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Moves an attempt from phase to phase, and tells those who keep count of the time."""

from __future__ import annotations

from mwatch.model.job import Attempt, Job
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.state import calibration
from mwatch.state.goodput import ledger

_FRESH_BEAT_SECONDS = 15.0
"""Beats come once a second, by clocks that may differ."""
_ASIDE = frozenset({JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE})
_BEFORE_STEPS = frozenset({JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.STARTING})


def enter(job: Job, at: float, phase: JobPhase) -> None:
    """Only a new attempt leaves ENDED."""
    attempt = job.attempt
    before = attempt.phase
    if before is phase or before is JobPhase.ENDED:
        return
    at = max(at, attempt.phase_since)
    slot = slot_of(before, attempt.saves_done)
    if (
        slot and slot is not DeadlineSlot.TRAINING and phase is not JobPhase.ENDED
    ):  # lines tell of steps
        calibration.phase_ended(job, slot, at - attempt.phase_since)
    attempt.phase = phase
    attempt.phase_since = at
    attempt.saw_evaluating = attempt.saw_evaluating or phase is JobPhase.EVALUATING
    if phase is not JobPhase.ENDED:
        attempt.progress_at = max(attempt.progress_at, at)
    ledger.phase_changed(job, at, before)


def resting(attempt: Attempt) -> JobPhase:
    """Where an attempt is when a save, load or evaluation is over."""
    if attempt.exit is not None or attempt.is_done:
        return JobPhase.STOPPING
    if attempt.iteration is not None and attempt.first_iteration is not None:
        return JobPhase.TRAINING
    return JobPhase.STARTING


def is_before_steps(attempt: Attempt) -> bool:
    return attempt.phase in _BEFORE_STEPS


def is_seen_to_last(attempt: Attempt, at: float) -> bool:
    """The probe sees rank 0 save or evaluate just now. A line of what was before is late, and the
    end will be told by the probe too, by the same clock as the begin."""
    lead = attempt.ranks.get(0)
    if lead is None or lead.phase != attempt.phase.value:
        return False
    return attempt.phase in _ASIDE and abs(at - lead.at) < _FRESH_BEAT_SECONDS
