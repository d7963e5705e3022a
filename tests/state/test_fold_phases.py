# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which phase an attempt is in, by the log alone."""

from __future__ import annotations

import pytest

from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.state.goodput.ledger import time_spent
from support.builders.fold import (
    DONE,
    READY,
    WORLD,
    Story,
    line,
    loaded,
    loading,
    queued,
    saved,
    saving,
)

LEAVES = "exiting program at iteration 3"
BYE = "[exiting program after receiving SIGTERM.] datetime: 2025-09-07 23:59:00 "


def phase(story: Story) -> JobPhase:
    return story.job.attempt.phase


def test_from_start_to_the_first_step() -> None:
    story = Story().says(WORLD)
    assert phase(story) is JobPhase.STARTING
    story.says(loading(5))
    assert phase(story) is JobPhase.LOADING
    story.says(loaded(5))
    assert phase(story) is JobPhase.STARTING
    story.says(READY)
    assert phase(story) is JobPhase.FIRST_STEP
    story.wait(30).says(line(6))
    assert phase(story) is JobPhase.TRAINING
    assert story.job.attempt.phase_since == story.at


def test_a_synchronous_save_is_a_phase_until_it_is_done() -> None:
    story = Story().trains(1, 2).says(saving(2)).wait(9)
    assert phase(story) is JobPhase.SAVING
    story.says(saved(2))
    assert phase(story) is JobPhase.TRAINING
    assert story.job.attempt.saves_done == 1
    assert story.job.attempt.save is None


def test_an_asynchronous_save_stays_open_while_training_goes_on() -> None:
    story = Story().trains(1, 2).says(saving(2)).wait(1).says(queued(2))
    assert phase(story) is JobPhase.TRAINING
    assert story.job.attempt.save is not None
    story.trains(3, 4).says(saved(2))
    assert story.job.attempt.save is None
    assert story.job.checkpoints[2].is_saved


def test_a_step_after_the_saved_one_proves_that_the_save_is_over() -> None:
    story = Story().trains(1, 2).says(saving(2)).trains(3)
    assert phase(story) is JobPhase.TRAINING


def test_a_line_of_the_saved_step_that_comes_late_does_not_end_the_save() -> None:
    story = Story().trains(1).says(saving(2)).trains(2, stream="pod-1")
    assert phase(story) is JobPhase.SAVING


def test_a_good_bye_is_stopping_and_the_end_of_the_command_is_the_end() -> None:
    story = Story().trains(1, 2).says(BYE)
    assert phase(story) is JobPhase.STOPPING
    story.says("exit code 0")
    assert phase(story) is JobPhase.ENDED
    assert story.job.attempt.ended_at == story.at
    assert not story.job.attempt.is_done


def test_a_last_save_after_training_goes_back_to_stopping() -> None:
    story = Story().trains(1, 2, total=2).says(DONE, saving(2)).wait(3)
    assert phase(story) is JobPhase.SAVING
    story.says(saved(2))
    assert phase(story) is JobPhase.STOPPING
    assert story.job.attempt.is_done


def test_a_printed_end_after_which_training_goes_on_is_taken_back() -> None:
    quiet = Story().trains(1, 2, 3, 4, 5)
    story = Story().trains(1, 2).says("exit code 1")
    assert phase(story) is JobPhase.ENDED
    story.trains(3)
    assert phase(story) is JobPhase.ENDED, "one step may have been under way"
    story.trains(4, 5)
    assert phase(story) is JobPhase.TRAINING
    assert story.job.attempt.ended_at is None and not story.job.attempt.gone
    spent = [time_spent(each.job, each.at).seconds for each in (story, quiet)]
    assert spent[0] == pytest.approx(spent[1], abs=2.0)


def test_a_printed_end_is_none_where_a_wrapper_will_report_the_real_one() -> None:
    story = Story().sees(AttemptStart(1, None, None)).trains(1, 2).says("exit code 1")
    assert phase(story) is JobPhase.TRAINING
    assert phase(story.sees(ProcessExit(1, None, None))) is JobPhase.ENDED
    assert phase(story.trains(3, 4, 5)) is JobPhase.ENDED, "late lines: the process is gone"


