# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify the time between two iteration lines.

Megatron stops its interval timer for saves and evaluations, so a line reports the time of its
steps; the phases in between account for the rest. Releases before mid-2024 and some forks do not
stop the timer; a comparison with the usual step then shows that a save is included. The first line
of an attempt includes the slow first step, which is not split until the usual step is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from operator import mul
from typing import NamedTuple

from mwatch.model.goodput import BookedSpan, GoodputLedger, Parts, Spent, StepPace, Unjudged
from mwatch.model.job import Job
from mwatch.model.step import PlacedLines, Step
from mwatch.state.goodput.step_time import (
    FIRST_STEP_FACTOR,
    SAME_MOMENT,
    SKEW,
    SURELY_CHANCE,
    add,
    add_all,
    add_steps,
    bad_share,
    fit,
    is_gross,
    judge,
    leave_unjudged,
    own_seconds,
    seconds_aside,
    shares_of,
    slow_part,
    spans_within,
    split_stall,
    split_untimed,
    usual_step,
)

_HALF_BEAT = 0.5  # mean delay with which the probe observes the end of a step


class _Booked(NamedTuple):
    seconds: float  # booked as steps
    owed: float = 0.0
    step_seconds: float | None = None  # of a step that is not the first


def book_first_line(job: Job, step: Step, at: float) -> None:
    ledger, resumed_from = job.ledger, job.attempt.resumed_from
    if resumed_from is not None and 0 < step.iteration - resumed_from < step.new:
        step = step._replace(new=step.iteration - resumed_from)  # its pod did not know the resume
    step = step._replace(new=step.new + _lost(job, step))
    pace, span = ledger.pace, at - ledger.booked_at
    parts, _ = spans_within(ledger.open, ledger.booked_at, at)
    room = span - sum(parts.values())
    own, usual = own_seconds(step, None), usual_step(job)
    printed = room if own is None else own * step.new
    if pace.first_step_seconds > 0:
        booked = _after_probe(pace, parts, step, room, printed)
    else:
        booked = _alone(pace, parts, step, min(room, printed))
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
    """Return the iterations before those that the line covers, whose lines were lost."""
    attempt = job.attempt
    if attempt.resumed_from is None and attempt.load != "random":
        return 0
    return max(0, step.iteration - step.new - (attempt.resumed_from or 0))


def _after_probe(pace: StepPace, parts: Parts, step: Step, room: float, printed: float) -> _Booked:
    """Book a first line after the probe has observed the end of the first step, which it covers."""
    shares, size = shares_of(pace, step, step.new), step.batch_size
    others, known = step.new - 1, pace.first_step_seconds
    seconds = max(0.0, min(room, printed - known + _HALF_BEAT)) if others else 0.0
    add_steps(parts, seconds, shares)
    first_step = known + room - seconds
    leave_unjudged(pace, Unjudged(1, Spent.FIRST_STEP, Spent.FIRST_STEP, first_step, shares, size))
    if not others or not seconds:
        return _Booked(seconds)
    leave_unjudged(pace, Unjudged(others, Spent.TRAINING, Spent.SLOW, seconds, shares, size))
    return _Booked(seconds, min(max(0.0, printed - known - room), SKEW), seconds / others)


def _alone(pace: StepPace, parts: Parts, step: Step, seconds: float) -> _Booked:
    shares = shares_of(pace, step, step.new)
    booked_as = Spent.FIRST_STEP if step.new == 1 else Spent.TRAINING
    if booked_as is Spent.FIRST_STEP:
        add(parts, booked_as, seconds)
    else:
        add_steps(parts, seconds, shares)
    steps = (step.new, booked_as, Spent.FIRST_STEP, seconds, shares, step.batch_size)
    leave_unjudged(pace, Unjudged(*steps))
    return _Booked(seconds)


MAX_OWED = 60.0
JITTER = 2.0  # stamps are cut to seconds; a reader looks about once a second
_EDGES = 0.2  # share of a save or an evaluation that may not have been observed
RECLAIMED = (
    Spent.IDLE, Spent.WAITING_TO_ACT, Spent.DETECTING, Spent.HANG_UNDETECTED, Spent.FIRST_STEP,
    Spent.EVALUATING, Spent.SAVING,
)  # fmt: skip
_ASIDE = (Spent.SAVING, Spent.EVALUATING)
_COUNTED_IN = 0.1  # a line with a save that is above the usual by this share includes the save


