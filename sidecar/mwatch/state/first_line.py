# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The first line of an attempt: the slow first step is in it, among others or alone.

What the first step took above the others is known only when others are known: until then all
of it is booked as one thing, and judged later.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.model.job import Job, Step
from mwatch.model.ledger import Pace, Parts, Spent, Unjudged
from mwatch.state.slow_time import FIRST_STEP_FACTOR, judge, leave_unjudged, usual_step
from mwatch.state.step_time import own_seconds
from mwatch.state.time_parts import SKEW, add, add_steps, fit, redone_share, spans_within

_HALF_BEAT = 0.5  # the probe sees the end of a step by so much too late, on average


class _Booked(NamedTuple):
    seconds: float
    """Of the room that there was, as steps."""
    owed: float = 0.0
    step_seconds: float | None = None
    """Of a step that is not the first."""


def book_first_line(job: Job, step: Step, at: float) -> None:
    ledger, resumed_from = job.ledger, job.attempt.resumed_from
    if resumed_from is not None and 0 < step.iteration - resumed_from < step.new:
        step = step._replace(new=step.iteration - resumed_from)  # its pod knew of no resume
    step = step._replace(new=step.new + _lost(job, step))
    pace, span = ledger.pace, at - ledger.booked_at
    parts, _ = spans_within(ledger.open, ledger.booked_at, at)
    room = span - sum(parts.values())
    own, usual = own_seconds(step, None), usual_step(job)
    told = room if own is None else own * step.new
    if pace.first_step_seconds > 0:
        booked = _after_the_probe(pace, parts, step, room, told)
    else:
        booked = _alone(pace, parts, step, min(room, told))
    rest = ledger.open.head.spent if ledger.open.head is not None else Spent.FIRST_STEP
    if rest is Spent.FIRST_STEP:
        add(pace.spare, rest, room - booked.seconds)
    ledger.book(fit(parts, span, rest), at)
    pace.owed = booked.owed
    guess = None if own is None else own / FIRST_STEP_FACTOR if step.new == 1 else own
    pace.step_seconds = booked.step_seconds or usual or pace.step_seconds or guess
    pace.interval = job.layout.log_interval or pace.interval or (step.new if step.new > 1 else None)
    if usual is not None:
        judge(job, usual, is_guess=job.calibration.best_step is None)


def _lost(job: Job, step: Step) -> int:
    """Iterations before those that the line speaks for: the first lines were lost."""
    attempt = job.attempt
    if attempt.resumed_from is None and attempt.load != "random":
        return 0
    return max(0, step.iteration - step.new - (attempt.resumed_from or 0))


def _after_the_probe(pace: Pace, parts: Parts, step: Step, room: float, told: float) -> _Booked:
    """The probe has seen the first step end; the line counts it in."""
    redone, size = redone_share(pace, step.iteration, step.new), step.batch_size
    others, known = step.new - 1, pace.first_step_seconds
    seconds = max(0.0, min(room, told - known + _HALF_BEAT)) if others else 0.0
    add_steps(parts, seconds, redone)
    first_step = known + room - seconds
    leave_unjudged(pace, Unjudged(1, Spent.FIRST_STEP, Spent.FIRST_STEP, first_step, redone, size))
    if not others or not seconds:
        return _Booked(seconds)
    leave_unjudged(pace, Unjudged(others, Spent.TRAINING, Spent.SLOW, seconds, redone, size))
    return _Booked(seconds, min(max(0.0, told - known - room), SKEW), seconds / others)


def _alone(pace: Pace, parts: Parts, step: Step, seconds: float) -> _Booked:
    redone = redone_share(pace, step.iteration, step.new)
    booked_as = Spent.FIRST_STEP if step.new == 1 else Spent.TRAINING
    if booked_as is Spent.FIRST_STEP:
        add(parts, booked_as, seconds)
    else:
        add_steps(parts, seconds, redone)
    steps = (step.new, booked_as, Spent.FIRST_STEP, seconds, redone, step.batch_size)
    leave_unjudged(pace, Unjudged(*steps))
    return _Booked(seconds)
