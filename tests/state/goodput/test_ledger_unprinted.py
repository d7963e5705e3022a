# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What lines did not tell, other words do: a save names its iteration, a stall was a late log."""

from __future__ import annotations

import pytest

from mwatch.model.job import KnownCheckpoint, Save, SourceStatus
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.state.goodput import ledger
from support.builders.job import START, rank, step
from support.runs.goodput_turns import Story


def saves(story: Story, begin: float, end: float | None, iteration: int) -> Story:
    attempt = story.job.attempt
    attempt.save = Save(iteration, START + begin, False)
    story.enter(begin, JobPhase.SAVING)
    if end is not None:
        attempt.save = None
        known = KnownCheckpoint(iteration, START + end, attempt.number, is_saved=True)
        story.job.checkpoints[iteration] = known
        story.enter(end, JobPhase.TRAINING)
    return story


def from_random() -> Story:
    story = Story()
    story.job.attempt.load = "random"
    return story


def test_steps_before_the_first_save_were_steps_though_their_line_was_lost() -> None:
    story = saves(from_random().enter(20, JobPhase.FIRST_STEP), 55, 58, 25)
    story.line(63, 30, new=10)
    for number in range(4, 9):
        story.line(33 + 10 * number, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 80, "saving": 3}


def test_a_save_of_an_attempt_that_began_nobody_knows_where_shows_no_count() -> None:
    story = saves(Story().enter(20, JobPhase.FIRST_STEP), 55, 58, 25)
    story.line(63, 30, new=10)
    for number in range(4, 9):
        story.line(33 + 10 * number, 10 * number)
    assert story.spent()["first_step"] == 35


def test_a_log_that_was_late_until_after_the_end_was_training() -> None:
    story = Story(total=110).trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    story.enter(140, JobPhase.STOPPING)
    assert story.spent()["training"] == 65  # half the way to the next line
    for number in range(7, 12):
        story.line(141, 10 * number)
    assert story.spent()["training"] == pytest.approx(110, abs=1)


def test_a_hang_before_the_good_bye_stays_one_when_no_line_comes() -> None:
    story = Story(total=110).trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    story.enter(140, JobPhase.STOPPING).end(141)
    spent = story.spent()
    assert spent["hang_undetected"] + spent["detecting"] > 40


def test_a_good_bye_that_took_no_time_does_not_explain_the_time_before_it() -> None:
    story = Story().trained().enter(140, JobPhase.STOPPING)
    story = saves(story, 140, 143, 110)
    for number in range(7, 12):
        story.line(144, 10 * number)
    assert story.spent()["training"] == pytest.approx(110, abs=1)


@pytest.mark.parametrize("lost", [1, 5])
def test_lines_that_are_lost_now_and_then_take_nothing_from_the_steps(lost: int) -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP)
    story.line(31, 1, 11.0, new=1)
    for number in range(2, 200):
        if number % 20 >= lost:
            story.line(30 + number, number, new=1)
    story.end(229)
    assert story.spent()["training"] == pytest.approx(199, abs=0.1)


def test_an_evaluation_before_the_last_save_was_no_training() -> None:
    """Its end is told, and the save after it names the last iteration."""
    story = Story().trained()
    story.job.attempt.evaluations += 1
    story = saves(story, 104, None, 62)
    story.job.attempt.save = None
    story.job.checkpoints[62] = KnownCheckpoint(62, START + 107, 1, is_saved=True)
    story.enter(107, JobPhase.STOPPING).end(110)
    spent = story.spent()
    assert (spent["training"], spent["evaluating"], spent["saving"]) == (62, 12, 3)


def test_the_second_line_of_a_silent_pod_counts_its_first_step_though_it_evaluated() -> None:
    story = Story(interval=1).enter(20, JobPhase.FIRST_STEP)
    story.line(64, 117, 44.0, new=1)
    story.enter(66, JobPhase.EVALUATING).enter(78, JobPhase.TRAINING)
    story.line(98, 118, 32.0, new=1)  # the mean of 44 and 20
    story.end(100)
    spent = story.spent()
    assert (spent["first_step"], spent["training"]) == (24, 40)


