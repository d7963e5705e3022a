# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration lines to steps: progress, true counters, and the notice of an unseen restart.

Probe records: how far each rank is, and what rank 0 is doing.

The lowest rank that beats speaks for the phase of the job: saving and evaluating are done by
all ranks together, and rank 0 is the one that the log also tells about.
"""

from __future__ import annotations

from dataclasses import replace

from mwatch.model.event import Iteration
from mwatch.model.job import MAX_RANKS, Attempt, Job, RankState, Step, Stream
from mwatch.model.observation import Beat
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, calibration
from mwatch.state.goodput import ledger

_COPY_SECONDS = 5.0
"""Several ranks may print the same step; no process starts anew in so short a time."""
_QUIET_PHASES = frozenset({JobPhase.STOPPING, JobPhase.ENDED})


def fold_step(job: Job, stream: Stream, at: float, line: Iteration) -> None:
    stream.prints_iterations = True
    if not _belongs(job, stream, at, line):
        return
    attempt = job.attempt
    if line.total_iterations not in (None, job.layout.total_iterations):
        job.layout = replace(job.layout, total_iterations=line.total_iterations)
    step = _step(job, stream, at, line)
    _count(job, attempt, step)
    if attempt.phase is not JobPhase.TRAINING:
        _enter_training(job, attempt, step)
    calibration.step_reported(job, step)
    ledger.step_reported(job, step)
    _advance(job, attempt, step)


def _belongs(job: Job, stream: Stream, at: float, line: Iteration) -> bool:
    """Whether it is news of the current attempt; opens a new one for a line that goes back."""
    last = stream.last_iteration
    if stream.attempt == job.attempt.number and last is not None:
        is_copy = line.iteration == last and at - (job.attempt.line_at or at) < _COPY_SECONDS
        is_back = line.iteration < last or line.first_of_process
        if is_back and not is_copy and at >= (job.attempt.line_at or at):
            attempts.start(job, stream, at)
        elif line.iteration <= last:
            return False  # late, or a second copy
    elif not attempts.is_current(job, stream, at):
        return False
    stream.last_iteration = line.iteration
    newest = job.attempt.steps[-1] if job.attempt.steps else None
    return newest is None or newest.iteration < line.iteration


def _step(job: Job, stream: Stream, at: float, line: Iteration) -> Step:
    attempt = job.attempt
    before = attempt.steps[-1] if attempt.steps else None
    fresh = line.iteration - before.iteration if before else None
    covers = line.covers or fresh or _first_covers(job, line)
    if before is None and attempt.resumed_from is not None:
        covers = max(1, min(covers, line.iteration - attempt.resumed_from))
    new = covers if fresh is None else min(covers, fresh)
    printed = line.skipped or 0
    again = before is not None and before.is_first_of_process and new < covers
    return Step(  # by place: this is done for each of millions of lines
        at,
        line.iteration,
        covers,
        new,
        None if line.elapsed_ms is None else line.elapsed_ms / 1000.0,
        line.losses,
        line.loss_scale,
        line.grad_norm,
        line.learning_rate,
        line.consumed_samples,
        line.global_batch_size,
        max(0, printed - before.skipped_printed) if again and before else printed,
        printed,
        line.nan or 0,
        line.throughput_tflops,
        line.first_of_process,
        line.flavour,
        stream.name,
        line.file,
        line.line,
    )


def _first_covers(job: Job, line: Iteration) -> int:
    """Of a first line that does not tell: up to the last boundary, or since the resume."""
    interval = job.layout.log_interval or 1
    since_resume = line.iteration - (job.attempt.resumed_from or 0)
    return max(1, min(interval, since_resume))


def _count(job: Job, attempt: Attempt, step: Step) -> None:
    attempt.steps.append(step)
    attempt.skipped += step.skipped
    attempt.nan += step.nan
    if attempt.first_iteration is None:
        attempt.first_iteration = step.first_covered


def _enter_training(job: Job, attempt: Attempt, step: Step) -> None:
    """A line proves that steps are done; where the steps began nobody may have said."""
    if attempt.phase in _QUIET_PHASES or attempts.is_seen_to_last(attempt, step.at):
        return
    if attempts.is_before_steps(attempt) or attempt.phase is JobPhase.LOADING:
        known = (step.seconds or 0.0) * step.new
        attempts.enter_phase(job, max(attempt.phase_since, step.at - known), JobPhase.FIRST_STEP)
    save = attempt.save
    saved_at = save.iteration if save else None
    if attempt.phase is not JobPhase.SAVING or saved_at is None or step.iteration > saved_at:
        attempts.enter_phase(job, step.at, JobPhase.TRAINING)


def _advance(job: Job, attempt: Attempt, step: Step) -> None:
    attempt.line_at = step.at
    attempt.saw_evaluating = attempt.phase is JobPhase.EVALUATING
    attempt.evaluations_before = attempt.evaluations
    advance(job, step.at, step.iteration)


def advance(job: Job, at: float, iteration: int) -> None:
    """`iteration` is finished."""
    attempt = job.attempt
    if attempt.iteration is not None and iteration <= attempt.iteration:
        return
    attempt.iteration = iteration
    attempt.progress_at = max(attempt.progress_at, at)
    best = job.best_iteration
    if best is None or iteration > best:
        job.best_iteration = iteration
        if best is not None and best == attempt.best_before:
            calibration.attempt_progressed(job)
    total = job.layout.total_iterations
    if total is not None and iteration >= total:
        attempt.is_done = True


_TRAINING = frozenset({"training", "collective", "data", "compute"})
_FOLLOWED_SECONDS = 3.0
"""Beats come once a second, and now and then one is late."""
_PHASES = {phase.value: phase for phase in JobPhase}


def fold_beat(job: Job, stream: Stream, at: float, beat: Beat) -> None:
    if beat.attempt is not None and beat.attempt != job.attempt.number:
        attempts.start(job, stream, at, beat.attempt)
        if beat.attempt != job.attempt.number:
            return  # a process of an attempt that is over
    elif not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    if attempt.phase is JobPhase.ENDED:
        return
    _know_world(job, beat)
    attempt.unreachable.discard(stream.name)
    state = attempt.ranks.get(beat.rank)
    before = 0.0 if state is None else state.progressed_at
    is_followed = state is not None and at - state.at <= _FOLLOWED_SECONDS
    if state is None:
        if len(attempt.ranks) >= MAX_RANKS:
            return
        state = attempt.ranks[beat.rank] = _new(at, stream, beat)
    else:
        _update(state, at, stream, beat)
    if beat.iteration is not None:
        _progress(job, attempt, at, beat.iteration, before, is_followed)
    lead = 0 if 0 in attempt.ranks else min(attempt.ranks)
    if beat.rank == lead and at >= attempt.phase_since:
        _follow(job, attempt, at, beat)


def _know_world(job: Job, beat: Beat) -> None:
    if job.layout.world_size is None and beat.world_size is not None:
        job.layout = replace(job.layout, world_size=beat.world_size)


def _new(at: float, stream: Stream, beat: Beat) -> RankState:
    return RankState(
        beat.rank, at, beat.iteration, at, at, beat.phase, beat.stack, beat.pid, stream.name
    )


def _update(state: RankState, at: float, stream: Stream, beat: Beat) -> None:
    if at < state.at:
        return
    if beat.iteration != state.iteration:
        state.iteration = beat.iteration
        state.progressed_at = state.moved_at = at
    if beat.phase != state.phase or beat.stack != state.stack:
        state.phase, state.stack = beat.phase, beat.stack
        state.moved_at = at
    state.at = at
    state.pid = beat.pid
    state.stream = stream.name


def _progress(
    job: Job, attempt: Attempt, at: float, iteration: int, before: float, is_followed: bool
) -> None:
    """The first value is where the attempt stands; it has done something when that rises.

    `before`: the last rise of this very rank, by its own clock. Who asks a pod every few seconds
    does not follow it: what it sees as one rise of many iterations is no slow step.
    """
    if attempt.iteration is None:
        attempt.iteration = iteration
        if attempt.resumed_from is None and iteration > 0:
            attempt.resumed_from = iteration
    elif iteration > attempt.iteration:
        if attempt.first_iteration is None:
            attempt.first_iteration = attempt.iteration + 1
        is_one = is_followed or iteration == attempt.iteration + 1
        if before > attempt.phase_since and is_one:  # beats get lost, and clocks differ
            calibration.iteration_rose(job, at - max(before, attempt.progress_at))
        advance(job, at, iteration)
        if attempt.phase in (JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP):
            attempts.enter_phase(job, at, JobPhase.TRAINING)


def _follow(job: Job, attempt: Attempt, at: float, beat: Beat) -> None:
    if beat.phase in _TRAINING:
        # ASYNC_FINALIZE: a look at each iteration's end
        has_returned = attempt.phase in (JobPhase.ASYNC_FINALIZE, JobPhase.EVALUATING)
        is_saved = attempt.phase is JobPhase.SAVING and attempt.save is None
        if has_returned or is_saved:
            attempts.enter_phase(job, at, attempts.resting_phase(attempt))
        elif attempt.phase in (JobPhase.STARTING, JobPhase.LOADING):
            attempts.enter_phase(job, at, JobPhase.FIRST_STEP)
        return
    phase = _PHASES.get(beat.phase)
    if phase in (None, JobPhase.ENDED, JobPhase.FIRST_STEP):
        return
    is_backwards = phase in (JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.STARTING)
    if not (is_backwards and not attempts.is_before_steps(attempt)):
        attempts.enter_phase(job, at, phase)
