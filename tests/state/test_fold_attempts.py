# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When an attempt ends and the next begins, whoever tells it."""

from __future__ import annotations

import pytest

from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.model.phase import JobPhase
from support.builders.events import arguments_block, megatron_line
from support.builders.fold import (
    READY,
    RESTARTS,
    WORLD,
    Story,
    line,
    loaded,
    loading,
    saved,
    saving,
)


def numbers(story: Story) -> list[int]:
    return [*(past.number for past in story.job.past), story.job.attempt.number]


def test_a_run_without_restarts_is_one_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2, 3)
    assert numbers(story) == [1]
    assert story.job.attempt.iteration == 3


def test_a_start_after_steps_opens_an_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2, 3).wait(60).says(WORLD)
    assert numbers(story) == [1, 2]
    assert story.job.attempt.iteration is None
    assert story.job.attempt.phase is JobPhase.STARTING


def test_a_load_below_the_end_of_the_run_is_a_new_process() -> None:
    exiting = "exiting program at iteration 3 with exit code 17"
    for again in (loading(3), "[before the start of training step] datetime: 2025-01-01 00:00:00"):
        story = Story().says(WORLD).trains(1, 2, 3).says(exiting).wait(60).says(again)
        assert numbers(story) == [1, 2]
    assert numbers(Story().says(WORLD).trains(1, 2, 3).wait(60).says(loading(3))) == [1]
    wrapped = Story().sees(AttemptStart(1, None, 2)).says(WORLD).trains(1, 2, 3).says(exiting)
    assert numbers(wrapped.says(loading(3))) == [1], "the wrapper reports a new process"
    early = Story().says(WORLD, "exiting program at iteration 0", loading(3))
    assert numbers(early) == [1], "it has not trained yet"


def test_an_iteration_that_goes_back_opens_an_attempt() -> None:
    story = Story().trains(1, 2, 3, 4).wait(60).trains(3, 4)
    assert numbers(story) == [1, 2]
    assert story.job.past[0].iteration == 4
    assert story.job.attempt.first_iteration == 3


def test_lines_of_another_run_open_nothing_while_the_probe_sees_ranks_go_on() -> None:
    story = Story().says(WORLD).trains(99, 100, seconds=30.0)
    story.beats(0, 100).wait(40.0).beats(0, 100).trains(1, 2, seconds=1.0)
    assert numbers(story) == [1] and story.job.attempt.iteration == 100
    story.wait(60.0).trains(1)
    assert numbers(story) == [1, 2], "nobody goes on"


def test_torchruns_own_restart_opens_an_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2).says(*RESTARTS).wait(5).says(WORLD)
    assert numbers(story) == [1, 2]


def test_a_start_that_failed_and_starts_again_is_two_attempts() -> None:
    story = Story().says(WORLD).sees(ProcessExit(1, None, None)).wait(10).says(WORLD)
    assert numbers(story) == [1, 2]


def test_a_second_copy_of_a_line_is_no_restart() -> None:
    story = Story().trains(1, 2, 3).says("", stream="pod-1").trains(3, stream="pod-1")
    assert numbers(story) == [1]
    assert len(story.job.attempt.steps) == 3


def test_ranks_that_all_print_their_iterations_are_no_restarts() -> None:
    """One of them lags: 3, 2, 4, 3, 5, 4."""
    story = Story().says(WORLD, READY)
    for number in range(3, 40):
        story.wait(0.2).says(line(number), line(number - 1))
    assert numbers(story) == [1]
    assert [each.iteration for each in story.job.attempt.steps] == list(range(3, 40))


@pytest.mark.parametrize("shown", ["a pause", "an error", "a long way back"])
def test_a_line_that_goes_back_is_a_restart_after(shown: str) -> None:
    story = Story().says(WORLD, READY)
    for number in range(100, 140):
        story.wait(0.2).says(line(number))
    if shown == "an error":
        story.says("Traceback (most recent call last):", '  File "a.py", line 1, in <module>')
        story.says("RuntimeError: no")
    story.wait(10 if shown == "a pause" else 0.2)
    story.says(line(101 if shown == "a long way back" else 138))
    assert numbers(story) == [1, 2]


def test_a_start_of_rank_0_that_is_reported_after_the_steps_opens_nothing() -> None:
    """Who looks at a running job reads one pod's past after the other's."""
    story = Story().sees(AttemptStart(2, 2, 2), stream="pod-1")
    began = story.at
    story.wait(5).trains(3, 4, stream="pod-1")
    story.at = began
    story.sees(AttemptStart(2, 2, 2)).wait(1).says(WORLD, loading(2), loaded(2))
    assert numbers(story) == [2]
    assert story.job.attempt.iteration == 4


def test_a_start_that_is_printed_after_the_error_of_another_pod_is_of_the_same_attempt() -> None:
    told = AttemptStart(1, None, 16)
    story = Story().sees(told).sees(told, stream="pod-1").wait(5)
    story.sees(ProcessExit(1, None, None), stream="pod-1").wait(1)
    story.says(WORLD, arguments_block(world_size=16))
    assert numbers(story) == [1]
    story.wait(20).says(WORLD)
    assert numbers(story) == [1, 2], "torchrun has started its ranks again"


