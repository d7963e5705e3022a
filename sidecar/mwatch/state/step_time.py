# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the iterations of a line took, without those that an earlier line has reported."""

from __future__ import annotations

import math

from mwatch.model.job import Step


def own_seconds(step: Step, before: Step | None) -> float | None:
    """Of one of the `new` iterations. Since core_v0.16 the mean of the second line of a process
    holds its slow first iteration once more."""
    printed = step.seconds
    if printed is None or not 0 < printed < math.inf or step.new < 1:
        return None
    again = step.covers - step.new
    if again > 0 and before is not None and before.is_first_of_process and before.seconds:
        rest = (printed * step.covers - before.seconds * again) / step.new
        return rest if rest > 0 else printed
    return printed
