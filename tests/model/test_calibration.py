# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines and costs, learnt from the job: robust, bounded, and sane before there is data."""

from __future__ import annotations

import math
import random

import pytest

from mwatch.model.calibration import MAX_DURATIONS, MAX_SHAPES, Calibration
from mwatch.model.job import Layout
from mwatch.model.phase import DeadlineSlot
from mwatch.model.settings import Settings

SETTINGS = Settings()


@pytest.mark.parametrize("slot", DeadlineSlot)
def test_before_there_is_data_each_phase_has_its_default(slot: DeadlineSlot) -> None:
    expected = SETTINGS.deadlines.of(slot).default_seconds
    assert Calibration().deadline(slot, SETTINGS) == expected


@pytest.mark.parametrize("slot", DeadlineSlot)
def test_a_learnt_deadline_lies_between_floor_and_ceiling(slot: DeadlineSlot) -> None:
    rule = SETTINGS.deadlines.of(slot)
    for seconds, expected in ((0.001, rule.floor_seconds), (1e6, rule.ceiling_seconds)):
        known = Calibration()
        known.learn(slot, seconds)
        assert known.deadline(slot, SETTINGS) == expected


def test_a_deadline_is_the_usual_long_one_times_a_factor() -> None:
    known = Calibration()
    for seconds in range(100, 164):
        known.learn(DeadlineSlot.SAVING, seconds)
    assert known.deadline(DeadlineSlot.SAVING, SETTINGS) == pytest.approx(3 * 159.85)


def test_a_few_saves_that_took_ages_do_not_make_the_deadline() -> None:
    known = Calibration()
    for number in range(MAX_DURATIONS):
        known.learn(DeadlineSlot.SAVING, 2000.0 if number in (5, 20, 40) else 120.0)
    assert known.deadline(DeadlineSlot.SAVING, SETTINGS) == 360


def test_absurd_durations_teach_nothing() -> None:
    known = Calibration()
    for seconds in (-1.0, float("nan"), float("inf"), 1e9):
        known.learn(DeadlineSlot.LOADING, seconds)
        known.learn_step(seconds)
    assert not known.durations[DeadlineSlot.LOADING]
    assert (known.step_median(), known.step_p99(), known.usual_step()) == (None, None, None)


@pytest.mark.parametrize("count", [40, 100, 500])
def test_three_outliers_do_not_move_the_slowest_step(count: int) -> None:
    plain, hit = Calibration(), Calibration()
    for number in range(count):
        seconds = 1.0 + 0.01 * (number % 10)
        plain.learn_step(seconds)
        hit.learn_step(60.0 if number in (7, 21, 33) else seconds)
    before, after = plain.step_p99(), hit.step_p99()
    assert before is not None
    assert after == pytest.approx(before, rel=0.02)


def test_the_probe_sees_the_slow_step_that_a_line_of_many_hides() -> None:
    known = Calibration()
    for _ in range(50):
        known.learn_step(1.0, 100)
    known.rises.extend([4.0] * 20)
    assert known.step_p99() == 4.0
    assert known.step_median() == 1.0


def test_a_job_that_stays_slow_does_not_become_usual() -> None:
    known = Calibration()
    for number in range(600):
        known.learn_step(1.0 if number < 50 else 2.0)
    assert known.usual_step() == 1.0
    assert known.step_median() == 2.0


def test_the_usual_step_needs_a_few_lines() -> None:
    known = Calibration()
    known.learn_step(9.0)
    assert (known.usual_step(), known.best_step) == (9.0, None)
    known.learn_step(1.0, 10)
    known.learn_step(1.1, 10)
    assert (known.usual_step(), known.best_step) == (1.1, None)
    known.learn_step(1.2, 100)  # the mean of so many steps is no chance
    assert known.best_step == pytest.approx(1.15)
    assert known.best_spread == pytest.approx(1.4826 * 0.1)


def test_a_larger_batch_takes_longer_by_its_share_and_a_smaller_one_is_waited_for() -> None:
    known = Calibration()
    known.resize_batch(32)
    known.learn_step(1.0, 10)
    known.learn(DeadlineSlot.TRAINING, 10.0)
    known.resize_batch(64)
    assert (known.step_median(), known.durations[DeadlineSlot.TRAINING].median()) == (2.0, 20.0)
    assert (known.best_step, len(known.recent)) == (None, 0)
    known.resize_batch(16)
    assert known.step_median() == 2.0


