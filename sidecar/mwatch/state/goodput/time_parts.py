# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small sums over parts of time: whatever was guessed, the parts are never negative and add up.

What the iterations of a line took, without those that an earlier line has reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mwatch.model.calibration import Calibration
from mwatch.model.goodput import (
    BookedStall,
    GoodputLedger,
    Open,
    Parts,
    Spent,
    StepPace,
    StepShares,
)
from mwatch.model.job import Step
from mwatch.model.phase import DeadlineSlot

SAME_MOMENT = 1e-3
SKEW = 5.0
"""Seconds that the clocks of two pods may differ by."""
_HIDE_NAN = frozenset({"megatron", "bridge", "deepspeed"})
_SLOTS = {Spent.SAVING: DeadlineSlot.SAVING, Spent.EVALUATING: DeadlineSlot.EVALUATING}


def add(parts: Parts, spent: Spent, seconds: float) -> None:
    if seconds > 0:
        parts[spent] = parts.get(spent, 0.0) + seconds


def add_steps(parts: Parts, seconds: float, shares: StepShares) -> None:
    add(parts, Spent.BAD_STEPS, seconds * shares.bad)
    add(parts, Spent.RECOMPUTED, seconds * (1 - shares.bad) * shares.redone)
    add(parts, Spent.TRAINING, seconds * shares.good)


def fit(parts: Parts, span: float, rest: Spent) -> Parts:
    """The same parts, made to fill `span`: what is too much is cut evenly."""
    total = sum(parts.values())
    if total > span:
        share = span / total
        return {spent: seconds * share for spent, seconds in parts.items() if share > 0}
    add(parts, rest, span - total)
    return parts


def spans_within(opened: Open, begin: float, end: float) -> tuple[Parts, set[Spent]]:
    """How long saves and evaluations took between two moments, and which took nobody knows
    how long."""
    parts: Parts = {}
    untimed: set[Spent] = set()
    for spent, began, ended in opened.spans:
        if ended - began > SAME_MOMENT:
            add(parts, spent, min(ended, end) - max(began, begin))
        elif began <= end:
            untimed.add(spent)
    total = sum(parts.values())
    if total > end - begin:
        parts = fit(parts, end - begin, Spent.IDLE)
    return parts, untimed - parts.keys()


def seconds_aside(ledger: GoodputLedger, before: Step | None) -> float:
    """That saves and evaluations are known to have taken since a line."""
    if before is None or not ledger.open.spans:
        return 0.0
    return sum(spans_within(ledger.open, before.at, math.inf)[0].values())


def split_stall(stall: BookedStall, begin: float, end: float) -> Parts:
    """Time in which nothing moved: nobody knew, it was being looked at, it was decided."""
    detected = min(max(stall.detected_at, begin), end)
    decided = end if stall.decided_at is None else min(max(stall.decided_at, detected), end)
    parts: Parts = {}
    add(parts, Spent.HANG_UNDETECTED, detected - begin)
    add(parts, Spent.DETECTING, decided - detected)
    add(parts, Spent.WAITING_TO_ACT, end - decided)
    return parts


def split_untimed(spents: Iterable[Spent], seconds: float, calibration: Calibration) -> Parts:
    """Saves and evaluations share what is left, by how long each usually takes."""
    usual = {
        spent: calibration.durations[_SLOTS[spent]].median() if spent in _SLOTS else None
        for spent in sorted(spents)
    }
    total = sum(each or 0.0 for each in usual.values())
    if None in usual.values() or total <= 0:
        return {spent: seconds / len(usual) for spent in usual}
    return {spent: seconds * (each or 0.0) / total for spent, each in usual.items()}


def redone_share(pace: StepPace, last: float, iterations: float) -> float:
    """Of the iterations up to and with `last`, how many an earlier attempt had done."""
    if iterations <= 0:
        return 0.0
    again = pace.redone_until - (last - iterations)
    return min(max(again / iterations, 0.0), 1.0)


def bad_share(pace: StepPace, step: Step, iterations: float) -> float:
    """Of the iterations up to and with those of a line, how many trained nothing."""
    if not all(map(math.isfinite, step.losses.values())) or _hides_nan(pace, step):
        return 1.0
    return min(step.skipped / iterations, 1.0) if step.skipped and iterations > 0 else 0.0


def _hides_nan(pace: StepPace, step: Step) -> bool:
    """The loss that lines used to print is missing: Megatron prints no mean that is NaN. A mean
    below zero is missing too, but its gradients are finite."""
    if pace.loss_name is None or pace.loss_name in step.losses:
        return False
    is_skipped = step.covers <= step.skipped_printed
    is_sound = step.grad_norm is not None and math.isfinite(step.grad_norm)
    return step.flavour in _HIDE_NAN and not is_skipped and not is_sound


def shares_of(pace: StepPace, step: Step, iterations: float) -> StepShares:
    """Of the iterations up to and with those of a line."""
    redone = redone_share(pace, step.iteration, iterations)
    return StepShares(redone, bad_share(pace, step, iterations))


def own_seconds(
    step: Step, before: Step | None, *, is_second: bool = False, aside: float = 0.0
) -> float | None:
    """Of one of the `new` iterations. Since core_v0.16 the mean of the second line of a process
    holds its slow first iteration once more. `aside`: seconds between the two lines that saves
    and evaluations are known to have taken."""
    printed = step.seconds
    if printed is None or not 0 < printed < math.inf or step.new < 1:
        return None
    if before is None or not before.seconds:
        return printed
    again = step.covers - step.new
    if again > 0 and before.is_first_of_process:
        return _without(step, printed * step.covers, before.seconds * again) or printed
    if is_second:
        # A pod that tells nothing of the resume before it prints a first line that does not look
        # like one. The clock shows whether the second line counts it in.
        gap = step.at - before.at - aside
        rest = _without(step, printed * (step.new + 1), before.seconds)
        if rest and abs(rest * step.new - gap) < abs(printed * step.new - gap) / 2:
            return rest
    return printed


def _without(step: Step, all_of_it: float, counted_again: float) -> float | None:
    rest = (all_of_it - counted_again) / step.new
    return rest if rest > 0 else None
