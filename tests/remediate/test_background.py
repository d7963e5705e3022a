# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small work beside the acts: done once, again after a failure of the cluster, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mwatch.kube.errors import Unavailable
from mwatch.remediate.background import KNOWN_SECONDS, MAX_WAITING, BackgroundJobs


@pytest.fixture
def jobs() -> Iterator[BackgroundJobs]:
    made = BackgroundJobs()
    yield made
    made.close()


def turned(jobs: BackgroundJobs, now: float, name: str) -> None:
    """Begun, ended and collected."""
    jobs.turn(now)
    job = jobs._jobs[name]
    assert job.future is not None
    job.future.exception(60)
    jobs.turn(now)


def test_a_failure_of_the_cluster_is_tried_again_later(jobs: BackgroundJobs) -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Unavailable("away")

    jobs.once("note", work, 0.0)
    turned(jobs, 0.0, "note")
    assert jobs.problems == {"note": "away"} and jobs.has("note")
    jobs.turn(1.0)
    assert len(tries) == 1  # not yet
    turned(jobs, 3.0, "note")
    assert len(tries) == 2 and not jobs.has("note") and not jobs.problems


def test_a_fault_of_our_own_is_reported_and_not_repeated(jobs: BackgroundJobs) -> None:
    def work() -> None:
        raise ZeroDivisionError("oops")

    jobs.once("note", work, 0.0)
    turned(jobs, 0.0, "note")
    assert jobs.problems == {"note": "oops"} and not jobs.has("note")
    jobs.turn(KNOWN_SECONDS - 1.0)
    assert jobs.problems
    jobs.turn(KNOWN_SECONDS + 1.0)
    assert not jobs.problems


def test_a_fault_that_came_again_meanwhile_is_reported_as_long_as_a_new_one(
    jobs: BackgroundJobs,
) -> None:
    def work() -> None:
        raise ZeroDivisionError("oops")

    for now in (0.0, 100.0):
        jobs.once("note", work, now)
        turned(jobs, now, "note")
    jobs.turn(KNOWN_SECONDS + 1.0)
    assert jobs.problems
    jobs.turn(KNOWN_SECONDS + 101.0)
    assert not jobs.problems


def test_what_is_done_again_and_again_waits_in_between(jobs: BackgroundJobs) -> None:
    done = []
    jobs.every("look", 5.0, lambda: done.append(1), 0.0)
    turned(jobs, 0.0, "look")
    jobs.turn(4.0)
    assert len(done) == 1
    turned(jobs, 5.0, "look")
    assert len(done) == 2


def test_what_has_not_begun_is_replaced_and_too_much_is_dropped(jobs: BackgroundJobs) -> None:
    said: list[str] = []
    jobs.once("note", lambda: said.append("old"), 0.0)
    jobs.once("note", lambda: said.append("new"), 0.0)
    turned(jobs, 0.0, "note")
    assert said == ["new"]
    stuck = threading.Event()
    for number in range(MAX_WAITING + 5):
        jobs.once(str(number), stuck.wait, 0.0)
    assert jobs.dropped == 5
    stuck.set()