def test_a_longer_log_interval_makes_longer_gaps() -> None:
    known = Calibration()
    known.space_lines(1)
    known.learn(DeadlineSlot.TRAINING, 2.0)
    known.space_lines(100)
    assert known.durations[DeadlineSlot.TRAINING].median() == 200


def test_a_start_that_loads_has_two_parts_which_both_cost() -> None:
    known = Calibration()
    for _ in range(3):
        known.learn(DeadlineSlot.STARTING, 300)
        known.learn(DeadlineSlot.LOADING, 50)
        known.learn(DeadlineSlot.STARTING, 200)
        known.learn(DeadlineSlot.FIRST_STEP, 50)
    assert known.restart_cost(SETTINGS) == 2 * 250 + 50 + 50


def test_a_restart_costs_what_starts_have_cost() -> None:
    known = Calibration()
    for slot, seconds in (
        (DeadlineSlot.STARTING, 60),
        (DeadlineSlot.LOADING, 100),
        (DeadlineSlot.FIRST_STEP, 40),
    ):
        known.learn(slot, seconds)
    known.recomputed.extend([500.0, 700.0])
    assert known.restart_cost(SETTINGS) == 800


def test_a_job_that_has_not_come_through_a_first_step_has_not_shown_its_cost() -> None:
    known = Calibration()
    default = SETTINGS.act.default_restart_cost_seconds
    assert known.restart_cost(SETTINGS) == default
    known.learn(DeadlineSlot.STARTING, 5.0)
    assert known.restart_cost(SETTINGS) == default
    known.learn(DeadlineSlot.STARTING, 2 * default)
    known.learn(DeadlineSlot.STARTING, 2 * default)
    assert known.restart_cost(SETTINGS) == 2 * default


def test_no_restart_is_worth_less_than_a_stall_that_heals() -> None:
    known = Calibration()
    known.learn(DeadlineSlot.FIRST_STEP, 0.5)
    assert known.restart_cost(SETTINGS) == SETTINGS.act.min_restart_cost_seconds


def test_another_layout_is_learnt_anew_and_the_first_is_kept() -> None:
    known = Calibration().in_layout("world=8")
    known.learn_step(1.0)
    other = known.in_layout("world=4")
    assert (other.key, other.step_median()) == ("world=4", None)
    other.learn_step(2.0)
    back = other.in_layout("world=8")
    assert back.step_median() == 1.0
    assert back.others["world=4"].step_median() == 2.0


def test_a_layout_that_is_reported_bit_by_bit_is_one() -> None:
    known = Calibration().in_layout(Layout().key)
    known.learn(DeadlineSlot.STARTING, 7.0)
    known = known.in_layout(Layout(world_size=8).key).in_layout(Layout(8, 2, 4, 1, 1).key)
    assert known.durations[DeadlineSlot.STARTING].median() == 7.0
    assert (known.key, known.others) == ("world=8 tp=2 pp=4 cp=1 ep=1", {})
    assert (
        known.in_layout(Layout(8, 4, 2, 1, 1).key).durations[DeadlineSlot.STARTING].median() is None
    )


def test_a_few_layouts_are_kept_and_no_more() -> None:
    known = Calibration()
    for number in range(1, 20):
        known = known.in_layout(f"world={number}")
    assert list(known.others) == [f"world={number}" for number in range(12, 19)]
    assert len(known.others) == MAX_SHAPES - 1


@pytest.mark.parametrize("noise", [0.005, 0.03, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_lines_learnt_together_teach_what_each_of_them_does(seed: int, noise: float) -> None:
    chance = random.Random(seed)
    alone, together = Calibration(), Calibration()
    for _ in range(60):
        count = chance.choice((1, 3, 15, 16, 17, 100))
        seconds = [chance.uniform(1.0, 1.0 + noise) for _ in range(count)]
        if chance.random() < 0.2:
            seconds[chance.randrange(count)] = chance.choice((0.0, 9.0, 1e9, math.nan))
        lines = [chance.randrange(1, 11) for _ in seconds]
        for each, covered in zip(seconds, lines, strict=True):
            alone.learn_step(each, covered)
            alone.learn(DeadlineSlot.TRAINING, each)
        together.learn_steps(seconds, lines)
        together.learn_longer(DeadlineSlot.TRAINING, seconds, [-1.0] * count)
        assert together == alone