def test_pods_that_restart_together_open_one_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2, 3, stream="pod-1").wait(60)
    story.says(WORLD, loading(2), loaded(2)).wait(5).trains(3, 4, stream="pod-1")
    assert numbers(story) == [1, 2]
    assert story.job.attempt.streams == {"pod-0", "pod-1"}
    assert story.job.attempt.resumed_from == 2


def test_the_last_words_of_a_pod_that_lags_belong_to_the_old_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2, stream="pod-1")
    died = story.at
    story.wait(30).says(WORLD)
    story.at = died
    story.says("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
               stream="pod-1")  # fmt: skip
    assert story.job.attempt.faults == []
    assert [seen.fault.id for seen in story.job.past[0].faults] == ["cuda-out-of-memory"]


def test_the_wrapper_gives_attempts_their_numbers() -> None:
    story = Story().sees(AttemptStart(7, 400, 16))
    assert numbers(story) == [7]
    assert story.job.attempt.resumed_from == 400
    assert story.job.layout.world_size == 16
    story.trains(401).sees(AttemptStart(8, 400, 16))
    assert numbers(story) == [7, 8]


def test_an_attempt_that_another_pod_opened_is_joined_not_opened_again() -> None:
    story = Story().sees(AttemptStart(2, None, None)).trains(1)
    story.sees(AttemptStart(2, None, None), stream="pod-1")
    assert numbers(story) == [2]
    assert story.job.attempt.streams == {"pod-0", "pod-1"}


def test_a_wrapper_that_comes_back_late_changes_nothing() -> None:
    story = Story().sees(AttemptStart(5, None, None)).trains(1, 2)
    story.sees(AttemptStart(4, None, None), stream="pod-1")
    assert numbers(story) == [5]


def test_nothing_open_survives_an_attempt() -> None:
    story = Story().says(WORLD).trains(1, 2).says(saving(2)).wait(5)
    story.beats(0, 2, "saving").says(WORLD)
    attempt = story.job.attempt
    assert attempt.save is None
    assert attempt.ranks == {}
    assert attempt.signs == {}
    assert story.job.past[0].save is None


def test_what_a_dead_process_left_in_the_pipe_does_not_start_the_new_one() -> None:
    story = Story().says(WORLD).trains(1, 2).says(*RESTARTS, saving(2), saved(2)).wait(5)
    story.says(WORLD)
    assert numbers(story) == [1, 2]
    assert story.job.attempt.phase is JobPhase.STARTING
    assert story.job.checkpoints[2].is_saved
    assert story.job.checkpoints[2].attempt == 1


def test_an_attempt_knows_how_far_the_ones_before_it_came() -> None:
    story = Story().trains(1, 2, 3, 4).wait(60).trains(3)
    assert story.job.attempt.best_before == 4
    assert story.job.best_iteration == 4
    assert story.job.earlier_steps[4].iteration == 4


def test_an_attempt_that_never_stepped_is_not_taken_for_its_successor() -> None:
    story = Story().sees(AttemptStart(1, None, None)).wait(900).sees(AttemptStart(2, None, None))
    assert numbers(story) == [1, 2]


def test_an_end_that_is_reported_late_is_of_the_attempt_that_ended() -> None:
    story = Story().sees(AttemptStart(1, None, None))
    story.sees(AttemptStart(1, None, None), stream="pod-1").trains(1)
    story.wait(60).sees(AttemptStart(2, None, None)).wait(120)
    story.sees(ProcessExit(None, None, "NodeLost"), stream="pod-1")
    assert story.job.attempt.gone == {}
    assert "pod-1" in story.job.past[0].gone


def test_ranks_that_print_the_same_first_step_are_one_attempt() -> None:
    head = "[rank{}]:[titan] 2025-01-01 00:00:0{} - root - INFO - "
    step = "step:  1  loss: 12.24  memory: 9.46GiB(9.96%)  tps: 1,192  tflops: 6.9  mfu: 2.2%"
    story = Story().says(head.format(0, 1) + step).wait(1).says(head.format(1, 2) + step)
    assert numbers(story) == [1]


def _stamped(iteration: int, stamp: str) -> str:
    return megatron_line(iteration, 1000, stamp=stamp)


def test_lines_of_an_earlier_run_are_quoted_where_the_wrapper_sees_no_new_process() -> None:
    story = Story().sees(AttemptStart(1, None, 2))
    for number in (1, 2, 3, 4):
        story.wait(10).says(_stamped(number, f"2026-09-21 14:16:{number}0.000000"))
    story.wait(18).says(*(_stamped(each, "2026-09-20 14:16:43.000000") for each in (1, 2, 3)))
    assert (story.job.attempt.number, story.job.attempt.iteration) == (1, 4)
    story.wait(10).says(_stamped(5, "2026-09-21 14:16:50.000000"))
    newest = story.job.attempt.steps[-1]
    assert (newest.iteration, newest.covers) == (5, 1)  # not from the quoted 3 on


def test_a_new_process_whose_clock_was_set_back_by_an_hour_is_a_new_attempt() -> None:
    story = Story().sees(AttemptStart(1, None, 2))
    for number in (1, 2, 3, 4):
        story.wait(10).says(_stamped(number, f"2026-09-21 14:16:{number}0.000000"))
    story.wait(60).says(_stamped(1, "2026-09-21 13:17:40.000000"))
    assert (story.job.attempt.number, story.job.attempt.iteration) == (2, 1)
