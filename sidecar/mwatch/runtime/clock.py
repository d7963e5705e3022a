# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Time that never jumps: the wall clock as it was at the start, and monotonic time since.

Durations must not change when somebody sets the clock; people and files want wall time. After
the clock was set the two differ, by `drift`.
"""

from __future__ import annotations

import time


def earlier(now: float) -> float:
    """`now`, or the wall clock where that is behind: what a person has forbidden until a moment
    stays forbidden while either clock says so, and nothing looks older than it may be."""
    return min(now, time.time())


class Clock:
    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970, by the wall clock of the start."""
        return time.monotonic() + self._ahead

    def drift(self) -> float:
        """Seconds by which the wall clock was set forward since the start; back: negative."""
        return time.time() - self.now()
