# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever the fold tells, in whatever order: the parts are never negative and add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.model.goodput import Spent
from mwatch.model.job import Attempt, Job, Layout
from mwatch.model.phase import JobPhase
from mwatch.state import calibration
from mwatch.state.goodput import ledger
from support.builders.job import START, step

SECONDS = st.floats(-20.0, 500.0)
PHASES = st.sampled_from([phase for phase in JobPhase if phase is not JobPhase.ENDED])
TURNS = st.one_of(
    st.tuples(st.just("enter"), SECONDS, PHASES),
    st.tuples(st.just("enter"), SECONDS, st.just(JobPhase.TRAINING)),
    st.tuples(
        st.just("line"),
        SECONDS,
        st.tuples(
            st.integers(0, 200),
            st.one_of(st.none(), st.floats(0.001, 50.0), st.sampled_from([0.0, 1e9, float("nan")])),
            st.booleans(),
        ),
    ),
    st.tuples(st.just("line"), st.just(10.0), st.just((10, 1.0, False))),
    st.tuples(st.just("stall"), SECONDS, st.one_of(st.none(), SECONDS)),
    st.tuples(st.just("evaluated"), SECONDS, st.none()),
    st.tuples(st.just("end"), SECONDS, st.booleans()),
    st.tuples(st.just("again"), SECONDS, st.integers(0, 300)),
    st.tuples(st.just("settle"), SECONDS, st.none()),
    st.tuples(st.just("world"), SECONDS, st.one_of(st.none(), st.integers(0, 64))),
)


def adds_up(job: Job) -> None:
    books = job.ledger
    assert books.started_at is not None
    assert books.settled_at is not None
    for parts in (books.seconds, books.gpu_seconds, books.booked, books.booked_gpu):
        assert all(seconds >= 0 for seconds in parts.values()), parts
    whole = books.settled_at - books.started_at
    assert books.wall_seconds == pytest.approx(whole, rel=1e-9, abs=1e-4)
    assert sum(books.booked.values()) == pytest.approx(
        books.booked_at - books.started_at, rel=1e-9, abs=1e-4
    )


def turn(job: Job, kind: str, at: float, more: Any) -> None:
    attempt = job.attempt
    if kind == "enter" and attempt.phase is not JobPhase.ENDED:
        before, attempt.phase, attempt.phase_since = attempt.phase, more, at
        ledger.phase_changed(job, at, before)
    elif kind == "line":
        _line(job, at, *more)
    elif kind == "stall":
        decided = None if more is None else at + more
        ledger.stall_judged(job, detected_at=at, decided_at=decided)
    elif kind == "evaluated":
        attempt.evaluations += 1
    elif kind == "end":
        attempt.is_done = more
        ledger.attempt_ended(job, at)
    elif kind == "again":
        job.past.append(attempt)
        job.attempt = Attempt(attempt.number + 1, at, phase_since=at)
        job.attempt.iteration = more
        ledger.attempt_started(job, at)
    elif kind == "settle":
        ledger.settle(job, at)
    elif kind == "world":
        job.layout = Layout(world_size=more, log_interval=10)


def _line(job: Job, at: float, new: int, seconds: float | None, is_first: bool) -> None:
    iteration = (job.attempt.iteration or 0) + new
    said = step(iteration, at=at, seconds=seconds, covers=new + is_first, new=new,
                is_first_of_process=is_first and new == 1)  # fmt: skip
    job.attempt.steps.append(said)
    calibration.step_reported(job, said)
    ledger.step_reported(job, said)
    job.attempt.iteration = iteration


@given(st.lists(TURNS, max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_parts_add_up(turns: list[tuple[str, float, Any]]) -> None:
    job = Job("run", {})
    job.attempt = Attempt(1, START, phase_since=START)
    ledger.attempt_started(job, START)
    now = START
    for kind, seconds, more in turns:
        now += seconds
        turn(job, kind, now, more)
        adds_up(job)
    ledger.settle(job, now + 10)
    adds_up(job)
    shown = dict(job.ledger.seconds)
    ledger.settle(job, now + 10)
    assert job.ledger.seconds == shown


@given(st.lists(TURNS, max_size=40))
@settings(max_examples=75, deadline=None)
def test_looking_in_between_changes_nothing(turns: list[tuple[str, float, Any]]) -> None:
    jobs = [Job("run", {}), Job("run", {})]
    for job in jobs:
        job.attempt = Attempt(1, START, phase_since=START)
        ledger.attempt_started(job, START)
    now = START
    for kind, seconds, more in turns:
        now += seconds
        for job in jobs:
            turn(job, kind, now, more)
        ledger.settle(jobs[1], now + 3)
    assert jobs[0].ledger.booked == jobs[1].ledger.booked
    assert set(jobs[0].ledger.seconds) == set(Spent)
