# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the main thread of each rank spent its time on, by the records of its probe.

A record says what the thread does at its moment; the time since the record before it is booked
to that. A longer gap belongs to nobody: the process was stopped, or held the GIL, and nobody saw
what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mwatch.model.observation import Beat
from mwatch.model.phase import JobPhase

GAP_SECONDS = 5.0
_KNOWN = frozenset({"collective", "data", "compute", *(phase.value for phase in JobPhase)})
_UNKNOWN = "unknown"
"""Also a phase of another release: label values are bounded."""


class RankSeconds:
    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._spent: dict[int, dict[str, float]] = {}

    def saw(self, beats: Iterable[tuple[Beat, float]]) -> None:
        """New records, each with the moment at which it was written."""
        for beat, at in beats:
            before = self._last.get(beat.rank)
            self._last[beat.rank] = at
            if before is None or not 0 < at - before <= GAP_SECONDS:
                continue
            phase = beat.phase if beat.phase in _KNOWN else _UNKNOWN
            spent = self._spent.setdefault(beat.rank, {})
            spent[phase] = spent.get(phase, 0.0) + at - before

    def of(self, rank: int) -> Mapping[str, float]:
        return dict(self._spent.get(rank, {}))
