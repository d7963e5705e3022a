# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the iterations of a line took, without those that an earlier line has reported."""

from __future__ import annotations

import math

from mwatch.model.job import Step


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