def book_line(job: Job, step: Step, at: float) -> None:
    """Book the newest line of `job.attempt.steps`, printed at `at`."""
    ledger, attempt = job.ledger, job.attempt
    before = attempt.steps[-2] if len(attempt.steps) > 1 else None
    if before is None:
        book_first_line(job, step, at)
    else:
        is_second = len(attempt.steps) == 2
        own = own_seconds(step, before, is_second=is_second, aside=seconds_aside(ledger, before))
        own = _next_line(job, step, at, own)
        _keep_pace(ledger.pace, step, own, job.layout.log_interval)
    _reach(ledger.pace, step)


def _reach(pace: StepPace, step: Step) -> None:
    """Record how far sound steps got: iterations repeated after bad steps count as new."""
    pace.is_bad = bad_share(pace, step, step.new) >= 1
    if not pace.is_bad:
        pace.furthest = max(pace.furthest, step.iteration)


def book_late_line(job: Job, step: Step) -> None:
    """Book a late line of an ended attempt: its steps may explain an apparent stall at the end."""
    lines, ledger = job.attempt.steps, job.ledger
    own = own_seconds(step, lines[-2] if len(lines) > 1 else None)
    if own is None or len(lines) < 2 or step.iteration - step.new < ledger.pace.redone_until:
        return
    _reach(ledger.pace, step)
    ledger.pace.owed += own * step.new
    if ledger.pace.owed > 0:
        _reclaim(ledger)


def book_usual_line(job: Job, step: Step, at: float) -> bool:
    """Book a line if it has only new steps at usual speed, as most lines do; False: it has not."""
    ledger = job.ledger
    opened, pace, usual = ledger.open, ledger.pace, job.calibration.best_step
    if usual is None or step.seconds is None or step.covers != step.new or pace.slow_lines:
        return False
    if pace.is_bad or bad_share(pace, step, step.new):
        return False
    if opened.spans or opened.stall is not None or opened.head is not None:
        return False
    if step.iteration - step.new < pace.redone_until or pace.unjudged or pace.guess:
        return False
    lines = job.attempt.steps
    if len(lines) < 3 or job.attempt.evaluations != opened.evaluations:
        return False
    if step.iteration - step.new != lines[-2].iteration:  # a line in between was lost
        return False
    printed, room = step.seconds * step.new, at - ledger.booked_at
    owed = printed + pace.owed - room
    if not 0 < step.seconds <= usual * ledger.slow_ratio:
        return False
    if not -JITTER < owed < JITTER and not is_fitting(pace, printed, room, owed):
        return False
    pace.owed = min(owed, MAX_OWED)
    steps = step.new * usual
    if printed > steps * SURELY_CHANCE or pace.slow_seconds:
        slow_part(job, step.new, printed - steps, usual)
    pace.furthest = max(pace.furthest, step.iteration)
    _keep_pace(pace, step, step.seconds, job.layout.log_interval)
    ledger.book({Spent.TRAINING: room}, at)
    return True


class LineTimes(NamedTuple):
    """The times of usual lines, none of them disturbed, in columns."""

    ats: Sequence[float]
    gaps: Sequence[float]
    seconds: Sequence[float]  # of one iteration
    new: Sequence[int]
    printed: Sequence[float]  # seconds of all new iterations
    numbers: Sequence[int]  # of the lines

    @classmethod
    def of(cls, placed: PlacedLines, begin: int, end: int, before: float) -> LineTimes:
        """`before`: time of the line before."""
        lines, ats = placed.lines, placed.ats[begin:end]
        seconds, new = lines.seconds[begin:end], lines.covers[begin:end]
        gaps = [ats[0] - before, *placed.gaps[begin + 1 : end]]
        printed = list(map(mul, seconds, new))
        return cls(ats, gaps, seconds, new, printed, lines.numbers[begin:end])


def book_lines(job: Job, rows: LineTimes, begin: int, end: int) -> tuple[int, bool]:
    """Book lines by one usual step.

    Return how many were handled, and whether the last of them is left to `ledger.step_reported`.
    """
    end = min(end, len(rows.ats))
    if _book_even_lines(job, rows, begin, end):
        return end - begin, False
    books, pace = job.ledger, job.ledger.pace
    usual, till, owed = job.calibration.best_step or 0.0, books.booked_at, pace.owed
    spent, weighed = books.booked[Spent.TRAINING], books.booked_gpu[Spent.TRAINING]
    count, weight, slow = 0, books.world_size or 1, usual * books.slow_ratio
    is_odd = False
    columns = (rows.ats, rows.seconds, rows.new, rows.printed)
    for at, seconds, new, printed in zip(*(each[begin:end] for each in columns), strict=True):
        if pace.slow_lines or not 0.0 < seconds < math.inf:
            break
        count += 1
        room = at - till if at > till else 0.0
        debt = printed + owed - room
        is_odd = seconds > slow
        if not -JITTER < debt < JITTER:
            is_odd = is_odd or not is_fitting(pace, printed, room, debt)
        if is_odd:
            break
        owed = debt if debt < MAX_OWED else MAX_OWED
        if printed > new * usual * SURELY_CHANCE or pace.slow_seconds:
            slow_part(job, new, printed - new * usual, usual)
        spent += room
        weighed += room * weight
        till = at if at > till else till
    pace.owed, books.booked_at = owed, till
    books.booked[Spent.TRAINING], books.booked_gpu[Spent.TRAINING] = spent, weighed
    return count, is_odd


