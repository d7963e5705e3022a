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
            st.integers(0, 3),
            st.sampled_from([2.0, float("nan"), None]),
        ),
    ),
    st.tuples(st.just("line"), st.just(10.0), st.just((10, 1.0, False, 0, 2.0))),
    st.tuples(st.just("stall"), SECONDS, st.one_of(st.none(), SECONDS)),
    st.tuples(st.just("evaluated"), SECONDS, st.none()),
    st.tuples(st.just("end"), SECONDS, st.booleans()),
    st.tuples(st.just("again"), SECONDS, st.integers(0, 300)),
    st.tuples(st.just("world"), SECONDS, st.one_of(st.none(), st.integers(0, 64))),
)


def adds_up(job: Job, now: float) -> None:
    books = job.ledger
    assert books.started_at is not None
    spent = ledger.time_spent(job, now)
    for parts in (spent.seconds, spent.gpu_seconds, books.booked, books.booked_gpu):
        assert set(parts) == set(Spent)
        assert all(seconds >= 0 for seconds in parts.values()), parts
    until = books.booked_at if books.is_closed and books.is_over else max(now, books.booked_at)
    whole = until - books.started_at
    assert spent.wall_seconds == pytest.approx(whole, rel=1e-9, abs=1e-4)
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
    elif kind == "world":
        job.layout = Layout(world_size=more, log_interval=10)


def _line(
    job: Job,
    at: float,
    new: int,
    seconds: float | None,
    is_first: bool,
    skipped: int,
    loss: float | None,
) -> None:
    iteration = (job.attempt.iteration or 0) + new
    said = step(iteration, at=at, seconds=seconds, covers=new + is_first, new=new, skipped=skipped,
                is_first_of_process=is_first and new == 1,
                losses={} if loss is None else {"lm loss": loss})  # fmt: skip
    job.attempt.steps.append(said)
    calibration.step_reported(job, said)
    ledger.step_reported(job, said)
    job.attempt.iteration = iteration


def started() -> Job:
    job = Job("run", {})
    job.attempt = Attempt(1, START, phase_since=START)
    ledger.attempt_started(job, START)
    return job


@given(st.lists(TURNS, max_size=60), st.floats(-20.0, 2000.0))
@settings(max_examples=150, deadline=None)
def test_the_parts_add_up_at_any_moment(turns: list[tuple[str, float, Any]], later: float) -> None:
    job, now = started(), START
    for kind, seconds, more in turns:
        now += seconds
        turn(job, kind, now, more)
        adds_up(job, now)
        adds_up(job, now + later)


@given(st.lists(TURNS, max_size=40), st.lists(st.floats(-20.0, 2000.0), min_size=1, max_size=3))
@settings(max_examples=75, deadline=None)
def test_a_question_changes_nothing(
    turns: list[tuple[str, float, Any]], moments: list[float]
) -> None:
    plain, asked, now = started(), started(), START
    for kind, seconds, more in turns:
        now += seconds
        turn(plain, kind, now, more)
        turn(asked, kind, now, more)
        for later in moments:
            first = ledger.time_spent(asked, now + later)
            assert first == ledger.time_spent(asked, now + later)
        assert repr(asked) == repr(plain)
