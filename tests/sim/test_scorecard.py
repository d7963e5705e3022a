# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Some simulated runs: what `make scorecard` promises holds, and a seed is a run."""

from __future__ import annotations

import pytest

from sim.report import markdown
from sim.scenarios import plan_of
from sim.score import Score
from sim.scorecard import one, score_of

RUNS = 150
SEED = 100_000
"""Not the seeds of `make scorecard`."""
_LIMIT = 600
"""Seconds for the runs, many times what they take: only a loop without end is cut off."""


@pytest.fixture(scope="module")
def score() -> Score:
    return score_of(SEED, RUNS, 1)


@pytest.mark.timeout(_LIMIT, func_only=False)
def test_no_healthy_job_is_killed(score: Score) -> None:
    assert [line for line in score.false_kills if line] == []


def test_the_engine_never_fails(score: Score) -> None:
    assert score.crashes == []


def test_no_wrong_checkpoint_is_chosen(score: Score) -> None:
    assert score.restarts > 25
    assert score.wrong_checkpoints == []


def test_hardly_a_fault_is_missed(score: Score) -> None:
    assert score.faults > 75
    assert len(score.missed) <= 1, score.missed


def test_at_least_a_third_of_the_runs_is_healthy(score: Score) -> None:
    plans = [plan_of(SEED + number) for number in range(1000)]  # planned, not run
    assert sum(each.is_healthy for each in plans) >= len(plans) / 3
    assert score.healthy_runs == sum(each.is_healthy for each in plans[:RUNS])


def test_the_report_shows_every_target(score: Score) -> None:
    text = markdown(score)
    for title in (
        "false kills",
        "missed",
        "wrong checkpoint",
        "goodput error",
        "Detection latency",
    ):
        assert title in text


def test_the_same_seed_is_the_same_run_whatever_ran_before() -> None:
    first = one(SEED)
    one(SEED + 1)
    again = one(SEED)
    assert first == again
