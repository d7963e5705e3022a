# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a value stands far above what the run printed before: cheap first, careful then.

After every line a few older lines are sampled; only where the newest value is far above all it
could be compared with is the history laid out. What happened before the newest few hundred
lines no longer counts as usual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from mwatch.model.job import Step

WINDOW = 400

Reading = Callable[[Step], float | None]


def may_stand_out(steps: deque[Step], value: float, ratio: float, near: int, read: Reading) -> bool:
    """False: at no sampled older line was the value so low that `value` could stand out.

    Each sample is twice as far away as the one before, so one of them lies among the lines just
    before what stands out: those further back may be higher, as at the begin of a training.
    """
    count = len(steps)
    back = max(1, near)
    while back < min(count, WINDOW):
        older = read(steps[-1 - back])
        if older is not None and value > ratio * older:
            return True
        back *= 2
    if near < count < WINDOW:
        first = read(steps[0])
        return first is not None and value > ratio * first
    return False


def window(steps: deque[Step]) -> list[Step]:
    """The newest lines, oldest first."""
    newest = list(islice(reversed(steps), WINDOW))
    newest.reverse()
    return newest
