# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Goodput against the truth: within one percent of wall time, whoever looks."""

from __future__ import annotations

import pytest

from mwatch.model.goodput import Spent
from support.runs.goodput_story import START, Blow, Run, Told, World, hard_worlds

LIMIT = 0.01


@pytest.mark.parametrize("seed", range(20))
def test_a_job_of_chance(seed: int) -> None:
    for world, told in hard_worlds(seed):
        run = Run(world, told, seed)
        books = run.play().ledger
        assert run.error < LIMIT, (world, told)
        assert sum(books.booked.values()) == pytest.approx(books.booked_at - START, abs=1e-3)


@pytest.mark.parametrize("interval", [1, 10, 100])
@pytest.mark.parametrize("probe", [False, True])
def test_a_healthy_job(interval: int, probe: bool) -> None:
    run = Run(World(), Told(interval, probe=probe))
    seconds = run.play().ledger.booked
    assert run.error < LIMIT / 4
    assert seconds[Spent.SAVING] == pytest.approx(10 * 8.0, abs=3)
    assert seconds[Spent.EVALUATING] == pytest.approx(6 * 12.0, abs=8)
    assert seconds[Spent.FIRST_STEP] == pytest.approx(25, abs=3)
    assert seconds[Spent.SLOW] == 0


@pytest.mark.parametrize("told", [Told(10), Told(100, whole_seconds=True), Told(1, probe=True)])
def test_a_job_that_is_slow_for_half_of_its_life(told: Told) -> None:
    run = Run(World(slow_from=700, slow_to=1700), told)
    seconds = run.play().ledger.booked
    assert run.error < LIMIT
    assert seconds[Spent.SLOW] == pytest.approx(1000, rel=0.03)


@pytest.mark.parametrize("told", [Told(1), Told(10), Told(10, probe=True)])
def test_heavy_tails_of_the_step_time_are_not_slow(told: Told) -> None:
    run = Run(World(tail=0.02), told)
    assert run.play().ledger.booked[Spent.SLOW] < 0.01 * 2000
    assert run.error < LIMIT


def test_an_attempt_that_dies_before_its_second_line_is_made_good_later() -> None:
    run = Run(World(blows=(Blow(80, "crash"),)), Told(100))
    seconds = run.play().ledger.booked
    assert run.error < LIMIT
    assert seconds[Spent.RECOMPUTED] == pytest.approx(79, abs=3)


def test_a_hang_is_reported_in_its_parts() -> None:
    run = Run(World(blows=(Blow(1450, "hang", 90.0),)), Told(10, probe=True))
    seconds = run.play().ledger.booked
    hang = [Spent.HANG_UNDETECTED, Spent.DETECTING, Spent.WAITING_TO_ACT]
    assert [seconds[part] for part in hang] == pytest.approx([10, 5, 75], abs=2)
    assert seconds[Spent.RECOMPUTED] == pytest.approx(49, abs=3)
    assert seconds[Spent.RESTARTING] == pytest.approx(20, abs=2)
