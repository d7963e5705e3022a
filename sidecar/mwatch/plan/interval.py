# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How often to save: Young's and Daly's answer, and the goodput that follows.

Young 1974: sqrt(2 C M). Daly 2006: the same with the terms that matter when a save is long beside
the time between failures. Failures are taken as independent, at one rate; a rate is a guess until
this cluster has been watched: `mwatch replay` of old logs gives its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

FAILURES_PER_1000_GPU_DAYS = 0.47
"""Llama 3 405B: 419 unexpected interruptions of 16,384 GPUs in 54 days."""
_LONGEST_EXPONENT = 50.0


class Saving(NamedTuple):
    interval_seconds: float
    stall_seconds: float
    """Of one save, for which training waits."""
    young_seconds: float
    goodput: float
    """Share of the time in which new steps are made, of 0 to 1."""


def mean_time_between_failures(gpus: int, per_1000_gpu_days: float) -> float:
    """Of the whole job, in seconds."""
    return 86400.0 * 1000 / (gpus * per_1000_gpu_days)


def young(stall: float, between: float) -> float:
    return math.sqrt(2 * stall * between)


def daly(stall: float, between: float) -> float:
    """Seconds of work from the end of one save to the begin of the next."""
    if stall >= 2 * between:
        return between
    ratio = stall / (2 * between)
    return young(stall, between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def goodput(work: float, stall: float, between: float, recovery: float) -> float:
    """Daly's expected time of one interval, failures and repeats in it, against its work."""
    if recovery / between > _LONGEST_EXPONENT or (work + stall) / between > _LONGEST_EXPONENT:
        return 0.0
    spent = between * math.exp(recovery / between) * math.expm1((work + stall) / between)
    return work / spent


def saving(stall: float, write: float, between: float, restart: float) -> Saving:
    """`write` is how long the bytes take; with a save that training waits for, `stall` is that.

    A save in the background cannot begin before the one before it has ended, and while it is
    written a failure goes back one interval more.
    """
    work = max(daly(stall, between), write - stall)
    behind = max(write - stall, 0.0)
    rate = goodput(work, stall, between, restart + behind)
    return Saving(work, stall, young(stall, between), rate)
