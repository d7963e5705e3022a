# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""True counters, and what a line covers that no other line has covered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders.fold import READY, WORLD, Story, line


def every(log_interval: int) -> tuple[str, ...]:
    return (
        "------------------------ arguments ------------------------",
        f"  log_interval .................................... {log_interval}",
        "-------------------- end of arguments ---------------------",
    )


def test_the_first_iteration_that_is_printed_twice_is_counted_once() -> None:
    """core_v0.16 repeats the first iteration in the next line (log-formats 1.3)."""
    story = Story().says(WORLD, *every(10), READY)
    story.wait(9).says(line(1, skipped=1, seconds=9.0)).wait(10)
    story.says(line(10, skipped=4, seconds=1.8)).wait(10).says(line(20, skipped=2))
    assert [step.new for step in story.job.attempt.steps] == [1, 9, 10]
    assert [step.skipped for step in story.job.attempt.steps] == [1, 3, 2]
    assert story.job.attempt.skipped == 6


def test_lost_lines_do_not_stretch_what_a_line_covers() -> None:
    story = Story().says(WORLD, *every(1)).trains(1, 2, 3).trains(9)
    assert story.job.attempt.steps[-1].new == 1
    assert story.job.attempt.iteration == 9


def test_nor_in_a_pod_that_does_not_print_the_arguments() -> None:
    """A line of only skipped steps has no loss; one that covers two steps without one is NaN."""
    story = Story().says(WORLD, *every(1)).trains(1, 2, 3, stream="pod-3")
    story.trains(5, stream="pod-3", skipped=1, losses="")
    newest = story.job.attempt.steps[-1]
    assert (newest.covers, newest.skipped) == (1, 1)


def test_a_late_line_is_no_step_back() -> None:
    story = Story().trains(1, 2, 3)
    story.at -= 2
    story.says(line(2))
    assert story.job.attempt.number == 1
    assert story.job.attempt.iteration == 3


def test_the_views_of_a_log_are_up() -> None:
    assert Story().trains(1).job.sees("log")  # type: ignore[arg-type]
    assert not Story().job.sees("log")  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 1000))
def test_whatever_the_numbers_are_each_attempt_only_goes_forward(
    numbers: list[int], start: int
) -> None:
    story = Story()
    for number in numbers:
        story.trains(start + number)
    for attempt in (*story.job.past, story.job.attempt):
        seen = [step.iteration for step in attempt.steps]
        assert seen == sorted(set(seen))
        assert all(1 <= step.new <= step.covers for step in attempt.steps)
    if numbers:
        assert story.job.best_iteration == start + max(numbers)
