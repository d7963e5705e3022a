# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Goodput is right at any moment: in a hang, a save, a first step, a restart; and bad steps are
not good time."""

from __future__ import annotations

import math

import pytest

from mwatch.model.cause import Cause
from mwatch.model.goodput import Spent
from mwatch.model.observation import AttemptStart, Beat
from mwatch.model.phase import JobPhase
from mwatch.state.goodput import ledger
from support.builders.fold import READY, WORLD
from support.builders.run import Told, bad, good
from support.runs.goodput_story import START, Blow, Run, World
from support.runs.goodput_story import Told as Seen
from support.runs.goodput_turns import Story

HUNG = (Spent.HANG_UNDETECTED, Spent.DETECTING, Spent.WAITING_TO_ACT)


def trained() -> Told:
    told = Told()
    told.sees(AttemptStart(1, None, 8))
    told.says(WORLD, READY, *good(*range(1, 121)))
    return told


def test_goodput_falls_while_a_hang_lasts() -> None:
    told = trained()
    job, hung_at = told.engine.job, told.clock.now()
    before = ledger.time_spent(job, hung_at)
    ratios = []
    for _ in range(25):
        found = told.waits(3)
        spent = ledger.time_spent(job, told.clock.now())
        ratios.append(spent.goodput or 0.0)
        if any(each.cause is Cause.HANG for each in found.findings):
            assert spent.seconds[Spent.TRAINING] == before.seconds[Spent.TRAINING]
            assert sum(spent.seconds[part] for part in HUNG) == told.clock.now() - hung_at
    assert any(each.cause is Cause.HANG for each in found.findings)
    assert ratios[1:] == sorted(set(ratios[1:]), reverse=True)
    assert ratios[-1] < (before.goodput or 0.0) * 120 / (120 + 60)


def test_a_hang_that_the_probe_sees_begins_with_the_last_progress() -> None:
    told = Told()
    told.sees(AttemptStart(1, None, 8))
    told.says(WORLD, READY, *good(*range(1, 41)))
    for number in range(41, 46):  # steps that no line has shown yet
        told.sees(Beat(0, 8, number, "training", str(number), 7, None))
    last = told.clock.now()
    for _ in range(60):
        told.sees(Beat(0, 8, 45, "collective", "still", 7, None))
    spent = ledger.time_spent(told.engine.job, told.clock.now()).seconds
    assert sum(spent[part] for part in HUNG) == pytest.approx(told.clock.now() - last, abs=1.0)
    assert spent[Spent.TRAINING] == pytest.approx(45, abs=2.0)


def test_a_step_that_is_under_way_is_training_until_it_is_late() -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP)
    for number in range(1, 13):
        story.line(20 + 20 * number, number, 20.0, new=1)
    before = story.spent(260)["training"]
    assert story.spent(275)["training"] == before + 15
    assert "hang_undetected" not in story.spent(275)
    assert story.spent(320)["training"] == before
    assert story.spent(320)["hang_undetected"] == 60


@pytest.mark.parametrize("phase", [JobPhase.SAVING, JobPhase.EVALUATING])
def test_a_save_or_an_evaluation_is_booked_while_it_lasts(phase: JobPhase) -> None:
    story = Story().trained().enter(90, phase)
    for seconds in (1, 10, 500):
        assert story.spent(90 + seconds)[phase.value] == seconds
        assert story.spent(90 + seconds)["training"] == 60


def test_a_first_step_and_the_gap_before_a_restart_are_booked_while_they_last() -> None:
    story = Story().trained().end(95)
    assert story.spent(125)["restarting"] == 30
    story.again(130).enter(140, JobPhase.FIRST_STEP)
    spent = story.spent(170)
    assert (spent["restarting"], spent["starting"]) == (35, 30)
    assert spent["first_step"] == 10 + 30


@pytest.mark.parametrize("interval", [1, 10, 50])
@pytest.mark.parametrize("probe", [False, True])
def test_any_moment_of_a_job_is_as_exact_as_its_end(interval: int, probe: bool) -> None:
    blows = (Blow(620, "hang", 300.0), Blow(1100, "crash"), Blow(1500, "stall", 60.0))
    run = Run(World(total=1800, blows=blows), Seen(interval, probe=probe))
    line = interval * run.world.step
    worst = 0.0

    def ask(good: float) -> None:
        nonlocal worst
        wall = run.now - START
        if wall > 300:
            booked = ledger.time_spent(run.job, run.now).seconds[Spent.TRAINING]
            unknown = 1.3 * line + 5  # what the next line will say
            worst = max(worst, (abs(booked - good) - unknown) / wall)

    run.asks = ask
    run.play()
    assert worst < 0.01


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_steps_with_a_bad_loss_are_not_productive(loss: float | None) -> None:
    story = Story().trained()
    norm = math.nan if loss is None else 0.8
    for number in (7, 8):
        story.line(30 + 10 * number, 10 * number, loss=loss, grad_norm=norm)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 60, "bad_steps": 20}
    assert story.spent(115)["bad_steps"] == 25, "and so are those after the last line"
    assert story.line(120, 90).spent()["training"] == 70


def test_a_loss_below_zero_that_megatron_does_not_print_is_not_bad() -> None:
    story = Story().trained().line(100, 70, loss=None, grad_norm=0.8)
    assert "bad_steps" not in story.spent()


def test_skipped_steps_are_not_productive() -> None:
    story = Story().trained().line(100, 70, skipped=3).line(110, 80, skipped=10)
    assert story.spent()["bad_steps"] == 13
    assert story.spent()["training"] == 67


def test_skipped_steps_beside_a_line_that_was_lost_are_counted_once() -> None:
    story = Story().trained().line(110, 80, skipped=10)  # the line of 70 never came
    assert story.spent()["bad_steps"] == 10
    assert story.spent()["training"] == 70


def test_a_bad_first_step_is_not_productive() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).line(40, 10, 2.0, skipped=10)
    for number in range(2, 7):
        story.line(30 + 10 * number, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "bad_steps": 10, "training": 50}


def test_what_is_done_again_after_bad_steps_is_done_for_the_first_time() -> None:
    story = Story().trained()
    for number in range(7, 12):
        story.line(30 + 10 * number, 10 * number, loss=math.nan)
    story.end(140).again(150).enter(160, JobPhase.FIRST_STEP)
    for number in range(6, 12):  # resumed from 50: 51 to 60 were sound
        story.line(160 + 10 * (number - 5), 10 * number)
    spent = story.spent()
    assert spent["recomputed"] == 10
    assert spent["bad_steps"] == 50
    assert spent["training"] == 60 + 50


def test_a_line_without_its_loss_is_bad_for_the_real_reader_too() -> None:
    told = trained()
    told.says(*bad(121, 122))
    assert told.engine.job.ledger.booked[Spent.BAD_STEPS] == pytest.approx(2.0)