def test_a_save_after_the_only_line_shows_how_much_of_it_was_the_first_step() -> None:
    story = saves(Story(interval=100).enter(20, JobPhase.FIRST_STEP).line(60, 100, 0.4, new=100),
                  72.5, 75, 150)  # fmt: skip
    story.end(75)
    assert story.spent() == {"starting": 20, "first_step": 15, "training": 37.5, "saving": 2.5}


def test_of_a_single_line_it_is_guessed_and_reported() -> None:
    story = Story(interval=100).enter(20, JobPhase.FIRST_STEP).line(60, 100, 0.4, new=100).end(60)
    assert 0 < story.spent()["first_step"] <= 10
    assert story.job.ledger.guessed_seconds == 40
    assert sum(story.spent().values()) == pytest.approx(60)


def test_a_guess_is_taken_back_when_lines_come() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).line(40, 10, 2.0)
    ledger.stall_judged(story.job, detected_at=START + 45, decided_at=None)
    assert story.job.ledger.guessed_seconds == 20
    for number in range(2, 12):
        story.line(30 + 10 * number, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 110}
    assert story.job.ledger.guessed_seconds == 0


def test_lines_that_come_after_the_end_of_the_attempt_were_training() -> None:
    story = Story().trained()
    ledger.stall_judged(story.job, detected_at=START + 110, decided_at=None)
    story.end(140)
    assert story.spent()["detecting"] == 30
    story.job.attempt.phase = JobPhase.ENDED
    for number in range(7, 10):
        ledger_line(story, 141, 10 * number)
    assert story.spent()["training"] == pytest.approx(90, abs=1)


def ledger_line(story: Story, at: float, iteration: int) -> None:
    """Told to the ledger alone: the attempt stays ended."""
    said = step(iteration, at=START + at, seconds=1.0, covers=10, new=10)
    story.job.attempt.steps.append(said)
    ledger.step_reported(story.job, said)


def test_a_result_names_the_steps_before_its_evaluation() -> None:
    story = Story().trained().enter(90, JobPhase.EVALUATING).enter(107, JobPhase.TRAINING)
    story.job.attempt.evaluations += 1
    story.job.attempt.evaluated_after = 65
    story.end(110)
    spent = story.spent()
    assert (spent["training"], spent["evaluating"]) == (68, 12)


def test_after_the_first_line_alone_the_probe_shows_how_long_was_worked() -> None:
    story = Story().enter(20, JobPhase.FIRST_STEP).line(31, 1, 11.0, new=1)
    job = story.job
    job.sources[Source.PROBE] = SourceStatus(True, START, "seen")
    job.attempt.ranks[0] = rank(0, at=START + 60, iteration=8, progressed_at=START + 38)
    job.attempt.iteration = 8
    ledger.stall_judged(job, detected_at=START + 45, decided_at=None)
    assert story.spent(60)["training"] == 7


def test_steps_before_a_first_line_that_was_lost_were_steps() -> None:
    story = from_random().enter(20, JobPhase.FIRST_STEP).line(50, 20)
    for number in range(3, 12):
        story.line(30 + 10 * number, 10 * number)
    assert story.spent() == {"starting": 20, "first_step": 10, "training": 110}


def test_what_is_owed_of_steps_that_were_done_before_is_no_good_time() -> None:
    story = Story().trained().end(90).again(100).enter(110, JobPhase.FIRST_STEP)
    story.job.attempt.resumed_from = 30
    story.line(121, 40, 2.0)
    story.line(128, 50)  # three seconds more than there were
    story.end(140)
    assert story.spent()["training"] == 65  # 5 of them after the last line of the first attempt
