# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Probe records: how far each rank is, and what rank 0 is doing.

The lowest rank that beats speaks for the phase of the job: saving and evaluating are done by
all ranks together, and rank 0 is the one that the log also tells about.
"""

from __future__ import annotations

from dataclasses import replace

from mwatch.model.job import MAX_RANKS, Attempt, Job, RankState, Stream
from mwatch.model.observation import Beat
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, calibrate, phases, steps

_TRAINING = frozenset({"training", "collective", "data", "compute"})
_FOLLOWED_SECONDS = 3.0
"""Beats come once a second, and now and then one is late."""
_PHASES = {phase.value: phase for phase in JobPhase}


def fold(job: Job, stream: Stream, at: float, beat: Beat) -> None:
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
    attempt.unseen.discard(stream.name)
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
            calibrate.iteration_rose(job, at - max(before, attempt.progress_at))
        steps.advance(job, at, iteration)
        if attempt.phase in (JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP):
            phases.enter(job, at, JobPhase.TRAINING)


def _follow(job: Job, attempt: Attempt, at: float, beat: Beat) -> None:
    if beat.phase in _TRAINING:
        # ASYNC_FINALIZE: a look at each iteration's end
        has_returned = attempt.phase in (JobPhase.ASYNC_FINALIZE, JobPhase.EVALUATING)
        is_saved = attempt.phase is JobPhase.SAVING and attempt.save is None
        if has_returned or is_saved:
            phases.enter(job, at, phases.resting(attempt))
        elif attempt.phase in (JobPhase.STARTING, JobPhase.LOADING):
            phases.enter(job, at, JobPhase.FIRST_STEP)
        return
    phase = _PHASES.get(beat.phase)
    if phase in (None, JobPhase.ENDED, JobPhase.FIRST_STEP):
        return
    is_backwards = phase in (JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.STARTING)
    if not (is_backwards and not phases.is_before_steps(attempt)):
        phases.enter(job, at, phase)
