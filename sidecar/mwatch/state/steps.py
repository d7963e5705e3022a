# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Fold iteration lines and probe records: progress, counters without double counts, and restarts
that are visible only as a decrease of the iteration.

The lowest rank with a probe record sets the phase of the job: saving and evaluating are done by all
ranks together. `fold_like` folds many similar lines of a recording at once, with the same result as
`fold` of each, to the last bit; it stops before the first line that differs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from mwatch.model.calibration import ALIKE
from mwatch.model.event import Iteration, StepLines
from mwatch.model.job import MAX_RANKS, Attempt, Job, RankState, Stream
from mwatch.model.observation import Beat, Source
from mwatch.model.phase import JobPhase
from mwatch.model.step import PlacedLines, Step
from mwatch.state import attempts, calibration
from mwatch.state.calibration import STARVED, happened
from mwatch.state.goodput import ledger
from mwatch.state.goodput.line_time import LineTimes, book_lines

if TYPE_CHECKING:
    from mwatch.model.snapshot.snapshot_wire import RankRow

_COPY_SECONDS = 5.0  # within it a repeated step is from another rank: no process restarts so fast
_MAX_LAG = 16  # lines by which such a rank may be behind the first
_SET_BACK_SECONDS = 2 * 3600.0
_QUIET_PHASES = frozenset({JobPhase.STOPPING, JobPhase.ENDED})


def fold_step(job: Job, stream: Stream, at: float, line: Iteration) -> None:
    stream.prints_iterations = True
    if not _belongs(job, stream, at, line):
        return
    attempts.line_after_end(job, stream, at)
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
    """Whether the line is of the current attempt; opens a new one for a line that goes back."""
    last = stream.last_iteration
    if stream.attempt == job.attempt.number and last is not None:
        is_copy = line.iteration <= last and _is_copy(job, at, line, last)
        is_back = line.iteration < last or line.first_of_process
        if is_back and not is_copy and at >= (job.attempt.line_at or at):
            stream.has_quoted = _is_foreign(job, stream, at) or _is_of_the_past(stream, line)
            if stream.has_quoted:
                return False
            attempts.start(job, stream, at)
        elif line.iteration <= last:
            stream.has_quoted = stream.has_quoted or _is_of_the_past(stream, line)
            return False  # late, or a second copy
    elif not attempts.is_current(job, stream, at):
        return False
    stream.last_iteration, stream.last_stamp = line.iteration, line.timestamp
    newest = job.attempt.steps[-1] if job.attempt.steps else None
    return newest is None or newest.iteration < line.iteration


def _is_foreign(job: Job, stream: Stream, at: float) -> bool:
    """Whether a line that goes back is quoted from another run.

    The probe shows that a rank of this stream is at or beyond the last line at this moment.
    """
    last = stream.last_iteration or 0
    return any(
        rank.stream == stream.name
        and (rank.iteration or 0) >= last
        and abs(at - rank.at) <= _FOLLOWED_SECONDS
        for rank in job.attempt.ranks.values()
    )


def _is_of_the_past(stream: Stream, line: Iteration) -> bool:
    """Whether a line is quoted from another run, by its printed time.

    That time is hours before the last one of this pod, whose wrapper has reported no new process. A
    clock may be set back by an hour, so a smaller difference proves nothing.
    """
    if not stream.has_wrapper or stream.last_stamp is None or line.timestamp is None:
        return False
    try:
        before, printed = map(datetime.fromisoformat, (stream.last_stamp, line.timestamp))
        return (before - printed).total_seconds() > _SET_BACK_SECONDS
    except (ValueError, TypeError):  # not a time, or only one of them has a time zone
        return False


def _is_copy(job: Job, at: float, line: Iteration, last: int) -> bool:
    """Whether another rank repeats the iterations a few lines later, and no error was printed."""
    attempt = job.attempt
    has_failed = bool(attempt.steps) and any(
        each.error.file == line.file and each.error.line > attempt.steps[-1].line
        for each in attempt.errors[-1:]
    )
    lag = 0 if has_failed else _MAX_LAG * (job.layout.log_interval or 1)
    return last - line.iteration <= lag and at - (attempt.line_at or at) < _COPY_SECONDS


