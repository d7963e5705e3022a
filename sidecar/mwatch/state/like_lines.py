# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Folds many iteration lines at once, where they say nothing but "and so on".

The short way for recordings of millions of lines: the same as `fold` of each of them, to the
last bit (the tests hold both against each other). It stops before the first line that is more
than one more line; whoever calls gives that one to `fold`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat

from mwatch.model.event import PlacedLines, StepLines
from mwatch.model.goodput import Spent
from mwatch.model.job import Job, Step, Stream
from mwatch.model.observation import Source
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.state.calibration import CLOSE_SECONDS, EVERY, STARVED, happened
from mwatch.state.goodput import ledger
from mwatch.state.goodput.line_time import JITTER, MAX_OWED, is_fitting
from mwatch.state.goodput.step_time import SURELY_CHANCE, slow_part

_STEP: Callable[[Iterable[object]], Step] = partial(tuple.__new__, Step)


def fold_like(job: Job, placed: PlacedLines, begin: int, end: int) -> int:
    """Folds lines from `begin` on, at most up to `end`; returns the first that is not folded."""
    stream = job.streams.get(placed.stream)
    total = job.layout.total_iterations
    if total is not None:  # the line that gets there is more than one more line
        end = min(end, bisect_left(placed.lines.iterations, total))
    end = _first_bad(placed.lines, begin, end)
    if stream is None or begin >= end or not is_usual_ground(job, placed, begin):
        return begin
    job.calibration.disturbed = 0
    done, is_odd = _book(job, placed, begin, end)
    plain = done - is_odd
    if begin < plain:
        _keep_pace(job, placed.lines, begin, plain)
        _count(job, stream, placed, begin, plain)
        _advance(job, stream, placed, plain - 1)
    if is_odd:
        _count(job, stream, placed, plain, done)
        ledger.step_reported(job, job.attempt.steps[-1])
        _advance(job, stream, placed, plain)
    return done


def _first_bad(lines: StepLines, begin: int, end: int) -> int:
    """The first line with a loss that is not finite, or with a skipped iteration."""
    for values in lines.losses.values():
        if not math.isfinite(sum(values[begin:end])):
            end = next((at for at in range(begin, end) if not math.isfinite(values[at])), end)
    skipped = _part(lines, "skipped", begin, end) or ()
    return begin + next((at for at, count in enumerate(skipped) if count), end - begin)


def is_usual_ground(job: Job, placed: PlacedLines, begin: int) -> bool:
    """Whether all that a single line would be asked about stands as at the line before."""
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
    """No save, evaluation or stall since the last line, and nothing left to judge."""
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


def _book(job: Job, placed: PlacedLines, begin: int, end: int) -> tuple[int, bool]:
    """Tells calibration and ledger of each line in turn. Returns how far it got, and whether the
    last of these lines is one that the ledger must be asked about."""
    books, calibration, pace = job.ledger, job.calibration, job.ledger.pace
    usual, limit, is_full = calibration.best_step, books.slow_ratio, calibration.steps.is_full
    before, till, owed = job.attempt.steps[-1].at, books.booked_at, pace.owed
    spent, weighed = books.booked[Spent.TRAINING], books.booked_gpu[Spent.TRAINING]
    done, is_odd, weight = begin, False, books.world_size or 1
    for at, seconds, new, number in _rows(placed, begin, end):
        if usual is None or pace.slow_lines or not 0.0 < seconds < math.inf:
            break
        done += 1
        gap, told = at - before, seconds * new
        before = at
        is_telling = gap >= CLOSE_SECONDS or not number % EVERY or not is_full
        if is_telling:
            calibration.learn_step(seconds, new)
            calibration.learn(DeadlineSlot.TRAINING, max(gap, told))
            usual, is_full = calibration.best_step or usual, calibration.steps.is_full
        room = at - till if at > till else 0.0
        debt = told + owed - room
        is_odd = seconds > usual * limit
        if not -JITTER < debt < JITTER:
            is_odd = is_odd or not is_fitting(pace, told, room, debt)
        if is_odd:
            break
        owed = debt if debt < MAX_OWED else MAX_OWED
        if told > new * usual * SURELY_CHANCE or pace.slow_seconds:
            slow_part(job, new, told - new * usual, usual)
        spent += room
        weighed += room * weight
        till = at if at > till else till
    if begin < done - is_odd:
        pace.owed = owed
        books.booked[Spent.TRAINING], books.booked_gpu[Spent.TRAINING] = spent, weighed
        books.booked_at = till
    return done, is_odd


