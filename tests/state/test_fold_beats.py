# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Probe records: progress and phases of a job whose log is silent."""

from __future__ import annotations

from mwatch.model.observation import AttemptStart
from mwatch.model.phase import DeadlineSlot, JobPhase
from support.builders.fold import START, Story, line


def phase(story: Story) -> str:
    return story.job.attempt.phase.value


def test_the_first_record_says_where_the_attempt_stands() -> None:
    story = Story().beats(0, 400, "first-step")
    assert story.job.attempt.iteration == 400
    assert story.job.attempt.resumed_from == 400
    assert story.job.attempt.first_iteration is None


def test_a_rising_iteration_is_training() -> None:
    story = Story().beats(0, 400).wait(5).beats(0, 401)
    assert story.job.attempt.phase is JobPhase.TRAINING
    assert story.job.attempt.first_iteration == 401
    assert story.job.attempt.progress_at == story.at


def test_a_record_without_changes_is_no_progress() -> None:
    story = Story().beats(0, 400).wait(5).beats(0, 401)
    moved = story.at
    story.wait(5).beats(0, 401)
    rank = story.job.attempt.ranks[0]
    assert (rank.progressed_at, rank.at) == (moved, story.at)
    assert story.job.attempt.progress_at == moved


def test_rank_0_speaks_for_the_phase() -> None:
    story = Story().beats(0, 4).beats(1, 4).wait(1).beats(0, 5).beats(1, 5)
    assert phase(story.wait(1).beats(1, 5, "saving")) == "training"
    assert phase(story.wait(1).beats(0, 5, "saving")) == "saving"
    assert phase(story.wait(1).beats(0, 5, "compute")) == "training"


def test_a_record_of_an_older_attempt_is_dropped() -> None:
    story = Story().sees(AttemptStart(3, None, None)).beats(0, 9, attempt=2)
    assert story.job.attempt.ranks == {}


def test_a_record_of_a_newer_attempt_opens_it() -> None:
    story = Story().sees(AttemptStart(3, None, None)).beats(0, 9, attempt=3)
    story.wait(60).beats(0, 4, attempt=4)
    assert story.job.attempt.number == 4
    assert story.job.attempt.ranks[0].iteration == 4


def test_a_record_older_than_the_last_one_changes_nothing() -> None:
    story = Story().beats(0, 4).wait(5).beats(0, 6)
    story.at -= 3
    story.beats(0, 5)
    assert story.job.attempt.ranks[0].iteration == 6


def test_the_probe_shows_the_world_size() -> None:
    assert Story().beats(0, 4).job.layout.world_size == 2


def test_a_probe_that_is_earlier_than_the_log_opens_no_second_attempt() -> None:
    story = Story().sees(AttemptStart(1, None, None)).beats(0, 0, "starting").wait(3)
    story.says("using world size: 2, data-parallel size: 2, tensor-model-parallel size: 1")
    assert story.job.attempt.number == 1
    assert not story.job.past


def test_passing_through_the_end_of_an_asynchronous_save_is_not_staying_there() -> None:
    story = Story().beats(0, 4).wait(1).beats(0, 5).wait(1).beats(0, 5, "async-finalize")
    assert phase(story.wait(1).beats(0, 6, "compute")) == "training"


def evaluating() -> Story:
    """The probe sees rank 0 evaluate since a second; the line before that has not come yet."""
    story = Story().beats(0, 4).wait(2).beats(0, 5).wait(2).beats(0, 6)
    return story.wait(1).beats(0, 6, "evaluating")


def test_a_line_that_is_late_does_not_end_what_the_probe_sees_going_on() -> None:
    story = evaluating().wait(1).says(line(6))
    assert phase(story) == "evaluating"
    assert not story.job.calibration.durations[DeadlineSlot.EVALUATING]
    story.wait(30).beats(0, 6, "evaluating").wait(1).beats(0, 6)
    assert phase(story) == "training"
    assert list(story.job.calibration.durations[DeadlineSlot.EVALUATING]) == [32.0]


def test_where_the_probe_has_gone_silent_a_line_counts() -> None:
    assert phase(evaluating().wait(60).says(line(7))) == "training"


def test_an_evaluation_ends_by_the_clock_that_it_began_by() -> None:
    result = "validation loss at iteration 6 | lm loss value: 2.0E+00 | lm loss PPL: 7.3E+00 |"
    story = evaluating().wait(9).beats(0, 6, "evaluating").says(result, stream="pod-9")
    assert phase(story) == "evaluating"
    assert story.job.attempt.evaluations == 1
    assert phase(story.wait(1).beats(0, 6)) == "training"


def test_how_long_an_iteration_took_is_identified_by_the_clock_of_one_rank() -> None:
    """The clock of rank 1 is three seconds ahead, and another rank tells first each time."""
    story = Story()
    for number in range(4, 9):
        for rank in (0, 1) if number % 2 else (1, 0):
            story.at = START + 5.0 * number + 3.0 * rank
            story.beats(rank, number)
    assert max(story.job.calibration.rises) == 4.0


def test_a_rank_whose_records_were_missed_took_no_longer_than_the_others() -> None:
    story = Story().beats(0, 1).beats(1, 1)
    for number in range(2, 10):
        story.wait(2.0).beats(0, number)
        if number == 2:
            story.beats(1, number)
    story.wait(2.0).beats(1, 10)
    assert max(story.job.calibration.rises) == 1.0
