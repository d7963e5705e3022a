# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Wall time that never jumps: the wall clock at the start plus monotonic time since.

Durations must not change when the clock is set, but people and files need wall time. `drift` is the
difference to the wall clock after it was set.
"""

from __future__ import annotations

import time


def earlier(now: float) -> float:
    """The earlier of `now` and the wall clock: a pause until some time holds while either clock is
    before that time."""
    return min(now, time.time())


class Clock:
    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970, based on the wall clock at the start."""
        return time.monotonic() + self._ahead

    def drift(self) -> float:
        """Seconds that the wall clock was set forward since the start; negative if set back."""
        return time.time() - self.now()