def _book_even_lines(job: Job, rows: LineTimes, begin: int, end: int) -> bool:
    """Book lines of which none is slow or far from its expected time.

    False: one is, and nothing was booked. The sums have the order of `book_lines`, so they are
    equal to the last bit.
    """
    books, pace = job.ledger, job.ledger.pace
    usual, till, owed = job.calibration.best_step or 0.0, books.booked_at, pace.owed
    ats, seconds, printed = rows.ats[begin:end], rows.seconds[begin:end], rows.printed[begin:end]
    chance = min(rows.new[begin:end], default=0) * usual * SURELY_CHANCE
    if not ats or ats[0] < till or pace.slow_lines or pace.slow_seconds:
        return False
    is_even = min(seconds) > 0.0 and max(seconds) <= usual * books.slow_ratio
    if not is_even or max(printed) > chance or not math.isfinite(sum(seconds)):
        return False
    rooms = [ats[0] - till, *rows.gaps[begin + 1 : end]]
    for each, room in zip(printed, rooms, strict=True):
        owed = each + owed - room
        if not -JITTER < owed < JITTER:
            return False
    pace.owed, books.booked_at = owed, ats[-1]
    weighed = map(mul, rooms, repeat(books.world_size or 1))
    books.booked[Spent.TRAINING] = sum(rooms, books.booked[Spent.TRAINING])
    books.booked_gpu[Spent.TRAINING] = sum(weighed, books.booked_gpu[Spent.TRAINING])
    return True


def is_fitting(pace: StepPace, printed: float, room: float, owed: float) -> bool:
    """Whether a line is usual although its steps do not match the time since the line before."""
    if owed <= -JITTER:
        return False
    if (pace.spare or owed >= MAX_OWED) and printed > room + JITTER:
        return False
    if pace.spare:
        if room < printed / 2:
            return False
        _may_reclaim(pace, {})
    return True


def _keep_pace(pace: StepPace, step: Step, own: float, log_interval: int | None) -> None:
    if own > 0:
        pace.step_seconds = min(own, pace.newest_seconds or own)  # one line may hold a stall
        pace.newest_seconds = own
    pace.interval = log_interval or max(step.new, pace.interval or 1)


def _next_line(job: Job, step: Step, at: float, own: float | None) -> float:
    """Book the line and return the seconds of one step, without a save included by mistake."""
    ledger = job.ledger
    pace, span = ledger.pace, at - ledger.booked_at
    usual = usual_step(job)
    if usual is not None and (pace.unjudged or pace.guess):
        judge(job, usual, is_guess=job.calibration.best_step is None)
    parts, untimed = spans_within(ledger.open, ledger.booked_at, at)
    untimed.intersection_update(_ASIDE)
    if job.attempt.evaluations > ledger.open.evaluations and Spent.EVALUATING not in parts:
        untimed.add(Spent.EVALUATING)
    room = span - sum(parts.values())
    printed, count = room, float(step.new)
    if own is not None:
        count += min(max(room / own - count, 0.0), _unprinted(job))
        printed = own * count
    elif usual and untimed:
        printed = usual * count
    expected = usual and count * max(usual, pace.step_seconds or 0.0)
    if parts and own is not None and (printed > room or not untimed):
        known, parts = parts, _stretch(parts, span, printed, expected)
        room = span - sum(parts.values())
        is_late = printed > span and not (expected and _is_above(printed, expected))
        printed = printed if is_late else min(printed, room)
        _carry_over(ledger, known, parts, at)
    if untimed and expected is not None and _ran_on(printed, room, expected):
        printed = expected
    trained = _trained(job, parts, untimed, room, printed)
    slow = _add_trained(job, parts, count, trained, min(printed, trained + JITTER), usual)
    ledger.book(fit(parts, span, Spent.IDLE), at)
    if slow > 0:
        ledger.move(Spent.TRAINING, Spent.SLOW, slow)
    is_late = room < printed / 2
    if pace.spare and is_late and pace.owed > JITTER:
        _reclaim(ledger)
    if not is_late:
        _may_reclaim(pace, parts)
    return printed / count


