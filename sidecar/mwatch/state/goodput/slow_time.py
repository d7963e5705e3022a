# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What steps took above the usual: slow, or the first of a process, or only chance.

A step above the usual is slow when it goes on, or by much: single steps of real jobs vary. The
first lines of a job come before anybody knows what is usual, and are judged when it is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.model.goodput import Guess, Parts, Spent, StepPace, Unjudged
from mwatch.model.job import Job
from mwatch.state.goodput.time_parts import add_steps

FIRST_STEP_FACTOR = 10.0  # that a first step takes, of a job that has shown no other yet
_MOST_ABOVE = 10.0
_FEW_LINES = 3
_MAX_UNJUDGED = 16
_SLOW_LINES = 3
_SLOW_ITERATIONS = 8
_NOISE = 0.1
SURELY_CHANCE = 1 + _NOISE / 2
"""Times the usual: not even the edge of a slow time."""
_SIGMAS = 4.0
_GROSS_SECONDS = 5.0
_LEAST_TAIL_STEPS = 2.5
_MOST_TAIL_STEPS = 5.0
_TAIL_SIGMAS = 20.0


def usual_step(job: Job) -> float | None:
    """None: too few lines to tell a usual step from a stall."""
    known = job.calibration
    has_some = known.best_step is not None or len(known.recent) >= _FEW_LINES
    return known.usual_step() if has_some else None


def leave_unjudged(pace: StepPace, steps: Unjudged) -> None:
    if len(pace.unjudged) < _MAX_UNJUDGED:
        pace.unjudged.append(steps)


def judge(job: Job, usual: float, *, is_guess: bool = False) -> None:
    """A usual step is known now: what earlier lines took above it is told apart. What was only
    guessed before is taken back."""
    ledger, pace = job.ledger, job.ledger.pace
    if pace.guess is not None:
        for source, target, seconds in reversed(pace.guess.moved):
            ledger.move(target, source, seconds)
        pace.unjudged = [*pace.guess.steps, *pace.unjudged]
    waiting, pace.unjudged, pace.guess = pace.unjudged[-_MAX_UNJUDGED:], [], None
    moves = [move for each in waiting for move in _told_apart(job, each, usual)]
    for source, target, seconds in moves:
        ledger.move(source, target, seconds)
    if is_guess:
        pace.guess = Guess(waiting, moves)
    else:
        _judge_reach(job, usual)


def _told_apart(job: Job, each: Unjudged, usual: float) -> Iterator[tuple[Spent, Spent, float]]:
    size = job.calibration.batch_size
    smaller = min(1.0, each.batch_size / size) if each.batch_size and size else 1.0
    steps = min(each.seconds, each.iterations * usual * smaller)
    above, parts = each.seconds - steps, Parts()
    if each.booked_as is Spent.FIRST_STEP:
        add_steps(parts, steps, each.shares)
        for spent, seconds in parts.items():
            yield Spent.FIRST_STEP, spent, seconds
    elif each.above_is is Spent.FIRST_STEP or is_gross(job, above, usual):
        add_steps(parts, above, each.shares)
        for spent, seconds in parts.items():
            if spent is Spent.TRAINING or each.above_is is Spent.FIRST_STEP:
                yield spent, each.above_is, seconds


def _judge_reach(job: Job, usual: float) -> None:
    """An attempt that died before it showed its pace had got so far: what this one has done of
    that, it has done again."""
    pace, lines = job.ledger.pace, job.attempt.steps
    before, pace.unknown_reach = pace.unknown_reach, None
    if before is None:
        return
    reached = before.reported + before.seconds / usual
    pace.furthest = max(pace.furthest, reached)
    if len(lines) > 1:
        first = (job.attempt.first_iteration or 1) - 1
        begin = max(pace.redone_until, first, job.attempt.resumed_from or 0)
        again = min(reached, lines[-2].iteration) - begin
        if again > 0:
            job.ledger.move(Spent.TRAINING, Spent.RECOMPUTED, again * usual)
    pace.redone_until = max(pace.redone_until, reached)


def pace_by_save(job: Job) -> float | None:
    """Seconds of a step between the last line and a save that followed, which names its
    iteration."""
    attempt, opened = job.attempt, job.ledger.open
    if not attempt.steps or attempt.evaluations != opened.evaluations:
        return None
    last = attempt.steps[-1]
    names = [known.iteration for known in job.checkpoints.values()
             if known.attempt == attempt.number and known.iteration > last.iteration]  # fmt: skip
    begun = [span.begin for span in opened.spans if span.spent is Spent.SAVING]
    if len(names) != 1 or len(begun) != 1 or names[0] < last.iteration + _FEW_LINES:
        return None
    seconds = (begun[0] - last.at) / (names[0] - last.iteration)
    return seconds if seconds > 0 else None


def guess_by_first_line(job: Job) -> float | None:
    """Seconds of a step, where one line is all that there is and holds the first step too: a
    first step takes as long as ten others, but seconds, not minutes."""
    attempt, waiting = job.attempt, job.ledger.pace.unjudged
    if len(attempt.steps) != 1 or len(waiting) != 1 or waiting[0].iterations < 2:
        return None
    seconds, count = waiting[0].seconds, waiting[0].iterations
    return max(seconds / (count - 1 + FIRST_STEP_FACTOR), (seconds - _MOST_ABOVE) / count)


def slow_part(job: Job, iterations: float, above: float, usual: float) -> float:
    """Of what a line took above the usual. What the first slow lines were is known after a few
    more, and the lines at both ends of a slow time are slow in part."""
    pace, steps, chance = job.ledger.pace, iterations * usual, noise(job, iterations, usual)
    if above <= max(steps * (job.ledger.slow_ratio - 1), chance):
        edge = above if above > chance / 2 else 0.0
        was_slow, pace.is_slow = pace.is_slow, False
        pace.slow_lines = pace.slow_iterations = 0
        pace.slow_seconds = 0.0 if was_slow else edge
        return edge if was_slow else 0.0
    pace.slow_lines += 1
    pace.slow_iterations += iterations
    is_lasting = pace.slow_lines >= _SLOW_LINES and pace.slow_iterations >= _SLOW_ITERATIONS
    pace.is_slow = is_lasting or is_gross(job, above, usual)
    before = pace.slow_seconds
    pace.slow_seconds = 0.0 if pace.is_slow else before + above
    return before + above if pace.is_slow else 0.0


def noise(job: Job, iterations: float, usual: float) -> float:
    """So much above the usual is chance."""
    return iterations * max(_NOISE * usual, _SIGMAS * job.calibration.best_spread)


def is_gross(job: Job, above: float, usual: float) -> bool:
    """More than the heavy tail of a noisy job: something stood still."""
    tail = _TAIL_SIGMAS * job.calibration.best_spread
    tail = min(max(tail, _LEAST_TAIL_STEPS * usual), _MOST_TAIL_STEPS * usual)
    return above > max(_GROSS_SECONDS, tail)
