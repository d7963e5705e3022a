# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Time that never jumps: the wall clock as it was at the start, and monotonic time since.

Durations must not change when somebody sets the clock; people and files want wall time. Both
come from one place, so a moment of the monotonic clock (of a probe's record) can be told as a
moment of the run.
"""

from __future__ import annotations

import time


class Clock:
    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970, by the wall clock of the start."""
        return time.monotonic() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def at(self, monotonic: float) -> float:
        """The moment of a monotonic time of this machine."""
        return monotonic + self._ahead
