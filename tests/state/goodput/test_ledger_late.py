# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that come late, in bursts, by another clock or not at all: what is booked is the same."""

from __future__ import annotations

import pytest

from mwatch.model.goodput import Spent
from mwatch.model.job import SourceStatus
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.state.goodput import ledger
from support.builders.job import START, rank
from support.runs.goodput_turns import Story


def test_a_line_that_comes_after_the_save_that_followed_it() -> None:
    story = Story().trained().enter(100, JobPhase.SAVING).enter(106, JobPhase.TRAINING)
    story.line(100, 70).line(116, 80)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80, "saving": 6}


def test_a_save_by_a_clock_that_is_behind_counts_after_the_line() -> None:
    story = Story().trained().enter(96, JobPhase.SAVING).enter(99, JobPhase.TRAINING)
    story.line(100, 70).line(113, 80)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80, "saving": 3}


def test_lines_that_waited_while_nothing_else_was_reported_were_training() -> None:
    story = Story().trained().line(140, 70)
    assert story.spent()["idle"] == 40
    for number in range(8, 12):
        story.line(140, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 110}


def test_lines_that_waited_while_a_stall_was_believed_were_training() -> None:
    story = Story().trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    story.line(140, 70)
    assert (story.spent()["hang_undetected"], story.spent()["detecting"]) == (20, 20)
    for number in range(8, 12):
        story.line(140, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 110}


def test_lines_that_waited_with_the_end_of_a_save_were_training() -> None:
    story = Story().trained().enter(90, JobPhase.SAVING).enter(130, JobPhase.TRAINING)
    story.line(130, 70)
    for number in range(8, 10):
        story.line(130, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 90, "saving": 10}


def test_a_line_that_was_lost_leaves_no_gap() -> None:
    story = Story().trained().line(110, 80)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80}


def test_iterations_that_were_skipped_took_no_time() -> None:
    story = Story().trained().line(100, 500).line(110, 510)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80}


def test_a_first_line_whose_pod_knows_of_no_resume_is_one_iteration() -> None:
    story = Story().trained().end(90).again(100)
    story.job.attempt.resumed_from = 53
    story.enter(120, JobPhase.FIRST_STEP).line(132, 54, 12.0, new=4)
    story.line(138, 60, 18.0 / 7, new=6)  # the first step is in its mean once more
    for number in range(7, 10):
        story.line(78 + 10 * number, 10 * number)
    spent = story.spent()
    assert (spent["recomputed"], spent["training"]) == (12, 65 + 25)
    assert spent["first_step"] == 10 + 11


def test_the_last_iterations_need_no_line() -> None:
    story = Story(total=66).trained()
    story.job.attempt.is_done, story.job.attempt.iteration = True, 66
    story.enter(94, JobPhase.STOPPING).enter(94, JobPhase.SAVING).enter(104, JobPhase.STOPPING)
    story.enter(105, JobPhase.ENDED)
    spent = story.spent()
    assert spent["training"] == pytest.approx(66)  # two seconds of them by another clock
    assert spent["saving"] + spent["idle"] == pytest.approx(9)


def test_a_silent_evaluation_at_the_very_end_is_no_training() -> None:
    story = Story(total=60).trained()
    story.job.attempt.is_done = True
    story.job.attempt.evaluations += 1
    story.enter(150, JobPhase.STOPPING).enter(155, JobPhase.ENDED)
    assert story.spent() == {
        "starting": 20, "first_step": 10, "training": 60, "evaluating": 60, "idle": 5,
    }  # fmt: skip


def test_a_probe_that_is_ahead_of_the_lines_invents_no_steps() -> None:
    story = Story().trained()
    story.job.sources[Source.PROBE] = SourceStatus(True, START, "seen")
    story.job.attempt.ranks[0] = rank(0, 60, at=START + 97, progressed_at=START + 94)
    story.end(97)
    assert story.spent()["training"] == 60


def test_a_line_by_a_clock_that_is_behind_is_made_good_at_the_end() -> None:
    story = Story(total=60)
    story.job.sources[Source.PROBE] = SourceStatus(True, START, "seen")
    story.enter(20, JobPhase.FIRST_STEP).enter(31, JobPhase.TRAINING)
    for number in range(1, 7):  # the first should have come at 40
        story.line(27 + 10 * number, 10 * number, 2.0 if number == 1 else 1.0)
    story.job.attempt.is_done = True
    story.enter(90, JobPhase.STOPPING).enter(95, JobPhase.ENDED)
    assert story.spent()["training"] == pytest.approx(60, abs=0.6)


def test_a_hang_that_ends_with_a_good_bye_is_still_a_hang() -> None:
    story = Story().trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=START + 115)
    story.enter(130, JobPhase.STOPPING).enter(133, JobPhase.ENDED)
    spent = story.spent()
    assert spent["training"] == 65
    assert (spent["hang_undetected"], spent["waiting_to_act"], spent["restarting"]) == (15, 15, 3)


def test_more_of_a_phase_than_there_was_time_is_cut() -> None:
    story = Story().trained()
    for _ in range(3):
        story.enter(90, JobPhase.SAVING).enter(98, JobPhase.TRAINING)
    story.line(100, 70)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 70}
    assert sum(story.job.ledger.booked.values()) == 100


def test_spans_and_unjudged_steps_are_bounded() -> None:
    story = Story().trained()
    for number in range(2000):
        story.enter(90 + number / 100, JobPhase.SAVING).enter(90 + number / 100, JobPhase.TRAINING)
    assert len(story.job.ledger.open.spans) == 512
    young = Story(interval=1).enter(0, JobPhase.FIRST_STEP)
    for number in range(1, 100):
        young.again(10.0 * number).line(10.0 * number + 5, 1, 1.0, new=1)
    assert len(young.job.ledger.pace.unjudged) <= 16
    assert young.job.ledger.booked[Spent.SLOW] == 0


def test_a_first_step_that_the_probe_saw_end_before_its_line_came() -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP).enter(31, JobPhase.TRAINING)
    story.line(33, 1, 12.0, is_first_of_process=True)
    for number in range(2, 12):
        story.line(32 + number, number)
    assert story.spent() == {"starting": 20, "first_step": 12, "training": 11}
