# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the iterations of a line took, without those that an earlier line has reported."""

from __future__ import annotations

import math

from mwatch.model.job import Step

_JITTER = 1.5  # of printed times: they may be cut to seconds


def own_seconds(step: Step, before: Step | None) -> float | None:
    """Of one of the `new` iterations. Since core_v0.16 the mean of the second line of a process
    holds its slow first iteration once more."""
    printed = step.seconds
    if printed is None or not 0 < printed < math.inf or step.new < 1:
        return None
    if before is None or not before.seconds:
        return printed
    again = step.covers - step.new
    if again > 0 and before.is_first_of_process:
        rest = (printed * step.covers - before.seconds * again) / step.new
        return rest if rest > 0 else printed
    if before.new == 1 and printed * step.new > step.at - before.at + _JITTER:
        # A first line that does not look like one, after a resume that its pod tells nothing of:
        # more than the time there was, and less than nothing only if it was not so.
        rest = (printed * (step.new + 1) - before.seconds) / step.new
        return rest if 0 < rest < printed else printed
    return printed
