# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Each second of a job is booked once, as what it was: start, steps, saves, evaluations."""

from __future__ import annotations

import pytest

from mwatch.model.goodput import Spent
from mwatch.model.job import Job, Layout
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.state.goodput import ledger
from support.builders.job import START, step
from support.runs.goodput_turns import Story


def test_start_load_and_first_step_are_booked_by_their_phases() -> None:
    story = Story().enter(12, JobPhase.LOADING).enter(42, JobPhase.STARTING)
    story.enter(50, JobPhase.FIRST_STEP)
    assert story.spent(55) == {"starting": 20, "loading": 30, "first_step": 5}


def test_what_the_first_step_takes_above_a_usual_one_is_reported_when_a_usual_one_is_known() -> (
    None
):
    story = Story().enter(20, JobPhase.FIRST_STEP).line(40, 10, 2.0)
    assert story.spent() == {"starting": 20, "training": 20}
    story.line(50, 20).line(60, 30).line(70, 40)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 40}


def test_a_first_line_of_a_process_is_counted_once() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP)
    story.line(50, 1, 30.0, new=1, is_first_of_process=True)
    story.line(59, 10, 3.9, new=9, covers=10)  # nine seconds, and the first thirty once more
    story.line(69, 20).line(79, 30).line(89, 40)
    assert story.spent() == {"starting": 20, "first_step": 29, "training": 40}


def test_a_save_is_taken_out_of_the_time_between_lines() -> None:
    story = Story().trained().enter(90, JobPhase.SAVING).enter(97, JobPhase.TRAINING)
    story.line(107, 70)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 70, "saving": 7}


@pytest.mark.parametrize("phase", [JobPhase.SAVING, JobPhase.EVALUATING])
def test_a_phase_of_unknown_length_gets_what_the_steps_leave(phase: JobPhase) -> None:
    story = Story().trained().enter(90, phase).enter(90, JobPhase.TRAINING)
    story.line(112, 70)
    assert story.spent()[phase.value] == 12
    assert story.spent()["training"] == 70


def test_a_result_of_an_evaluation_that_nobody_saw_begin_explains_the_rest() -> None:
    story = Story().trained()
    story.job.attempt.evaluations += 1
    story.line(130, 70)
    assert story.spent()["evaluating"] == 30


def test_a_timer_that_runs_on_through_a_save_is_seen_by_the_usual_step() -> None:
    story = Story().trained().enter(90, JobPhase.SAVING).enter(100, JobPhase.TRAINING)
    story.line(110, 70, 2.0)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 70, "saving": 10}
    story.enter(110, JobPhase.SAVING).enter(110, JobPhase.TRAINING).line(130, 80, 2.0)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80, "saving": 20}


def test_a_phase_that_was_believed_too_long_gives_way_to_the_timer() -> None:
    story = Story().trained().enter(90, JobPhase.EVALUATING).enter(104, JobPhase.TRAINING)
    story.line(105, 70)
    assert story.spent()["training"] == 70
    assert story.spent()["evaluating"] == 5


def test_a_gap_that_nothing_explains_is_idle() -> None:
    story = Story().trained().line(130, 70)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 70, "idle": 30}


def test_stamps_of_whole_seconds_lose_nothing() -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP)
    for number in range(1, 101):
        story.line(20 + int(number * 1.25), number, 1.25)
    assert story.spent()["training"] == pytest.approx(125, abs=1.3)


