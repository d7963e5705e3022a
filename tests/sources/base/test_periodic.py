# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A look that is taken aside every so often."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.base.worker import Periodic
from support.builders.volume import ManualClock

WAIT = 15.0


class Bench:
    """Counts its looks; they can be held up."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.may_go = threading.Event()
        self.may_go.set()
        self.looks = 0
        self.periodic: Periodic[int] = Periodic(
            "test", self._look, period=lambda: 10.0, limit_seconds=5.0, clock=self.clock
        )

    def _look(self) -> Reading[int]:
        self.may_go.wait(WAIT)
        self.looks += 1
        return Ok(self.looks)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.may_go.set()


def test_before_the_first_look_there_is_nothing(bench: Bench) -> None:
    bench.may_go.clear()
    assert bench.periodic.news() is None
    assert bench.periodic.last == Absent("not looked at yet")


def test_what_a_look_found_is_news_once(bench: Bench) -> None:
    assert bench.periodic.news_now(WAIT) == Ok(1)
    assert bench.periodic.news() is None
    assert bench.periodic.last == Ok(1)


def test_the_next_look_begins_when_it_is_due(bench: Bench) -> None:
    bench.periodic.news_now(WAIT)
    bench.clock.now += 9.9
    bench.periodic.news()
    assert bench.looks == 1
    bench.clock.now += 0.2
    bench.periodic.news()
    assert bench.periodic.news_now(WAIT) == Ok(3), "the one that was due, and the one asked for"


def test_a_look_that_hangs_is_a_failure_and_only_one_is_out(bench: Bench) -> None:
    bench.may_go.clear()
    bench.periodic.news()
    bench.clock.now += 6.0
    assert bench.periodic.news() == Failed("no answer for 6 s")
    assert bench.periodic.news_now(0.01) == Failed("no answer for 6 s")
    assert bench.periodic.last == Failed("no answer for 6 s")
    bench.may_go.set()
    assert bench.periodic.news_now(WAIT) == Ok(2)
