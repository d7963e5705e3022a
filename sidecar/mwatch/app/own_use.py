# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the watcher itself costs, as the kernel counts it."""

from __future__ import annotations

import os
import time

_PAGE = os.sysconf("SC_PAGE_SIZE")


class OwnUse:
    def __init__(self, started_at: float, statm: str = "/proc/self/statm") -> None:
        self.started_at = started_at
        self._statm = statm

    def cpu_seconds(self) -> float:
        """Of all our threads."""
        return time.process_time()

    def resident_bytes(self) -> float | None:
        try:
            with open(self._statm, "rb") as file:
                return float(int(file.read(256).split()[1]) * _PAGE)
        except (OSError, ValueError, IndexError):
            return None