def test_nobody_is_done_far_from_the_end() -> None:
    story = Story().trains(58, 59, 60, total=100).says(DONE)
    assert phase(story) is JobPhase.TRAINING and not story.job.attempt.is_done
    story.trains(99, 100, total=100).says(DONE)
    assert story.job.attempt.is_done


def test_who_goes_on_is_not_done_whatever_was_printed() -> None:
    story = Story().says(DONE).trains(1, 2, 3, total=100)
    assert not story.job.attempt.is_done


def test_a_dead_pod_ends_the_gang() -> None:
    story = Story().trains(1).says("", stream="pod-1").sees(ProcessExit(137, "SIGKILL", None))
    assert phase(story) is JobPhase.ENDED


def test_a_pod_that_ended_well_ends_nothing_while_others_go_on() -> None:
    story = Story().trains(1).trains(2, stream="pod-1")
    story.sees(ProcessExit(0, None, None), stream="pod-1")
    assert phase(story) is JobPhase.TRAINING
    story.sees(ProcessExit(0, None, None))
    assert phase(story) is JobPhase.ENDED


def test_an_evaluation_that_only_its_timer_reports_is_booked_when_it_was() -> None:
    story = Story().trains(1, 2)
    story.says(
        " validation loss at iteration 2 | lm loss value: 6.0E+00 | lm loss PPL: 4.0E+02 | ",
        "(min, max) time across ranks (ms):",
        "    evaluate .......................................: (4000.00, 4000.00)",
        line(3, seconds=1.0),
    )
    assert list(story.job.calibration.durations[DeadlineSlot.EVALUATING]) == [4.0]
    assert story.job.attempt.evaluations == 1


def test_an_exit_over_a_result_that_failed_validation_was_not_asked_for() -> None:
    failed = (
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 6 at iteration #3 "
        "invocation #1 (message='found NaN in local forward loss calculation')"
    )
    story = Story().says(WORLD).trains(1, 2).wait(1).says(failed, LEAVES)
    assert story.job.attempt.exit is None
    went_on = Story().says(WORLD).trains(1, 2).wait(1).says(failed).trains(3).wait(1).says(LEAVES)
    assert went_on.job.attempt.exit is not None


def test_a_timer_that_comes_after_the_lines_of_the_next_save_moves_no_clock() -> None:
    """Another pod prints the save. Progress in the future would hide a hang."""
    story = Story().trains(1, 2).wait(4.5).says(saving(2)).wait(0.5).says(queued(2)).wait(0.5)
    story.says(
        "(min, max) time across ranks (ms):",
        "    evaluate .......................................: (4000.00, 4000.00)",
        stream="pod-1",
    )
    assert story.job.attempt.progress_at <= story.at


def test_a_validation_that_is_nan_is_remembered_with_its_iteration() -> None:
    story = (
        Story()
        .trains(1, 2)
        .says(" validation loss at iteration 2 | lm loss value: NAN | lm loss PPL: 4.851652E+08 | ")
    )
    assert story.job.attempt.bad_validation_at == 2


def test_a_pod_without_the_arguments_knows_the_last_iteration_by_its_lines() -> None:
    story = Story().trains(998, 999)
    assert not story.job.attempt.is_done
    assert story.trains(1000).job.attempt.is_done


def test_an_evaluation_that_the_probe_saw_is_not_reported_again_by_its_timer() -> None:
    story = Story().trains(1, 2).beats(0, 2).wait(1).beats(0, 2, "evaluating").wait(19)
    story.beats(0, 2, "compute").says(
        "(min, max) time across ranks (ms):",
        "    evaluate .......................................: (19000.00, 19000.00)",
        line(3),
    )
    assert story.job.attempt.progress_at == story.at
