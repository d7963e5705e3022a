# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of the benchmark's fleet answer as real sidecars do, each for itself."""

from __future__ import annotations

import pytest
from benchmarks.cluster.fleet_page import FIRST_ITERATION, Fleet, PodPage

from mwatch import json_codec
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.event import Iteration
from mwatch.model.observation import Beat, Sign, SignState, StoredCheckpoints
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, from_wire
from support.runs.fleet_seeds import BEGAN, fleet, place

PODS = 4


@pytest.fixture
def job() -> Fleet:
    return fleet(PODS)


def read(page: PodPage, at: float, after: str = "") -> PodSnapshot:
    return from_wire(json_codec.decode(page.answer(after, BEGAN + at)))


def beats(found: PodSnapshot) -> list[Beat]:
    return [each.what for each in found.beats if isinstance(each.what, Beat)]


def test_a_pod_answers_with_its_own_name_ranks_and_gpus(job: Fleet) -> None:
    found = read(PodPage(place(2), job), 10.0)
    assert (found.who.pod, found.who.uid, found.who.run) == ("gpt-worker-2", "uid-2", "gpt")
    assert [each.rank for each in beats(found)] == list(range(16, 24))
    assert {each.world_size for each in beats(found)} == {32}
    assert [each.rank for each in found.gpus] == list(range(16, 24))
    assert found.unread == 0
    (first, *_) = (each.what for each in found.signs)
    assert isinstance(first, Sign) and (first.rank, first.text[:8]) == (16, "rank 16 ")


def test_all_pods_together_are_one_job_that_an_engine_finds_healthy(job: Fleet) -> None:
    engine, pages = Engine("gpt", {}), [PodPage(place(number), job) for number in range(PODS)]
    cursors = [""] * PODS
    for second in range(1, 20):
        for number, page in enumerate(pages):
            found = read(page, second, cursors[number])
            cursors[number] = found.cursor
            for observed in found.observed(BEGAN + second):
                engine.observe(observed)
        assessment = engine.evaluate(BEGAN + second)
    assert assessment.decision.cause is Cause.HEALTHY
    assert len(engine.job.attempt.ranks) == PODS * 8
    assert engine.job.attempt.iteration in (FIRST_ITERATION + 18, FIRST_ITERATION + 19)


def test_iterations_move_with_time(job: Fleet) -> None:
    page = PodPage(place(0), job)
    early, late = beats(read(page, 10.5)), beats(read(page, 15.5))
    assert late[0].iteration == (early[0].iteration or 0) + 5
    assert late[0].stack != early[0].stack


def test_only_the_last_pod_prints_iterations_and_each_once(job: Fleet) -> None:
    page = PodPage(place(PODS - 1), job)
    first = read(page, 10.0)
    second = read(page, 13.0, first.cursor)
    told = [
        each.what.iteration
        for found in (first, second)
        for each in found.events
        if isinstance(each.what, Iteration)
    ]
    assert told == list(range(FIRST_ITERATION + 1, told[-1] + 1)) and len(told) >= 11
    assert not second.gap
    other = read(PodPage(place(0), job), 10.0)
    assert not any(isinstance(each.what, Iteration) for each in other.events)


def test_what_seldom_changes_is_sent_once(job: Fleet) -> None:
    page = PodPage(place(1), job)
    first = read(page, 10.0)
    again = read(page, 15.0, first.cursor)
    assert first.wrapper is not None and (first.wrapper.node_rank, first.wrapper.nnodes) == (1, 4)
    assert first.stored is not None and isinstance(first.stored.what, StoredCheckpoints)
    assert again.wrapper is None and again.stored is None and again.events == ()


def test_a_cursor_of_another_life_gets_everything_and_learns_of_a_gap(job: Fleet) -> None:
    found = read(PodPage(place(1), job), 10.0, "another.7")
    assert found.gap and found.wrapper is not None


def test_a_pod_that_stops_beats_no_more_while_the_others_wait_for_it(job: Fleet) -> None:
    stopped, other = PodPage(place(1), job), PodPage(place(2), job)
    job.training.stops(1, BEGAN + 20.5)
    for second in (25.0, 30.0):
        found, waits = read(stopped, second), read(other, second)
        assert {each.at for each in found.beats} == {BEGAN + 20.5}
        assert {each.iteration for each in beats(found)} == {FIRST_ITERATION + 20}
        states = {each.what.state for each in found.signs if isinstance(each.what, Sign)}
        assert states == {SignState.STOPPED}
        assert {each.iteration for each in beats(waits)} == {FIRST_ITERATION + 20}
        assert all(each.at > BEGAN + second - 2.5 for each in waits.beats)
