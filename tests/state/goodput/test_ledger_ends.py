# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the time after the last line is booked: hangs, crashes, good-byes, and between attempts."""

from __future__ import annotations

import pytest

from mwatch.model.event import Exit
from mwatch.model.job import ExitSeen, Save, SourceStatus
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.state.goodput import ledger
from support.builders.job import START, error, rank
from support.runs.goodput_turns import Story

BYE = Exit("signal", None, "", None, None, "log", 1)


def test_the_parts_of_a_hang_that_ends_an_attempt() -> None:
    story = Story().trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    ledger.stall_judged(story.job, detected_at=START + 111, decided_at=START + 115)
    ledger.stall_judged(story.job, detected_at=START + 112, decided_at=START + 119)
    story.end(140)
    spent = story.spent()
    assert spent["training"] == 65  # half of the way to the next line
    parts = (spent["hang_undetected"], spent["detecting"], spent["waiting_to_act"])
    assert parts == (15, 5, 25)


def test_with_the_probe_the_moment_of_the_hang_is_known() -> None:
    story = Story().trained()
    story.job.sources[Source.PROBE] = SourceStatus(True, START, "seen")
    story.job.attempt.ranks[0] = rank(0, 68, at=START + 130, progressed_at=START + 98)
    story.job.attempt.iteration = 68
    ledger.stall_judged(story.job, detected_at=START + 104, decided_at=START + 106)
    story.end(140)
    spent = story.spent()
    assert (spent["training"], spent["hang_undetected"], spent["waiting_to_act"]) == (68, 6, 34)


def test_a_hang_in_a_save_is_no_saving() -> None:
    story = Story().trained().enter(90, JobPhase.SAVING)
    ledger.stall_judged(story.job, detected_at=START + 210, decided_at=START + 220)
    story.enter(240, JobPhase.ENDED).end(240)
    assert story.spent() == {
        "starting": 20, "first_step": 10, "training": 60, "hang_undetected": 120, "detecting": 10,
        "waiting_to_act": 20,
    }  # fmt: skip


def test_an_attempt_that_dies_between_two_lines_had_worked_until_then() -> None:
    story = Story().trained().end(96.4)
    spent = story.spent()
    assert spent["training"] == 66
    assert spent["restarting"] == 0.4  # a step that was not finished is lost


def test_silence_that_nobody_judged_is_a_hang_from_half_of_the_way_on() -> None:
    assert Story().trained().end(390).spent() == {
        "starting": 20, "first_step": 10, "training": 65, "hang_undetected": 295,
    }  # fmt: skip


def test_time_after_the_error_that_ends_an_attempt_is_restarting() -> None:
    story = Story().trained()
    story.job.attempt.errors.append(error(at=START + 94))
    story.end(700)
    spent = story.spent()
    assert (spent["training"], spent["restarting"]) == (64, 606)


def test_the_whole_gap_between_attempts_is_restarting() -> None:
    story = Story().trained().end(90).again(400)
    assert story.spent(430)["restarting"] == pytest.approx(310 - 5)
    assert story.spent(430)["starting"] == 20 + 30


def test_a_recorded_log_that_ends_with_a_line_had_worked_on() -> None:
    story = Story(interval=100).trained().end(90)
    assert story.spent()["training"] == 60
    story.again(1000)
    assert story.spent()["training"] == 60 + 50


def test_time_stops_when_training_is_done() -> None:
    story = Story(total=60).trained()
    story.job.attempt.is_done = True
    story.enter(92, JobPhase.STOPPING).enter(95, JobPhase.ENDED).end(95)
    assert story.spent(99_999) == {"starting": 20, "first_step": 10, "training": 60, "idle": 5}
    assert story.again(200).spent()["idle"] == 5 + 105


def test_a_good_bye_is_part_of_the_restart() -> None:
    story = Story().trained()
    story.enter(93, JobPhase.SAVING).enter(97, JobPhase.TRAINING)
    story.job.attempt.exit = ExitSeen(START + 97, "pod-0", BYE)
    story.enter(97, JobPhase.STOPPING).enter(103, JobPhase.ENDED).end(103)
    spent = story.spent()
    assert (spent["training"], spent["saving"], spent["restarting"]) == (63, 4, 6)


def test_an_attempt_that_dies_after_its_steps_began_and_before_any_line() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).enter(30, JobPhase.TRAINING).end(50)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 20}
    stuck = Story().enter(20, JobPhase.FIRST_STEP).enter(30, JobPhase.TRAINING)
    ledger.stall_judged(stuck.job, detected_at=START + 40, decided_at=None)
    assert stuck.end(50).spent() == {
        "starting": 20, "first_step": 10, "hang_undetected": 10, "detecting": 10,
    }  # fmt: skip


def test_a_phase_that_ends_an_attempt_without_any_line() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).enter(30, JobPhase.TRAINING)
    story.enter(34, JobPhase.SAVING).enter(40, JobPhase.ENDED)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 4, "saving": 6}


def test_the_probe_alone_shows_how_long_an_attempt_worked() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).enter(30, JobPhase.TRAINING)
    story.job.sources[Source.PROBE] = SourceStatus(True, START, "seen")
    story.job.attempt.ranks[0] = rank(0, 9, at=START + 99, progressed_at=START + 80)
    spent = story.end(100).spent()
    assert (spent["training"], spent["hang_undetected"]) == (50, 20)


def test_a_save_and_a_good_bye_report_iterations_that_no_line_has_reported() -> None:
    story = Story().trained()
    story.job.attempt.exit = ExitSeen(START + 100, "pod-0", BYE._replace(iteration=65))
    story.enter(90, JobPhase.EVALUATING).enter(97, JobPhase.TRAINING)
    story.enter(98, JobPhase.STOPPING).enter(100, JobPhase.ENDED)
    assert story.spent()["training"] == pytest.approx(65)
    saved = Story().trained()
    saved.job.attempt.save = Save(64, START + 94, False)
    saved.enter(90, JobPhase.EVALUATING).enter(94, JobPhase.SAVING).enter(99, JobPhase.ENDED)
    assert saved.spent()["training"] == pytest.approx(64)


def test_what_few_lines_show_is_enough_at_the_end() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).line(40, 10, 2.0).line(50, 20)
    assert story.end(50).spent() == {"starting": 20, "first_step": 10, "training": 20}


def test_an_attempt_that_has_shown_only_its_first_step_was_faster_than_that() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP)
    story.line(50, 1, 30.0, new=1, is_first_of_process=True)
    assert story.end(350).spent()["training"] == 15