def _step(job: Job, stream: Stream, at: float, line: Iteration) -> Step:
    attempt = job.attempt
    before = attempt.steps[-1] if attempt.steps else None
    fresh = line.iteration - before.iteration if before else None
    covers = line.covers or fresh or _first_covers(job, line)
    interval = job.layout.log_interval
    if line.flavour == "megatron" and interval and fresh is not None and fresh > interval:
        covers = min(covers, interval)  # a line in between was lost, or the previous was quoted
    if stream.has_quoted and fresh is not None:
        covers, stream.has_quoted = min(covers, fresh), False  # counted from a quoted line
    if before is None and attempt.resumed_from is not None:
        covers = max(1, min(covers, line.iteration - attempt.resumed_from))
    new = covers if fresh is None else min(covers, fresh)
    printed = line.skipped or 0
    again = before is not None and before.is_first_of_process and new < covers
    return Step(  # positional: this is done for each of millions of lines
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
    """Return how many iterations a first line covers that does not show the number.

    They are those since the last multiple of the log interval, or since the resume.
    """
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
    """Enter TRAINING: an iteration line proves it, even if no line reported the first step."""
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
    elif (
        attempt.is_done and total is not None and total - iteration > (job.layout.log_interval or 1)
    ):
        attempt.is_done = False  # it printed that training is done, but training goes on


_TRAINING = frozenset({"training", "collective", "data", "compute"})
_FOLLOWED_SECONDS = 3.0  # beats come once a second, sometimes late
_PHASES = {phase.value: phase for phase in JobPhase}


def fold_beat(job: Job, stream: Stream, at: float, beat: Beat) -> None:
    if beat.attempt is not None and beat.attempt != job.attempt.number:
        attempts.start(job, stream, at, beat.attempt)
        if beat.attempt != job.attempt.number:
            return  # a process of an ended attempt
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
    note_rank(state, beat, at)
    state.at, state.pid, state.stream = at, beat.pid, stream.name


def note_rank(state: RankState, beat: Beat | RankRow, moment: float) -> None:
    """Update a rank from its probe record; fields that differ have changed at `moment`."""
    if beat.iteration != state.iteration:
        state.iteration = beat.iteration
        state.progressed_at = state.moved_at = moment
    if beat.phase != state.phase or beat.stack != state.stack:
        state.phase, state.stack = beat.phase, beat.stack
        state.moved_at = moment


def _progress(
    job: Job, attempt: Attempt, at: float, iteration: int, before: float, is_followed: bool
) -> None:
    """Record the iteration of a rank.

    The first value is only the position of the attempt; an increase is progress. `before` is the
    time of this rank's last increase, by its own clock. A pod that is polled every few seconds
    shows one increase by many iterations, which is not a slow step.
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
        # ASYNC_FINALIZE is only a check at the end of each iteration.
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
    if phase is JobPhase.SAVING or phase is JobPhase.EVALUATING:
        attempt.probed_asides.add(phase)
    is_backwards = phase in (JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.STARTING)
    if not (is_backwards and not attempts.is_before_steps(attempt)):
        attempts.enter_phase(job, at, phase)


def fold_like(job: Job, placed: PlacedLines, begin: int, end: int) -> int:
    """Fold lines from `begin`, at most to `end`; return the first that is not folded.

    All of them must have finite losses and no skips, and `is_usual_ground` must hold.
    """
    stream = job.streams[placed.stream]
    total = job.layout.total_iterations
    if total is not None:  # the line that gets there needs `fold`
        end = min(end, bisect_left(placed.lines.iterations, total))
    if begin >= end:
        return begin
    job.calibration.disturbed = 0
    done, is_odd = _book_lines(job, placed, begin, end)
    plain = done - is_odd
    if begin < plain:
        _keep_pace(job, placed.lines, begin, plain)
        _count_lines(job, stream, placed, begin, plain)
        _advance_to(job, stream, placed, plain - 1)
    if is_odd:
        _count_lines(job, stream, placed, plain, done)
        ledger.step_reported(job, job.attempt.steps[-1])
        _advance_to(job, stream, placed, plain)
    return done


def is_usual_ground(job: Job, placed: PlacedLines, begin: int) -> bool:
    """Whether nothing that `fold` checks for a single line has changed since the line before."""
    attempt, lines, stream = job.attempt, placed.lines, job.streams.get(placed.stream)
    if stream is None or len(attempt.steps) < STARVED or attempt.phase is not JobPhase.TRAINING:
        return False
    last, iteration = attempt.steps[-1], lines.iterations[begin]
    reached = (attempt.iteration, job.best_iteration, stream.last_iteration)
    return (
        iteration - lines.covers[begin] == last.iteration
        and placed.ats[begin] >= last.at
        and stream.attempt == attempt.number
        and attempt.first_iteration is not None
        and all(each is not None and each < iteration for each in reached)
        and job.best_iteration != attempt.best_before
        and job.sees(Source.LOG)
        and _is_same_layout(job, last, lines)
        and _is_calm(job)
    )


def _is_same_layout(job: Job, last: Step, lines: StepLines) -> bool:
    varying, steady = lines.varying, lines.steady
    if "global_batch_size" in varying or "total_iterations" in varying:
        return False
    calibration, layout = job.calibration, job.layout
    name = job.ledger.pace.loss_name
    return (
        (name in lines.losses if name else not lines.losses)
        and steady.global_batch_size == last.batch_size
        and (steady.global_batch_size or None) in (None, calibration.batch_size)
        and steady.total_iterations in (None, layout.total_iterations)
        and layout.log_interval in (None, calibration.log_interval)
        and len(calibration.steps) >= STARVED
        and ("elapsed_ms" in varying or steady.elapsed_ms is not None)
    )


def _is_calm(job: Job) -> bool:
    """Whether no save, evaluation or stall has happened since the last line, and nothing is left to
    judge."""
    books, attempt = job.ledger, job.attempt
    pace, opened = books.pace, books.open
    return (
        books.started_at is not None
        and not books.is_closed
        and books.world_size == job.layout.world_size
        and job.calibration.seen == happened(attempt)
        and not (pace.unjudged or pace.guess)
        and not opened.spans
        and opened.stall is None
        and opened.head is None
        and attempt.evaluations == opened.evaluations
        and attempt.steps[-1].iteration >= pace.redone_until
        and not pace.is_bad
    )


def _book_lines(job: Job, placed: PlacedLines, begin: int, end: int) -> tuple[int, bool]:
    """Pass the lines to calibration and ledger.

    Return the first line that was not passed, and whether the last passed one is left to
    `ledger.step_reported`. The usual step is updated only at some lines: the lines between two
    updates are booked and learnt together, and so are all if they are so similar that the updates
    make no difference.
    """
    known, pace = job.calibration, job.ledger.pace
    rows = LineTimes.of(placed, begin, end, job.attempt.steps[-1].at)
    done, is_odd, size = 0, False, end - begin
    is_alike = (
        known.steps.is_full
        and not pace.slow_seconds
        and job.ledger.slow_ratio > ALIKE
        and known.are_alike(rows.seconds)
    )
    while done < size and not is_odd:
        has_usual = known.best_step is not None and not pace.slow_lines
        if not has_usual or not 0.0 < rows.seconds[done] < math.inf:
            break
        if is_alike:
            count, is_odd = book_lines(job, rows, done, size)
            calibration.lines_reported(known, rows, done, done + count, is_alike=True)
        else:
            calibration.lines_reported(known, rows, done, done + 1)
            together = known.lines_until_update if known.steps.is_full else 0
            count, is_odd = book_lines(job, rows, done, done + 1 + together)
            calibration.lines_reported(known, rows, done + 1, done + count)
        done += count
    return begin + done, is_odd


def _keep_pace(job: Job, lines: StepLines, begin: int, end: int) -> None:
    books, pace = job.ledger, job.ledger.pace
    printed = [pace.newest_seconds, *lines.seconds[max(begin, end - 2) : end]]
    newest, before = printed[-1], printed[-2]
    pace.newest_seconds = newest
    pace.step_seconds = before if before and newest and before < newest else newest
    most = max(max(lines.covers[begin:end]), pace.interval or 1)
    pace.interval = job.layout.log_interval or most
    pace.furthest = max(pace.furthest, lines.iterations[end - 1])
    books.open.phase_began = max(books.booked_at, job.attempt.phase_since)


def _count_lines(job: Job, stream: Stream, placed: PlacedLines, begin: int, end: int) -> None:
    attempt, lines = job.attempt, placed.lines
    attempt.steps.extend_later(placed, begin, end)
    attempt.nan += int(sum((lines.column("nan") or ())[begin:end]))
    stream.last_iteration, stream.last_stamp = lines.iterations[end - 1], lines.stamp(end - 1)
    job.now = max(job.now, placed.ats[end - 1])


def _advance_to(job: Job, stream: Stream, placed: PlacedLines, last: int) -> None:
    attempt, at, iteration = job.attempt, placed.ats[last], placed.lines.iterations[last]
    attempt.line_at = stream.last_at = at
    attempt.saw_evaluating = False
    attempt.evaluations_before = attempt.evaluations
    attempt.iteration = job.best_iteration = iteration
    attempt.progress_at = max(attempt.progress_at, at)
