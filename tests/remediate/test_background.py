# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small work beside the acts: done once, again after a failure of the cluster, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mwatch.kube.errors import Unavailable
from mwatch.remediate.background import MAX_WAITING, TOLD_SECONDS, BackgroundJobs


@pytest.fixture
def chores() -> Iterator[BackgroundJobs]:
    made = BackgroundJobs()
    yield made
    made.close()


def turned(chores: BackgroundJobs, now: float, name: str) -> None:
    """Begun, ended and collected."""
    chores.turn(now)
    chore = chores._chores[name]
    assert chore.future is not None
    chore.future.exception(5)
    chores.turn(now)


def test_a_failure_of_the_cluster_is_tried_again_later(chores: BackgroundJobs) -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Unavailable("away")

    chores.once("note", work, 0.0)
    turned(chores, 0.0, "note")
    assert chores.problems == {"note": "away"} and chores.has("note")
    chores.turn(1.0)
    assert len(tries) == 1  # not yet
    turned(chores, 3.0, "note")
    assert len(tries) == 2 and not chores.has("note") and not chores.problems


def test_a_fault_of_our_own_is_told_and_not_repeated(chores: BackgroundJobs) -> None:
    def work() -> None:
        raise ZeroDivisionError("oops")

    chores.once("note", work, 0.0)
    turned(chores, 0.0, "note")
    assert chores.problems == {"note": "oops"} and not chores.has("note")
    chores.turn(TOLD_SECONDS - 1.0)
    assert chores.problems
    chores.turn(TOLD_SECONDS + 1.0)
    assert not chores.problems


def test_a_fault_that_came_again_meanwhile_is_told_as_long_as_a_new_one(
    chores: BackgroundJobs,
) -> None:
    def work() -> None:
        raise ZeroDivisionError("oops")

    for now in (0.0, 100.0):
        chores.once("note", work, now)
        turned(chores, now, "note")
    chores.turn(TOLD_SECONDS + 1.0)
    assert chores.problems
    chores.turn(TOLD_SECONDS + 101.0)
    assert not chores.problems


def test_what_is_done_again_and_again_waits_in_between(chores: BackgroundJobs) -> None:
    done = []
    chores.every("look", 5.0, lambda: done.append(1), 0.0)
    turned(chores, 0.0, "look")
    chores.turn(4.0)
    assert len(done) == 1
    turned(chores, 5.0, "look")
    assert len(done) == 2


def test_what_has_not_begun_is_replaced_and_too_much_is_dropped(chores: BackgroundJobs) -> None:
    said: list[str] = []
    chores.once("note", lambda: said.append("old"), 0.0)
    chores.once("note", lambda: said.append("new"), 0.0)
    turned(chores, 0.0, "note")
    assert said == ["new"]
    stuck = threading.Event()
    for number in range(MAX_WAITING + 5):
        chores.once(str(number), stuck.wait, 0.0)
    assert chores.dropped == 5
    stuck.set()
