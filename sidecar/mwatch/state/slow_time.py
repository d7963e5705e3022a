# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What steps took above the usual: slow, or the first of a process, or only chance.

A step above the usual is slow when it goes on, or by much: single steps of real jobs vary. The
first lines of a job come before anybody knows what is usual, and are judged when it is known.
"""

from __future__ import annotations

from mwatch.model.job import Job
from mwatch.model.ledger import Pace, Spent, Unjudged

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


def leave_unjudged(pace: Pace, steps: Unjudged) -> None:
    if len(pace.unjudged) < _MAX_UNJUDGED:
        pace.unjudged.append(steps)


def judge(job: Job, usual: float) -> None:
    """A usual step is known now: what earlier lines took above it is told apart."""
    ledger = job.ledger
    waiting, ledger.pace.unjudged = ledger.pace.unjudged, []
    size = job.calibration.batch_size
    for each in waiting:
        smaller = min(1.0, each.batch_size / size) if each.batch_size and size else 1.0
        steps = min(each.seconds, each.iterations * usual * smaller)
        above, redone = each.seconds - steps, each.redone
        if each.booked_as is Spent.FIRST_STEP:
            ledger.move(Spent.FIRST_STEP, Spent.TRAINING, steps * (1 - redone))
            ledger.move(Spent.FIRST_STEP, Spent.RECOMPUTED, steps * redone)
        elif each.above_is is Spent.FIRST_STEP or is_gross(job, above, usual):
            ledger.move(Spent.TRAINING, each.above_is, above * (1 - redone))
            if each.above_is is Spent.FIRST_STEP:
                ledger.move(Spent.RECOMPUTED, Spent.FIRST_STEP, above * redone)
    _judge_reach(job, usual)


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
