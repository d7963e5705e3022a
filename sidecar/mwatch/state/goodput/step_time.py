# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The time of steps: shares of bad and repeated iterations, seconds per iteration, and how much was
slow, a first step, or noise. Parts of time are never negative and add up to the whole.

Time above the usual step is slow if it persists over several lines or is far above it: single steps
of real jobs vary. The first lines of a job come before its usual step is known, and are judged
later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mwatch.model.calibration import Calibration
from mwatch.model.goodput import (
    BookedStall,
    GoodputLedger,
    Guess,
    Open,
    Parts,
    Spent,
    StepPace,
    StepShares,
    Unjudged,
)
from mwatch.model.job import Job
from mwatch.model.phase import DeadlineSlot
from mwatch.model.step import Step

SAME_MOMENT = 1e-3
SKEW = 5.0  # Seconds that the clocks of two pods may differ by
_HIDE_NAN = frozenset({"megatron", "bridge", "deepspeed"})
_SLOTS = {Spent.SAVING: DeadlineSlot.SAVING, Spent.EVALUATING: DeadlineSlot.EVALUATING}


def add(parts: Parts, spent: Spent, seconds: float) -> None:
    if seconds > 0:
        parts[spent] = parts.get(spent, 0.0) + seconds


def add_all(parts: Parts, more: Parts) -> None:
    for spent, seconds in more.items():
        add(parts, spent, seconds)


def add_steps(parts: Parts, seconds: float, shares: StepShares) -> None:
    add(parts, Spent.BAD_STEPS, seconds * shares.bad)
    add(parts, Spent.RECOMPUTED, seconds * (1 - shares.bad) * shares.redone)
    add(parts, Spent.TRAINING, seconds * shares.good)


def fit(parts: Parts, span: float, rest: Spent) -> Parts:
    """Make the parts fill `span`: cut the excess evenly, or add what is missing as `rest`."""
    total = sum(parts.values())
    if total > span:
        share = span / total
        return {spent: seconds * share for spent, seconds in parts.items() if share > 0}
    add(parts, rest, span - total)
    return parts


def spans_within(opened: Open, begin: float, end: float) -> tuple[Parts, set[Spent]]:
    """Return the seconds of saves and evaluations within two times, and kinds of unknown length."""
    parts: Parts = {}
    untimed: set[Spent] = set()
    for spent, began, ended in opened.spans:
        if ended - began > SAME_MOMENT:
            add(parts, spent, min(ended, end) - max(began, begin))
        elif began <= end:
            untimed.add(spent)
    if sum(parts.values()) > end - begin:
        parts = fit(parts, end - begin, Spent.IDLE)
    return parts, untimed - parts.keys()


def seconds_aside(ledger: GoodputLedger, before: Step | None) -> float:
    """Known seconds of saves and evaluations since a line."""
    if before is None or not ledger.open.spans:
        return 0.0
    return sum(spans_within(ledger.open, before.at, math.inf)[0].values())


def split_stall(stall: BookedStall, begin: float, end: float) -> Parts:
    """Split a stall into the time until detection, until the decision, and until the end."""
    detected = min(max(stall.detected_at, begin), end)
    decided = end if stall.decided_at is None else min(max(stall.decided_at, detected), end)
    parts: Parts = {}
    add(parts, Spent.HANG_UNDETECTED, detected - begin)
    add(parts, Spent.DETECTING, decided - detected)
    add(parts, Spent.WAITING_TO_ACT, end - decided)
    return parts


def split_untimed(spents: Iterable[Spent], seconds: float, calibration: Calibration) -> Parts:
    """Divide seconds between saves and evaluations in proportion to their usual durations."""
    usual = {
        spent: calibration.durations[_SLOTS[spent]].median() if spent in _SLOTS else None
        for spent in sorted(spents)
    }
    total = sum(each or 0.0 for each in usual.values())
    if None in usual.values() or total <= 0:
        return {spent: seconds / len(usual) for spent in usual}
    return {spent: seconds * (each or 0.0) / total for spent, each in usual.items()}


def redone_share(pace: StepPace, last: float, iterations: float) -> float:
    """Return the share of the `iterations` up to `last` that an earlier attempt had done."""
    if iterations <= 0:
        return 0.0
    again = pace.redone_until - (last - iterations)
    return min(max(again / iterations, 0.0), 1.0)


def bad_share(pace: StepPace, step: Step, iterations: float) -> float:
    """Return the share of the last `iterations` of a line that did not train the model."""
    if not all(map(math.isfinite, step.losses.values())) or _hides_nan(pace, step):
        return 1.0
    return min(step.skipped / iterations, 1.0) if step.skipped and iterations > 0 else 0.0


def _hides_nan(pace: StepPace, step: Step) -> bool:
    """Whether a missing loss means NaN.

    Megatron prints no mean that is NaN. It also leaves out a mean below zero, but then the
    gradients are finite.
    """
    if pace.loss_name is None or pace.loss_name in step.losses:
        return False
    is_skipped = step.covers <= step.skipped_printed
    is_sound = step.grad_norm is not None and math.isfinite(step.grad_norm)
    return step.flavour in _HIDE_NAN and not is_skipped and not is_sound


def shares_of(pace: StepPace, step: Step, iterations: float) -> StepShares:
    redone = redone_share(pace, step.iteration, iterations)
    return StepShares(redone, bad_share(pace, step, iterations))


