# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the NVLinks of a GPU err so fast that they slow it down, or are about to fail.

A link corrects what it loses, so a count says little and its rate says all. NVIDIA's own health
check (DCGM) lets CRC errors pass below 100 a second, and no link that had to be brought up anew.
"""

from __future__ import annotations

from collections.abc import Mapping

_LOOK_SECONDS = 60.0
"""Twice the period at which the counters are read."""
_AGAIN_SECONDS = 600.0
_PER_SECOND = {"crc": 100.0, "recovery": 0.0, "recovery_failed": 0.0}
_OTHERS_PER_SECOND = 1.0


class LinkErrors:
    """The memory of one GPU."""

    def __init__(self) -> None:
        self._counts: Mapping[str, int] | None = None
        self._at = 0.0
        self._told_at = float("-inf")

    def add(self, at: float, counts: Mapping[str, int]) -> str | None:
        """What rises, in words; told again only after a while."""
        if self._counts is None:
            if counts:
                self._counts, self._at = counts, at
            return None
        seconds = at - self._at
        if 0 <= seconds < _LOOK_SECONDS:
            return None
        before, self._counts, self._at = self._counts, counts or self._counts, at
        rising = (_rise(name, before, counts, seconds) for name in counts)
        found = ", ".join(words for words in rising if words)
        if not found or at - self._told_at < _AGAIN_SECONDS:
            return None
        self._told_at = at
        return found


def _rise(
    name: str, before: Mapping[str, int], now: Mapping[str, int], seconds: float
) -> str | None:
    more = now[name] - before.get(name, now[name])
    if seconds <= 0 or more <= 0:
        return None  # the counters, or the clock, were set back
    rate = more / seconds
    if rate < _PER_SECOND.get(name, _OTHERS_PER_SECOND):
        return None
    return f"{more} more of kind {name} in {seconds:.0f} s"
