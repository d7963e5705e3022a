# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From the log alone a hang while training is seen within two log intervals, and not before."""

from __future__ import annotations

from typing import Any

from mwatch.detect.stalled import DETECTOR
from mwatch.model.job import Job, Layout, Stream
from mwatch.model.phase import DeadlineSlot
from mwatch.model.step import Step
from support.builders.job import START, add_checkpoints, found, job, step

LAYOUT = Layout(world_size=8, log_interval=10, total_iterations=10_000)


def lines(count: int, *, every: int = 10, seconds: float = 2.0, **more: Any) -> list[Step]:
    return [
        step(
            i * every, at=START + i * every * seconds, covers=every, seconds=seconds, line=i, **more
        )
        for i in range(1, count + 1)
    ]


def training(printed: list[Step], layout: Layout = LAYOUT, **attempt: Any) -> Job:
    built = job(printed, layout=layout, **attempt)
    built.streams["pod-0"] = Stream("pod-0", prints_iterations=True, prints_checkpoints=True)
    return built


def silent_for(built: Job, seconds: float) -> Job:
    built.now = built.attempt.steps[-1].at + seconds
    return built


def test_two_usual_gaps_without_a_line_are_a_hang() -> None:
    built = training(lines(20))
    assert found(DETECTOR, silent_for(built, 39.0)) == []
    (finding,) = found(DETECTOR, silent_for(built, 41.0))
    assert finding.since_time == built.attempt.steps[-1].at
    assert finding.since_iteration == 201
    assert finding.culprit is None


def test_fast_lines_still_get_a_few_seconds() -> None:
    built = training(lines(20, every=1, seconds=0.1), Layout(log_interval=1))
    assert found(DETECTOR, silent_for(built, 4.5)) == []
    assert len(found(DETECTOR, silent_for(built, 6.0))) == 1


def test_the_extra_first_line_says_nothing_of_the_next() -> None:
    """core_v0.16: iteration 1 is printed at once, the next line comes at 10."""
    first = [step(1, seconds=20.0, is_first_of_process=True)]
    built = training(first)
    assert found(DETECTOR, silent_for(built, 300.0)) == []
    assert len(found(DETECTOR, silent_for(built, 401.0))) == 1


def test_one_line_and_no_known_interval_is_too_little_to_judge_by() -> None:
    built = training([step(1, seconds=2.0)], Layout())
    assert found(DETECTOR, silent_for(built, 1700.0)) == []
    (finding,) = found(DETECTOR, silent_for(built, 1900.0))
    assert finding.confidence < 0.5


