# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What teaches something, and what is no usual step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mwatch.model.job import Attempt, ExitSeen, Job, Save
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.state import calibration
from support.builders.job import START, job, step


def say(told: Job, iteration: int, **more: Any) -> None:
    line = step(iteration, **more)
    told.attempt.steps.append(line)
    calibration.step_reported(told, line)


def taught(*lines: dict[str, Any]) -> Job:
    """A job that has said usual lines 1 to 12, and then these."""
    told = job(layout=None)
    for number in range(1, 13):
        say(told, number)
    for number, more in enumerate(lines, start=13):
        say(told, number, **more)
    return told


def test_steps_and_gaps_are_learnt_without_the_first_line() -> None:
    known = taught().calibration
    assert list(known.steps) == [1.0] * 11
    assert list(known.durations[DeadlineSlot.TRAINING]) == [1.0] * 11
    assert (known.batch_size, known.log_interval) == (32, 1)


@pytest.mark.parametrize(
    "odd",
    [{"is_first_of_process": True, "seconds": 30.0}, {"skipped": 1, "seconds": 0.1},
     {"batch_size": 64, "seconds": 2.0}, {"new": 0}, {"seconds": 0.0, "at": START},
     {"seconds": float("nan"), "at": START}],
)  # fmt: skip
def test_what_is_no_usual_step_teaches_nothing(odd: dict[str, Any]) -> None:
    assert len(taught(odd).calibration.steps) == 11


def test_a_job_that_skips_from_its_first_step_on_is_learnt_all_the_same() -> None:
    told = job()
    for number in range(1, 20):
        say(told, number, skipped=1)
    assert len(told.calibration.steps) == 8


def test_of_lines_that_come_fast_one_in_five_is_enough_once_many_are_known() -> None:
    told = job()
    for number in range(1, 1001):
        say(told, number, at=START + 0.1 * number, seconds=0.1 if number < 600 else 0.2)
    newest = list(told.calibration.steps)
    assert (len(newest), newest.count(0.2)) == (512, 81)


def test_a_line_in_which_some_steps_were_skipped_counts() -> None:
    assert len(taught({"covers": 10, "skipped": 4}).calibration.steps) == 12


def test_the_line_after_a_change_of_the_batch_size_counts_again() -> None:
    known = taught({"batch_size": 64, "seconds": 1.5}, {"batch_size": 64, "seconds": 2.0})
    assert list(known.calibration.steps) == [2.0] * 12


def test_a_first_step_that_is_counted_again_is_taken_out() -> None:
    told = job()
    say(told, 1, is_first_of_process=True, seconds=30.0)
    say(told, 10, covers=10, new=9, seconds=3.9, at=START + 110)
    assert list(told.calibration.steps) == [pytest.approx(1.0)]


@pytest.mark.parametrize("event", ["save", "queued", "evaluation"])
def test_a_line_right_after_a_save_or_an_evaluation_teaches_nothing(event: str) -> None:
    told = taught()
    if event == "save":
        told.attempt.saves_done += 1
    elif event == "queued":
        told.attempt.save = Save(12, START + 112, True)
    else:
        told.attempt.evaluations += 1
    say(told, 13, seconds=5.0)
    assert len(told.calibration.steps) == 11
    say(told, 14)
    assert len(told.calibration.steps) == 12


def test_a_job_that_saves_between_any_two_lines_is_learnt_all_the_same() -> None:
    told = taught()
    for number in range(13, 23):
        told.attempt.saves_done += 1
        say(told, number, at=START + 100 + 10 * number)
    known = told.calibration
    assert len(known.steps) == 11 + 7
    assert known.durations[DeadlineSlot.TRAINING].quantile(1.0) == 1.0  # without the save


def test_a_line_without_the_time_of_a_step_counts_by_the_clock() -> None:
    told = taught({"seconds": None, "covers": 4, "at": START + 114})
    assert list(told.calibration.steps)[-1] == 0.5
    told.attempt.evaluations += 1
    say(told, 20, seconds=None, at=START + 200)
    assert len(told.calibration.steps) == 12


def test_another_log_interval_is_known_from_its_first_line_on() -> None:
    told = taught()
    told.layout = replace(told.layout, log_interval=50)
    say(told, 13)
    assert told.calibration.durations[DeadlineSlot.TRAINING].median() == 50


def test_a_phase_is_learnt_unless_nobody_knows_how_long_it_took() -> None:
    told = job()
    calibration.phase_ended(told, DeadlineSlot.SAVING, 0.0)
    calibration.phase_ended(told, DeadlineSlot.SAVING, 7.0)
    assert list(told.calibration.durations[DeadlineSlot.SAVING]) == [7.0]


def test_the_probe_teaches_how_long_a_single_step_may_take() -> None:
    told = job([step(1)], progress_at=START + 105, phase_since=START + 101)
    calibration.iteration_rose(told, 4.0)
    assert list(told.calibration.rises) == [3.0]
    calibration.iteration_rose(told, 0.5)
    assert len(told.calibration.rises) == 1


@pytest.mark.parametrize(
    "state", [{"phase": JobPhase.SAVING}, {"phase_since": START + 105, "progress_at": START + 105}]
)
def test_a_rise_with_another_phase_before_it_teaches_nothing(state: dict[str, Any]) -> None:
    told = job([step(1)], **({"progress_at": START + 105, "phase_since": START + 101} | state))
    calibration.iteration_rose(told, 25.0)
    assert not told.calibration.rises


def test_a_resume_teaches_what_doing_it_again_costs() -> None:
    told = taught()
    told.past.append(Attempt(1, START))
    told.attempt.best_before, told.attempt.first_iteration = 900, 801
    calibration.attempt_progressed(told)
    assert list(told.calibration.recomputed) == [100.0]


def test_a_resume_after_a_good_bye_or_of_unknown_length_teaches_nothing() -> None:
    told = taught()
    calibration.attempt_progressed(told)
    told.attempt.best_before, told.attempt.first_iteration = 900, 801
    told.past.append(Attempt(1, START, exit=ExitSeen(START, "pod-0", None)))  # type: ignore[arg-type]
    calibration.attempt_progressed(told)
    assert not told.calibration.recomputed


def test_a_resume_from_beyond_the_furthest_teaches_nothing() -> None:
    told = taught()
    told.attempt.best_before, told.attempt.first_iteration = 100, 801
    calibration.attempt_progressed(told)
    assert not told.calibration.recomputed
    say(told, 13, batch_size=None)
    assert told.calibration.batch_size == 32