def _rows(placed: PlacedLines, begin: int, end: int) -> Iterable[tuple[float, float, int, int]]:
    lines = placed.lines
    return zip(
        placed.ats[begin:end],
        _seconds(lines, begin, end),
        lines.covers[begin:end],
        lines.numbers[begin:end],
        strict=True,
    )


def _part(lines: StepLines, field: str, begin: int, end: int) -> Sequence[float] | None:
    values = lines.varying.get(field)
    if values is not None:
        return values[begin:end]
    value = getattr(lines.steady, field)
    return None if value is None else [value] * (end - begin)


def _seconds(lines: StepLines, begin: int, end: int) -> list[float]:
    return [each / 1000.0 for each in _part(lines, "elapsed_ms", begin, end) or ()]


def _keep_pace(job: Job, lines: StepLines, begin: int, end: int) -> None:
    books, pace = job.ledger, job.ledger.pace
    told = [pace.newest_seconds, *_seconds(lines, max(begin, end - 2), end)]
    newest, before = told[-1], told[-2]
    pace.newest_seconds = newest
    pace.step_seconds = before if before and newest and before < newest else newest
    most = max(*lines.covers[begin:end], pace.interval or 1)
    pace.interval = job.layout.log_interval or most
    pace.furthest = max(pace.furthest, lines.iterations[end - 1])
    books.open.phase_began = max(books.booked_at, job.attempt.phase_since)


def _count(job: Job, stream: Stream, placed: PlacedLines, begin: int, end: int) -> None:
    """The steps themselves."""
    attempt, lines, steady = job.attempt, placed.lines, placed.lines.steady

    def part(field: str) -> Iterable[object]:
        return _part(lines, field, begin, end) or repeat(None)

    skipped = _part(lines, "skipped", begin, end) or [0] * (end - begin)
    nan = _part(lines, "nan", begin, end) or [0] * (end - begin)
    covers = lines.covers[begin:end]
    columns: Sequence[Iterable[object]] = (
        placed.ats[begin:end],
        lines.iterations[begin:end],
        covers,
        covers,
        _seconds(lines, begin, end),
        _losses(lines, begin, end),
        part("loss_scale"),
        part("grad_norm"),
        part("learning_rate"),
        part("consumed_samples"),
        repeat(steady.global_batch_size),
        skipped,
        skipped,
        nan,
        part("throughput_tflops"),
        repeat(False),
        repeat(steady.flavour),
        repeat(stream.name),
        repeat(steady.file),
        lines.numbers[begin:end],
    )
    attempt.steps.extend(map(_STEP, zip(*columns, strict=False)))  # repeat() has no end
    attempt.skipped += int(sum(skipped))
    attempt.nan += int(sum(nan))
    stream.last_iteration = lines.iterations[end - 1]
    job.now = max(job.now, placed.ats[end - 1])


def _losses(lines: StepLines, begin: int, end: int) -> Iterable[dict[str, float]]:
    named = [(name, values[begin:end]) for name, values in lines.losses.items()]
    if len(named) == 1:
        ((name, values),) = named
        return [{name: value} for value in values]
    names = [name for name, _ in named]
    rows = zip(*(values for _, values in named), strict=True) if named else repeat(())
    return (dict(zip(names, row, strict=True)) for row in rows)


def _advance(job: Job, stream: Stream, placed: PlacedLines, last: int) -> None:
    attempt, at, iteration = job.attempt, placed.ats[last], placed.lines.iterations[last]
    attempt.line_at = stream.last_at = at
    attempt.saw_evaluating = False
    attempt.evaluations_before = attempt.evaluations
    attempt.iteration = job.best_iteration = iteration
    attempt.progress_at = max(attempt.progress_at, at)
