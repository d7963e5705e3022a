# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One line on standard error that says how far the work is: on a terminal only."""

from __future__ import annotations

import sys
import time

_SECONDS = 0.5


class Progress:
    def __init__(self, work: str, total: int) -> None:
        self._work = work
        self._total = total
        self._told = 0.0

    def tell(self, done: int) -> None:
        """Shown twice a second, and at the end."""
        now = time.monotonic()
        last = done >= self._total
        if sys.stderr.isatty() and (last or now - self._told > _SECONDS):
            self._told = now
            end = "\n" if last else ""
            text = f"\r\x1b[K{self._work}: {min(done, self._total)} of {self._total}"
            print(text, end=end, file=sys.stderr, flush=True)
