# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sources that are lost and found: told once, and not for a moment's absence."""

from __future__ import annotations

from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Ok, Reading
from mwatch.sidecar.sidecar import SourceChanges
from mwatch.sources.background import MonitoredSource


class Bench:
    def __init__(self) -> None:
        self.answer: Reading[tuple[Observed, ...]] = Absent("not there")
        self._source = MonitoredSource("gpus", "p", lambda: self.answer)
        self._changes = SourceChanges()

    def poll(self, now: float, is_up: bool) -> list[str]:
        self.answer = Ok(()) if is_up else Absent("the driver is gone")
        self._source.poll(now)
        return list(self._changes.messages([self._source], now))


def test_what_was_never_there_is_not_lost() -> None:
    bench = Bench()
    assert [bench.poll(float(now), is_up=False) for now in range(10)] == [[]] * 10


def test_found_and_lost_are_reported_once_each() -> None:
    bench = Bench()
    assert bench.poll(1, is_up=True) == ["source gpus: found"]
    assert bench.poll(2, is_up=True) == []
    assert bench.poll(3, is_up=False) == []
    assert bench.poll(6, is_up=False) == ["source gpus: lost: the driver is gone"]
    assert bench.poll(7, is_up=False) == []
    assert bench.poll(8, is_up=True) == ["source gpus: found"]


def test_a_moment_of_absence_is_not_reported() -> None:
    bench = Bench()
    bench.poll(1, is_up=True)
    assert bench.poll(2, is_up=False) == []
    assert bench.poll(3, is_up=True) == []
    assert bench.poll(4, is_up=False) == []
    assert bench.poll(6, is_up=False) == [], "counted from the last time it was there"