def test_a_gap_with_a_save_in_it_does_not_become_usual() -> None:
    printed = lines(20)
    late = [each._replace(at=each.at + 100 * (i // 2)) for i, each in enumerate(printed)]
    built = training(late)
    add_checkpoints(built, *(each.iteration for each in late[1::2]))
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1


def test_a_batch_that_ramps_is_waited_for() -> None:
    printed = lines(20)
    at = printed[-1].at
    for i, size in ((21, 48), (22, 64)):
        at += 10 * 2.0 * size / 32
        printed.append(
            step(i * 10, at=at, covers=10, seconds=2.0 * size / 32, batch_size=size, line=i)
        )
    built = training(printed)
    assert found(DETECTOR, silent_for(built, 2 * 10 * 2.0 * 80 / 32 - 1)) == []
    assert len(found(DETECTOR, silent_for(built, 2 * 10 * 2.0 * 80 / 32 + 1))) == 1


def test_buffered_output_comes_in_bursts() -> None:
    """About 30 lines of 8 KiB arrive together; a minute of nothing between them is usual."""
    printed = [step(i, at=START + 60 * ((i + 29) // 30), seconds=2.0, line=i) for i in range(1, 61)]
    built = training(printed, Layout(log_interval=1))
    assert found(DETECTOR, silent_for(built, 100.0)) == []
    assert len(found(DETECTOR, silent_for(built, 121.0))) == 1


def test_an_evaluation_may_be_under_way_where_one_is_due() -> None:
    layout = Layout(world_size=8, log_interval=10, eval_interval=200, total_iterations=10_000)
    built = training(lines(20), layout)
    assert found(DETECTOR, silent_for(built, 3600.0)) == [], "at 200, and the first of all"
    assert len(found(DETECTOR, silent_for(built, 3641.0))) == 1
    off = training(lines(19), layout)
    assert len(found(DETECTOR, silent_for(off, 41.0))) == 1, "at 190 none is due before the line"
    between = training(lines(19), Layout(log_interval=10, eval_interval=195))
    assert found(DETECTOR, silent_for(between, 1000.0)) == []


def test_a_known_evaluation_gets_the_time_it_usually_takes() -> None:
    layout = Layout(log_interval=10, eval_interval=100, total_iterations=10_000)
    built = training(lines(20), layout, evaluations=1)
    built.calibration.durations[DeadlineSlot.EVALUATING].append(90.0)
    assert found(DETECTOR, silent_for(built, 41.0 + 260)) == []
    assert len(found(DETECTOR, silent_for(built, 41.0 + 270))) == 1


def test_an_evaluation_that_gave_its_result_is_over() -> None:
    layout = Layout(log_interval=10, eval_interval=200, total_iterations=10_000)
    built = training(lines(20), layout, evaluations=1)
    built.attempt.progress_at = built.attempt.steps[-1].at + 300
    built.now = built.attempt.progress_at + 41
    (finding,) = found(DETECTOR, built)
    assert finding.since_time == built.attempt.progress_at


def test_an_evaluation_between_two_lines_that_gave_its_result_is_over() -> None:
    layout = Layout(log_interval=10, eval_interval=24, total_iterations=10_000)
    built = training(lines(21), layout, evaluations=7)
    assert found(DETECTOR, silent_for(built, 1000.0)) == [], "216 is due, and seven were told: 168"
    built.attempt.evaluations = 9
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1
    first = training(lines(2), layout, evaluations=1)
    assert len(found(DETECTOR, silent_for(first, 41.0))) == 1, "24 was told before line 30"


def test_an_evaluation_that_is_due_after_a_line_that_may_be_lost_is_counted() -> None:
    layout = Layout(log_interval=10, eval_interval=100, total_iterations=10_000)
    built = training(lines(19), layout, evaluations=1)
    built.calibration.durations[DeadlineSlot.EVALUATING].append(90.0)
    (finding,) = found(DETECTOR, silent_for(built, 41.0))
    assert finding.may_take_seconds == 270, "that of 200, if the line of 200 was lost"
    (finding,) = found(DETECTOR, silent_for(training(lines(18), layout, evaluations=1), 41.0))
    assert finding.may_take_seconds == 0
    built = training(lines(19), Layout(log_interval=10, save_interval=200))
    built.streams["pod-0"] = Stream("pod-0", prints_iterations=True)
    built.calibration.durations[DeadlineSlot.FIRST_SAVE].append(90.0)
    assert found(DETECTOR, silent_for(built, 400.0))[0].may_take_seconds == 600, "the floor"


def test_each_of_several_data_sets_gives_a_result() -> None:
    layout = Layout(log_interval=10, eval_interval=100, total_iterations=10_000)
    built = training(lines(20), layout, evaluations=3, evaluations_before=2)
    assert found(DETECTOR, silent_for(built, 1000.0)) == [], "two sets at 100, one of two at 200"
    built.attempt.evaluations = 4
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1
    built.attempt.evaluations = built.attempt.evaluations_before = 6
    assert found(DETECTOR, silent_for(built, 1000.0)) == [], "six sets at 100"


def test_the_first_lines_of_a_pod_that_shows_no_start_are_no_usual_ones() -> None:
    begun = [
        step(1, at=START + 2, seconds=17.0),
        step(10, at=START + 20, covers=9, seconds=3.5),
    ]
    built = training([*begun, *lines(3)[1:]], Layout(log_interval=10, total_iterations=10_000))
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1


def test_a_run_that_skipped_a_due_evaluation_does_not_evaluate() -> None:
    layout = Layout(log_interval=10, eval_interval=100, total_iterations=10_000)
    built = training(lines(20), layout)
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1


def test_evaluations_at_unknown_times_are_always_allowed_for() -> None:
    built = training(lines(20), Layout(world_size=8), evaluations=2)
    assert found(DETECTOR, silent_for(built, 1000.0)) == []


def test_a_save_is_allowed_for_where_no_stream_would_show_it() -> None:
    layout = Layout(log_interval=10, save_interval=200, total_iterations=10_000)
    built = training(lines(20), layout)
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1, "rank 0's log would have said so"
    built.streams["pod-0"].prints_checkpoints = False
    assert found(DETECTOR, silent_for(built, 1000.0)) == []
    assert len(found(DETECTOR, silent_for(built, 1841.0))) == 1


def test_a_log_that_can_show_no_saves_is_judged_with_care() -> None:
    """Nothing is known of when it saves; a pause as long as the longest is no hang."""
    printed = lines(20)
    printed[10:] = [each._replace(at=each.at + 200) for each in printed[10:]]
    built = training(printed, Layout())
    built.streams["pod-0"].prints_checkpoints = False
    assert found(DETECTOR, silent_for(built, 400.0)) == []
    (finding,) = found(DETECTOR, silent_for(built, 450.0))
    assert finding.confidence < 0.5
    assert "shows saves" in finding.summary


def test_after_the_last_iteration_there_is_time_to_stop() -> None:
    built = training(lines(20), is_done=True)
    assert found(DETECTOR, silent_for(built, 800.0)) == []
    assert len(found(DETECTOR, silent_for(built, 1000.0))) == 1


def test_lines_without_times_never_hang() -> None:
    built = training([each._replace(at=START) for each in lines(20)])
    built.now = START
    assert found(DETECTOR, built) == []


def test_lines_without_step_times_are_judged_by_their_gaps() -> None:
    built = training([each._replace(seconds=None) for each in lines(20)], Layout())
    assert found(DETECTOR, silent_for(built, 39.0)) == []
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1


def test_lines_that_show_neither_times_nor_gaps_are_judged_by_the_default() -> None:
    once = [each._replace(seconds=None) for each in lines(1)]
    built = training(once, Layout(log_interval=10))
    assert found(DETECTOR, silent_for(built, 1700.0)) == []
    assert len(found(DETECTOR, silent_for(built, 1801.0))) == 1


def test_lines_without_batch_sizes_are_judged_by_the_step() -> None:
    built = training(lines(20, batch_size=None))
    assert found(DETECTOR, silent_for(built, 39.0)) == []
    assert len(found(DETECTOR, silent_for(built, 41.0))) == 1


def test_training_that_this_log_never_showed_gets_no_verdict() -> None:
    built = training([], iteration=400)
    built.streams["pod-0"].prints_iterations = False
    built.now += 1e6
    assert found(DETECTOR, built) == []
    built.streams["pod-0"].prints_iterations = True
    assert len(found(DETECTOR, built)) == 1
