# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How long the job may be silent in what it is doing now, and how sure that limit is.

The log cannot show everything: a periodic evaluation is silent until its result, and only rank
0's pod tells of saves. Where one may be under way unseen, its own deadline is allowed on top.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.detect.shared.probe import ProbedRanks, is_behind_the_log, prompt
from mwatch.detect.shared.progress import (
    Cadence,
    cadence,
    has_multiple,
    multiples,
    step_limit,
    step_seconds,
)
from mwatch.model.job import Job, Step
from mwatch.model.observation import Source
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.model.settings import Settings

_PROBE = 0.7
_LOG = 0.5
_CAREFUL = 0.3

_ASIDE = frozenset({JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE})


class Patience(NamedTuple):
    seconds: float
    confidence: float
    """That nothing but a stall lasts longer, before any witness is heard."""
    note: str = ""
    """What could not be seen, for people."""


def patience(job: Job, watched: ProbedRanks, settings: Settings) -> Patience | None:
    """None: nobody who could tell is looking."""
    phase = job.attempt.phase
    if phase is JobPhase.TRAINING:
        return _training(job, watched, settings)
    has_probe = bool(watched.beating)
    if phase is JobPhase.FIRST_STEP and not has_probe:
        return _first_step_by_log(job, settings)
    if not has_probe and (not job.sees(Source.LOG) or _knows_nothing(job)):
        return None
    return Patience(_deadline(job, phase, settings), _PROBE if has_probe else _LOG)


def _knows_nothing(job: Job) -> bool:
    """Nothing of the trainer was understood: whether it has started cannot be told either."""
    is_unknown = job.layout.log_interval is None and job.layout.world_size is None
    return job.attempt.phase is JobPhase.STARTING and is_unknown


def _deadline(job: Job, phase: JobPhase, settings: Settings) -> float:
    seconds = _learnt(job, phase, settings)
    if phase is JobPhase.STOPPING and job.attempt.save is not None:
        return seconds + _learnt(job, JobPhase.SAVING, settings)
    return seconds


def _learnt(job: Job, phase: JobPhase, settings: Settings) -> float:
    slot = slot_of(phase, job.attempt.saves_done)
    assert slot is not None  # stall() asks for no other phase
    return job.calibration.deadline(slot, settings)


def _first_step_by_log(job: Job, settings: Settings) -> Patience:
    """Before core_v0.16 the first line comes only when a whole log interval is done."""
    seconds = job.calibration.deadline(DeadlineSlot.FIRST_STEP, settings)
    note = "no iteration line was printed yet"
    interval = job.layout.log_interval
    if interval == 1:
        return Patience(seconds, _LOG, note)
    step = job.calibration.step_median()
    if interval is None or step is None:
        return Patience(max(seconds, settings.deadlines.first_step.ceiling_seconds), _CAREFUL, note)
    return Patience(seconds + interval * step, _LOG, note)


def _training(job: Job, watched: ProbedRanks, settings: Settings) -> Patience | None:
    if watched.follows and not is_behind_the_log(job, watched.beating, settings):
        return _by_probe(job, watched, settings)
    if not job.sees(Source.LOG):
        return None
    return _by_log(job, settings)


def _by_probe(job: Job, watched: ProbedRanks, settings: Settings) -> Patience:
    aside = {rank.phase for rank in prompt(watched, settings)} & _ASIDE
    if aside:
        allowed = max(_deadline(job, JobPhase(phase), settings) for phase in aside)
        return Patience(allowed, _PROBE)
    limit = step_limit(job, settings)
    if limit is None:
        return Patience(job.calibration.deadline(DeadlineSlot.TRAINING, settings), _PROBE)
    hang = settings.hang
    limit = max(limit, hang.probe_factor * (step_seconds(job) or 0.0))
    return Patience(max(limit - hang.look_seconds, hang.look_seconds), _PROBE)


def _by_log(job: Job, settings: Settings) -> Patience | None:
    attempt = job.attempt
    known = cadence(job)
    if not attempt.steps or known is None:
        if not any(stream.prints_iterations for stream in job.streams.values()):
            return None if not attempt.steps else _by_default(job, settings)
        return _by_default(job, settings)
    last = attempt.steps[-1]
    limit = max(settings.deadlines.training.floor_seconds, settings.hang.log_intervals * known.gap)
    limit += _evaluation(job, last, known, settings) + _save(job, last, known, settings)
    if attempt.is_done:
        limit += _deadline(job, JobPhase.STOPPING, settings)
    if _shows_saves(job) or job.layout.log_interval is not None:
        return Patience(limit, _LOG)
    note = "no stream shows saves: a long one would look the same"
    return Patience(max(limit, settings.hang.log_intervals * known.longest), _CAREFUL, note)


def _by_default(job: Job, settings: Settings) -> Patience:
    note = "too few iteration lines to know how often they come"
    return Patience(job.calibration.deadline(DeadlineSlot.TRAINING, settings), _CAREFUL, note)


def _shows_saves(job: Job) -> bool:
    return any(stream.prints_checkpoints for stream in job.streams.values())


def _unprinted(job: Job, last: Step, known: Cadence) -> range:
    """Iterations after which something may be going on now, with no line to show it.

    The line of an iteration is printed before its evaluation and its save; a change of phase
    after the line means that those are over.
    """
    is_over = job.attempt.progress_at > last.at
    return range(last.iteration + is_over, last.iteration + known.iterations)


def _evaluation(job: Job, last: Step, known: Cadence, settings: Settings) -> float:
    interval = job.layout.eval_interval
    has_evaluated = bool(
        job.attempt.evaluations or job.calibration.durations[DeadlineSlot.EVALUATING]
    )
    allowed = job.calibration.deadline(DeadlineSlot.EVALUATING, settings)
    if interval is None:
        return allowed if has_evaluated else 0.0
    open_now = _unprinted(job, last, known)
    if not has_multiple(open_now, interval) or _are_reported(job, last, open_now, interval):
        return 0.0
    return allowed


def _are_reported(job: Job, last: Step, open_now: range, interval: int) -> bool:
    """The results of all evaluations that are due were printed; or none ever comes.

    One with several data sets prints several results.
    """
    reported = job.attempt.evaluations
    first = job.attempt.first_iteration or last.iteration
    before = multiples(range(first, last.iteration), interval)
    if before and not reported and not job.calibration.durations[DeadlineSlot.EVALUATING]:
        return True  # it was due and did not come: this run does not evaluate
    each = max(1, job.attempt.evaluations_before // before) if before else 1
    return reported >= each * multiples(range(first, open_now.stop), interval)


def _save(job: Job, last: Step, known: Cadence, settings: Settings) -> float:
    if _shows_saves(job):
        return 0.0
    if has_multiple(_unprinted(job, last, known), job.layout.save_interval):
        return _learnt(job, JobPhase.SAVING, settings)
    return 0.0