def own_seconds(
    step: Step, before: Step | None, *, is_second: bool = False, aside: float = 0.0
) -> float | None:
    """Return the seconds of one of the `new` iterations; None: not printed.

    Since core_v0.16 the mean of a process's second line includes its slow first iteration again.
    `aside`: known seconds of saves and evaluations.
    """
    printed = step.seconds
    if printed is None or not 0 < printed < math.inf or step.new < 1:
        return None
    if before is None or not before.seconds:
        return printed
    again = step.covers - step.new
    if again > 0 and before.is_first_of_process:
        return _without(step, printed * step.covers, before.seconds * again) or printed
    if is_second:
        # Without a resume in the log, the first line is not recognised as such; the time between
        # the lines shows whether the second one includes it.
        gap = step.at - before.at - aside
        rest = _without(step, printed * (step.new + 1), before.seconds)
        if rest and abs(rest * step.new - gap) < abs(printed * step.new - gap) / 2:
            return rest
    return printed


def _without(step: Step, all_of_it: float, counted_again: float) -> float | None:
    rest = (all_of_it - counted_again) / step.new
    return rest if rest > 0 else None


FIRST_STEP_FACTOR = 10.0  # assumed length of a first step in steps, until another was observed
_MOST_ABOVE = 10.0
_FEW_LINES = 3
_MAX_UNJUDGED = 16
_SLOW_LINES = 3
_SLOW_ITERATIONS = 8
_NOISE = 0.1
SURELY_CHANCE = 1 + _NOISE / 2  # times the usual step; up to here a line is not even slow in part
_SIGMAS = 4.0
_GROSS_SECONDS = 5.0
_LEAST_TAIL_STEPS = 2.5
_MOST_TAIL_STEPS = 5.0
_TAIL_SIGMAS = 20.0


def usual_step(job: Job) -> float | None:
    """Return the seconds of a usual step; None: too few lines to distinguish it from a stall."""
    known = job.calibration
    has_some = known.best_step is not None or len(known.recent) >= _FEW_LINES
    return known.usual_step() if has_some else None


def leave_unjudged(pace: StepPace, steps: Unjudged) -> None:
    if len(pace.unjudged) < _MAX_UNJUDGED:
        pace.unjudged.append(steps)


def judge(job: Job, usual: float, *, is_guess: bool = False) -> None:
    """Reclassify the time that earlier lines took above the usual step, which is known now.

    Earlier guesses are undone.
    """
    ledger, pace = job.ledger, job.ledger.pace
    if pace.guess is not None:
        for source, target, seconds in reversed(pace.guess.moved):
            ledger.move(target, source, seconds)
        pace.unjudged = [*pace.guess.steps, *pace.unjudged]
    waiting, pace.unjudged, pace.guess = pace.unjudged[-_MAX_UNJUDGED:], [], None
    moves = [move for each in waiting for move in _moves(job, each, usual)]
    for source, target, seconds in moves:
        ledger.move(source, target, seconds)
    if is_guess:
        pace.guess = Guess(waiting, moves)
    else:
        _judge_reach(job, usual)


def _moves(job: Job, each: Unjudged, usual: float) -> Iterator[tuple[Spent, Spent, float]]:
    size = job.calibration.batch_size
    smaller = min(1.0, each.batch_size / size) if each.batch_size and size else 1.0
    steps = min(each.seconds, each.iterations * usual * smaller)
    above, parts = each.seconds - steps, Parts()
    if each.booked_as is Spent.FIRST_STEP:
        add_steps(parts, steps, each.shares)
        yield from ((Spent.FIRST_STEP, spent, seconds) for spent, seconds in parts.items())
    elif each.above_is is Spent.FIRST_STEP or is_gross(job, above, usual):
        add_steps(parts, above, each.shares)
        for spent, seconds in parts.items():
            if spent is Spent.TRAINING or each.above_is is Spent.FIRST_STEP:
                yield spent, each.above_is, seconds


def _judge_reach(job: Job, usual: float) -> None:
    """Reclassify as recomputed the steps of an attempt that ended before its pace was known."""
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
    """Return the seconds of a step, by the one save after the last line that has an iteration."""
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
    """Estimate the seconds of a step from a single line that includes the first step.

    A first step is assumed to take as long as ten others, but at most seconds, not minutes, longer.
    """
    attempt, waiting = job.attempt, job.ledger.pace.unjudged
    if len(attempt.steps) != 1 or len(waiting) != 1 or waiting[0].iterations < 2:
        return None
    seconds, count = waiting[0].seconds, waiting[0].iterations
    return max(seconds / (count - 1 + FIRST_STEP_FACTOR), (seconds - _MOST_ABOVE) / count)


def slow_part(job: Job, iterations: float, above: float, usual: float) -> float:
    """Return the seconds above the usual that were slow.

    The first slow lines are known to be slow only after a few more, and the lines at both ends of a
    slow period are slow in part.
    """
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
    """Return the seconds above the usual that may be chance."""
    return iterations * max(_NOISE * usual, _SIGMAS * job.calibration.best_spread)


def is_gross(job: Job, above: float, usual: float) -> bool:
    """Whether the excess is larger than the heavy tail of a noisy job, so the job was stalled."""
    tail = _TAIL_SIGMAS * job.calibration.best_spread
    tail = min(max(tail, _LEAST_TAIL_STEPS * usual), _MOST_TAIL_STEPS * usual)
    return above > max(_GROSS_SECONDS, tail)
