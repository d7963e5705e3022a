# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A source that is polled in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mwatch.model.observation import AttemptStart, Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.background import BackgroundSource
from support.builders.volume import ManualClock

WAIT = 60.0


def found(poll: int) -> Reading[tuple[Observed, ...]]:
    return Ok((Observed(float(poll), "pod-0", AttemptStart(poll, None, None)),))


class Bench:
    """Counts its polls; they can be blocked."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.may_go = threading.Event()
        self.may_go.set()
        self.polls = 0
        self.source = BackgroundSource(
            "test", self._poll, period=lambda: 10.0, limit_seconds=5.0, clock=self.clock
        )

    def _poll(self) -> Reading[tuple[Observed, ...]]:
        self.may_go.wait(WAIT)
        self.polls += 1
        return found(self.polls)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.may_go.set()


def test_before_the_first_poll_ends_the_source_is_absent(bench: Bench) -> None:
    bench.may_go.clear()
    assert bench.source.read() == Absent("not read yet")
    assert not bench.source.is_up


def test_the_result_of_a_poll_is_given_once(bench: Bench) -> None:
    assert bench.source.read_now(WAIT) == found(1)
    assert bench.source.read() == Ok(())
    assert bench.source.is_up


def test_the_next_poll_starts_when_it_is_due(bench: Bench) -> None:
    bench.source.read_now(WAIT)
    bench.clock.now += 9.9
    bench.source.read()
    assert bench.polls == 1
    bench.clock.now += 0.2
    bench.source.read()
    assert bench.source.read_now(WAIT) == found(3), "the one that was due, and the one asked for"


def test_a_poll_is_due_at_once_on_request(bench: Bench) -> None:
    bench.source.read_now(WAIT)
    bench.source.poll_soon()
    bench.source.read()
    assert bench.source.read_now(WAIT) == found(3)


def test_a_poll_that_hangs_is_a_failure_and_only_one_runs(bench: Bench) -> None:
    bench.may_go.clear()
    bench.source.read()
    bench.clock.now += 6.0
    assert bench.source.read() == Failed("no answer for 6 s")
    assert bench.source.read_now(0.01) == Failed("no answer for 6 s")
    assert not bench.source.is_up
    bench.may_go.set()
    assert bench.source.read_now(WAIT) == found(2)