def _may_reclaim(pace: StepPace, parts: Parts) -> None:
    """Keep the time of saves and evaluations as spare, which late lines may reclaim.

    A save that seems to have taken all the time may have ended long before, if the log that
    contains its end was late, as are the lines after it.
    """
    for spent in _ASIDE:
        if spent in pace.spare:
            del pace.spare[spent]
        if spent in parts:
            add(pace.spare, spent, parts[spent])


def _reclaim(ledger: GoodputLedger) -> None:
    """Reclassify spare time as steps: delayed lines that arrive together account for it."""
    pace = ledger.pace
    for spent in [each for each in RECLAIMED if each in pace.spare]:
        seconds = min(pace.owed, pace.spare[spent])
        ledger.move(spent, Spent.BAD_STEPS if pace.is_bad else Spent.TRAINING, seconds)
        pace.owed -= seconds
        pace.spare[spent] -= seconds


def _unprinted(job: Job) -> int:
    """Return the iterations between the last two lines that neither covers.

    Their line was lost, or they were skipped and took no time.
    """
    before, step = job.attempt.steps[-2], job.attempt.steps[-1]
    return max(0, step.iteration - before.iteration - step.new)


def _carry_over(ledger: GoodputLedger, known: Parts, parts: Parts, at: float) -> None:
    """Move a save that does not fit beside the steps to after the line, since clocks differ."""
    for spent, seconds in known.items():
        if parts.get(spent, 0.0) < seconds / 2:
            ledger.open.spans.append(BookedSpan(spent, at + SAME_MOMENT, at + SAME_MOMENT))


def _stretch(parts: Parts, span: float, printed: float, expected: float | None) -> Parts:
    """Scale saves and evaluations to the time that the steps leave.

    Their begin and end are observed late, while the timer of the steps is exact, unless it was not
    stopped for them.
    """
    known = sum(parts.values())
    room = span - known
    if printed > room:
        ran_on = expected is not None and _is_above(printed, expected)
        sure = expected if expected is not None and ran_on else printed
        wanted = min(known, max(span - sure, 0.0))
    else:
        wanted = known + min(room - printed, max(SKEW, known * _EDGES))
    share = wanted / known
    return {spent: seconds * share for spent, seconds in parts.items()}


def _ran_on(printed: float, room: float, expected: float) -> bool:
    """Whether the timer ran during a save: the steps took all of the time, and too much."""
    return printed > room - JITTER and _is_above(printed, expected)


def _is_above(printed: float, expected: float) -> bool:
    return printed > expected * (1 + _COUNTED_IN) + JITTER


def _trained(job: Job, parts: Parts, untimed: set[Spent], room: float, printed: float) -> float:
    """Return the seconds of `room` that were steps; add the rest to `parts`."""
    pace = job.ledger.pace
    claim = printed + pace.owed
    trained = max(0.0, min(claim, room))
    if untimed:
        pace.owed = min(claim - trained, MAX_OWED)
        add_all(parts, split_untimed(untimed, room - trained, job.calibration))
        return trained
    if claim > room - JITTER:
        pace.owed = min(claim - room, MAX_OWED)
        return room
    pace.owed = min(claim, 0.0)
    unexplained = _unexplained(job.ledger, room - trained)
    add_all(parts, unexplained)
    add_all(pace.spare, unexplained)
    return trained


def _unexplained(ledger: GoodputLedger, seconds: float) -> Parts:
    """Split unexplained time by the stall detected since the last line; if none was, it is idle."""
    stall, begin = ledger.open.stall, ledger.booked_at
    if stall is None:
        return {Spent.IDLE: seconds}
    return split_stall(stall, begin, begin + seconds)


def _add_trained(
    job: Job, parts: Parts, count: float, trained: float, printed: float, usual: float | None
) -> float:
    """Add `count` steps to `parts`; return the seconds of training that were slow.

    These are by the printed time. Steps that had no room yet keep their slow part in `owed`.
    """
    ledger, step = job.ledger, job.attempt.steps[-1]
    shares = shares_of(ledger.pace, step, count)
    above = printed - count * usual if usual else 0.0
    if usual and ledger.open.stall is not None and is_gross(job, above, usual):
        lost = min(above, trained)
        add_all(parts, _unexplained(ledger, lost))
        add_steps(parts, trained - lost, shares)
        return 0.0
    add_steps(parts, trained, shares)
    if usual is None:
        steps = (step.new, Spent.TRAINING, Spent.SLOW, trained, shares, step.batch_size)
        leave_unjudged(ledger.pace, Unjudged(*steps))
        return 0.0
    return slow_part(job, count, above * shares.good, usual)