def test_lines_that_come_in_bursts_lose_only_the_first_burst() -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP)
    for number in range(1, 101):
        story.line(20 + 20 * -(-number // 20), number, 1.0)
    assert story.spent()["training"] > 80


def test_iterations_that_were_done_before_are_recomputed() -> None:
    story = Story().trained().end(95).again(110).enter(115, JobPhase.FIRST_STEP)
    for number in range(5, 12):  # resumed from 40; 60 lines and five more steps were done
        story.line(115 + 10 * (number - 4), 10 * number)
    spent = story.spent()
    assert spent["recomputed"] == 25
    assert spent["training"] == 65 + 45


def test_slow_steps_are_slow_above_the_usual_and_only_if_it_lasts() -> None:
    story = Story(interval=1).enter(0, JobPhase.FIRST_STEP)
    now = 0.0
    for number in range(1, 61):
        seconds = 2.0 if number == 20 or number > 40 else 1.0
        now += seconds
        story.line(now, number, seconds)
    assert story.spent() == {"training": 61, "slow": 20}


def test_one_line_that_is_far_above_the_usual_is_slow_at_once() -> None:
    story = Story().trained().line(130, 70, 4.0)
    assert story.spent()["slow"] == 30
    assert story.spent()["training"] == 70


def test_a_batch_that_grows_is_not_slow() -> None:
    story = Story().trained()
    for number in range(7, 12):
        story.line(90 + 20 * (number - 6), 10 * number, 2.0, batch_size=64)
    assert "slow" not in story.spent()


def test_a_stall_that_healed_is_a_hang_not_slow() -> None:
    story = Story().trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    story.line(160, 70, 7.0)
    spent = story.spent()
    assert (spent["hang_undetected"], spent["detecting"], spent["training"]) == (20, 40, 70)


def test_a_report_changes_nothing_for_later() -> None:
    plain, asked = Story().trained(), Story().trained()
    for second in range(90, 130):
        assert sum(asked.spent(second).values()) == pytest.approx(second)
    assert asked.spent(95) == asked.spent(95)
    assert plain.line(130, 70).spent() == asked.line(130, 70).spent()


def test_open_time_looks_like_training_until_the_line_is_late() -> None:
    story = Story().trained()
    assert story.spent(99)["training"] == 69
    assert story.spent(190)["hang_undetected"] == 95


def test_gpu_seconds_are_weighed_by_the_world_size_even_before_it_was_known() -> None:
    story = Story()
    story.job.layout = Layout(log_interval=10)
    story.job.ledger.world_size = None
    story.enter(12, JobPhase.LOADING)
    assert ledger.time_spent(story.job, START + 12).gpu_seconds[Spent.STARTING] == 12
    story.job.layout = Layout(world_size=8, log_interval=10)
    story.enter(42, JobPhase.STARTING)
    gpu = ledger.time_spent(story.job, START + 42).gpu_seconds
    assert (gpu[Spent.STARTING], gpu[Spent.LOADING]) == (96, 240)


def test_lines_without_a_time_of_a_step_count_by_the_clock() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP)
    for number in range(1, 8):
        story.line(20 + 10 * number, 10 * number, None)
    assert story.spent()["training"] == 70


def test_late_and_repeated_hooks_do_no_harm() -> None:
    story = Story().trained()
    story.line(80, 65, new=5)  # of a pod whose clock is behind
    story.line(85, 65, new=0)
    story.end(80).end(200)
    ledger.phase_changed(story.job, START + 300, JobPhase.TRAINING)
    ledger.step_reported(story.job, step(99, at=START + 310))
    assert sum(story.spent().values()) == 90
    empty = Job("run", {})
    ledger.phase_changed(empty, START, JobPhase.STARTING)
    ledger.step_reported(empty, step(1))
    ledger.attempt_ended(empty, START)
    assert ledger.time_spent(empty, START).goodput is None


def test_a_save_among_lines_without_a_time_of_a_step_is_identified_by_the_usual_one() -> None:
    story = Story().trained().enter(90, JobPhase.SAVING).enter(90, JobPhase.TRAINING)
    story.line(109, 70, None)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 70, "saving": 9}


def test_a_save_and_an_evaluation_share_by_how_long_each_usually_takes() -> None:
    story = Story().trained()
    for slot, seconds in ((DeadlineSlot.SAVING, 1.0), (DeadlineSlot.EVALUATING, 3.0)):
        story.job.calibration.learn(slot, seconds)
    for phase in (JobPhase.SAVING, JobPhase.EVALUATING):
        story.enter(90, phase).enter(90, JobPhase.TRAINING)
    story.line(108, 70)
    assert (story.spent()["saving"], story.spent()["evaluating"]) == (2, 6)
    for slot in (DeadlineSlot.SAVING, DeadlineSlot.EVALUATING):
        story.job.calibration.durations[slot].scale(0.0)
    for phase in (JobPhase.SAVING, JobPhase.EVALUATING):
        story.enter(108, phase).enter(108, JobPhase.TRAINING)
    story.line(126, 80)
    assert (story.spent()["saving"], story.spent()["evaluating"]) == (6, 10)
