# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far apart the iteration lines of an attempt usually are: a silence that is no longer than
that hides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mwatch.stats import median

LOOK_SECONDS = 1.0
_LINES = 32
_LIKE_OTHERS = 1.25
"""A gap no longer than so many usual ones hides nothing: no deadline is shorter."""


class UsualGaps:
    def __init__(self) -> None:
        self.dull = LOOK_SECONDS
        """A silence that is no longer hides nothing."""
        self._gaps: list[float] = []
        self._line_at: float | None = None

    def copy(self) -> UsualGaps:
        other = UsualGaps()
        other.dull, other._gaps, other._line_at = self.dull, self._gaps.copy(), self._line_at
        return other

    def learn(self, at: float) -> None:
        """An iteration line came at `at`."""
        if self._line_at is not None:
            self._gaps.append(at - self._line_at)
            if len(self._gaps) == _LINES:
                self.dull = max(LOOK_SECONDS, median(self._gaps) * _LIKE_OTHERS)
                self._gaps.clear()
        self._line_at = at

    def pass_over(self, ats: Sequence[float], begin: int, end: int, last: float) -> int:
        """Learns from lines from `begin` on, and stops before the first that comes after a
        silence that is worth a look. `last`: when anything was last heard before them."""
        if self._line_at is None:
            return begin
        before, gaps, dull = self._line_at, self._gaps, self.dull
        for index in range(begin, end):
            at = ats[index]
            if at - last > dull:
                end = index
                break
            gaps.append(at - before)
            if len(gaps) == _LINES:
                dull = max(LOOK_SECONDS, median(gaps) * _LIKE_OTHERS)
                gaps.clear()
            before = last = at
        self.dull, self._line_at = dull, before
        return end
