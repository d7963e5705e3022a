# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Holds a thread of ours to a small share of one core, which belongs to the trainer.

A burst (the start of a job, a traceback of every rank) is free; only what goes on is held back.
"""

from __future__ import annotations

import threading
import time

SHARE = 0.05
BURST_SECONDS = 0.25


class Pace:
    """Belongs to the thread that calls `hold`."""

    def __init__(self) -> None:
        self._hurry = threading.Event()
        self._allowance = BURST_SECONDS
        self._at = time.monotonic()
        self._cpu = 0.0

    def hold(self) -> None:
        """Sleeps for as long as this thread was over its share; not any more after `hurry`."""
        now, cpu = time.monotonic(), time.thread_time()
        earned = (now - self._at) * SHARE
        self._allowance = min(self._allowance + earned - (cpu - self._cpu), BURST_SECONDS)
        self._at, self._cpu = now, cpu
        if self._allowance < 0:
            self._hurry.wait(min(-self._allowance / SHARE, 1.0))

    def hurry(self) -> None:
        """From now on all that is left is done at once: the trainer has ended."""
        self._hurry.set()
