# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How many iterations a line covers, and which line is the first of its process (1.1, 1.3, 1.4)."""

from __future__ import annotations

import pytest

from mwatch.model.event import Iteration
from support.builders.events import MICRO_STAMP, events, log, megatron_line, only, started, steps

Cover = tuple[int, int | None, bool]


def old(iteration: int, elapsed_ms: float = 400.0) -> str:
    """A line of core_v0.8, which prints at the interval only."""
    return megatron_line(iteration, change={"elapsed time per iteration (ms)": f"{elapsed_ms:.1f}"})


def new(iteration: int, elapsed_ms: float = 400.0) -> str:
    """A line of core_v0.16 or later, which also prints the first iteration of a process."""
    change = {"elapsed time per iteration (ms)": f"{elapsed_ms:.1f}"}
    return megatron_line(iteration, stamp=MICRO_STAMP, change=change)


def covers(text: str) -> list[Cover]:
    return [(step.iteration, step.covers, step.first_of_process) for step in steps(text)]


def test_a_fresh_start_of_an_old_release_covers_the_first_interval() -> None:
    text = started(10) + log(old(10), old(20), old(30))
    assert covers(text) == [(10, 10, True), (20, 10, False), (30, 10, False)]


def test_a_fresh_start_of_a_new_release_prints_the_first_iteration_and_counts_it_again() -> None:
    text = started(10) + log(new(1, 4000.0), new(10, 760.0), new(20))
    assert covers(text) == [(1, 1, True), (10, 10, False), (20, 10, False)]


def test_without_any_start_marker_the_last_rank_shows_the_same() -> None:
    text = log(new(1, 4000.0), new(10, 760.0), new(20))
    assert covers(text) == [(1, 1, True), (10, 10, False), (20, 10, False)]


def test_a_resume_of_an_old_release_covers_less_up_to_the_first_boundary() -> None:
    text = started(10, load="/ck@1003") + log(old(1010), old(1020))
    assert covers(text) == [(1010, 7, True), (1020, 10, False)]


def test_a_resume_at_a_boundary_covers_a_whole_interval() -> None:
    text = started(10, load="/ck@1000") + log(old(1010), old(1020))
    assert covers(text) == [(1010, 10, True), (1020, 10, False)]


def test_a_resume_of_a_new_release_prints_an_extra_line_off_the_interval() -> None:
    text = started(10, load="/ck@1003") + log(new(1004, 4000.0), new(1010, 950.0), new(1020))
    assert covers(text) == [(1004, 1, True), (1010, 7, False), (1020, 10, False)]


def test_an_extra_first_line_that_falls_on_the_interval_covers_one() -> None:
    text = started(10, load="/ck@1009") + log(new(1010, 4000.0), new(1020, 760.0), new(1030))
    assert covers(text) == [(1010, 1, True), (1020, 11, False), (1030, 10, False)]


def test_a_lost_line_after_the_extra_first_one_took_the_double_count_with_it() -> None:
    text = started(10) + log(new(1, 4000.0), new(20), new(30))
    assert covers(text) == [(1, 1, True), (20, 10, False), (30, 10, False)]
    text = started(10, load="/ck@1003") + log(new(1004, 4000.0), new(1020), new(1030))
    assert covers(text) == [(1004, 1, True), (1020, 10, False), (1030, 10, False)]
    text = started(1) + log(new(1, 4000.0), new(3), new(4))
    assert covers(text) == [(1, 1, True), (3, 1, False), (4, 1, False)]


def test_with_interval_one_the_second_line_covers_two() -> None:
    text = started(1) + log(new(1, 1102.5), new(2, 631.2), new(3, 124.5), new(4, 140.9))
    assert covers(text) == [(1, 1, True), (2, 2, False), (3, 1, False), (4, 1, False)]


def test_an_old_release_with_interval_one_counts_nothing_twice() -> None:
    text = started(1) + log(old(1, 1102.5), old(2, 160.0), old(3, 124.5))
    assert covers(text) == [(1, 1, True), (2, 1, False), (3, 1, False)]


@pytest.mark.parametrize(("interval", "second", "expected"), [(1, 2, 1), (10, 10, 9)])
def test_a_release_with_the_double_count_fixed_is_known_by_its_times(
    interval: int, second: int, expected: int
) -> None:
    text = started(interval) + log(new(1, 60000.0), new(second, 120.0))
    assert covers(text) == [(1, 1, True), (second, expected, False)]


def test_iterations_to_skip_are_not_covered() -> None:
    jumped = megatron_line(30, stamp="2025-09-07 23:59:47").replace(
        " elapsed time per", f" skipped samples: {5 * 32:12d} | elapsed time per"
    )
    later = megatron_line(40).replace(
        " elapsed time per", f" skipped samples: {5 * 32:12d} | elapsed time per"
    )
    text = started(10) + log(old(10), old(20), jumped, later)
    assert covers(text)[2:] == [(30, 5, False), (40, 10, False)]


def test_a_jump_over_a_boundary_makes_the_next_line_cover_more_than_an_interval() -> None:
    """Iterations 5 to 7 and 12 skipped, interval 2: 12 prints nothing and resets nothing."""

    def line(iteration: int, skipped: int) -> str:
        samples = f" skipped samples: {skipped * 32:12d} | elapsed time per"
        return new(iteration).replace(" elapsed time per", samples)

    lines = [
        new(1, 4000.0),
        new(2, 2100.0),
        new(4),
        line(8, 3),
        line(10, 3),
        line(14, 4),
        line(16, 4),
    ]
    assert [cover for _, cover, _ in covers(started(2) + log(*lines))] == [1, 2, 2, 1, 2, 3, 2]


def test_each_later_jump_is_not_covered_either() -> None:
    def line(iteration: int, skipped: int) -> str:
        samples = f" skipped samples: {skipped * 32:12d} | elapsed time per"
        return megatron_line(iteration).replace(" elapsed time per", samples)

    lines = [line(30, 5), line(40, 5), line(50, 5), line(60, 8), line(70, 8), line(80, 12)]
    text = started(10) + log(old(10), old(20), *lines)
    assert [cover for _, cover, _ in covers(text)] == [10, 10, 5, 10, 10, 7, 10, 6]


def test_a_lost_line_does_not_stretch_the_next_one() -> None:
    text = started(10) + log(old(10), old(20), old(40), old(50))
    assert covers(text)[1:] == [(20, 10, False), (40, 10, False), (50, 10, False)]


def test_a_restart_in_the_same_log_begins_a_process() -> None:
    first = started(10) + log(new(1, 4000.0), new(10, 760.0), new(20))
    second = started(10, load="/ck@15") + log(new(16, 4000.0), new(20, 1100.0), new(30))
    assert covers(first + second)[3:] == [(16, 1, True), (20, 5, False), (30, 10, False)]


def test_a_restart_that_reaches_the_iteration_where_it_died_is_no_duplicate() -> None:
    text = started(10) + log(old(10), old(20)) + started(10, load="/ck@10") + log(old(20), old(30))
    assert covers(text)[2:] == [(20, 10, True), (30, 10, False)]


def test_a_restart_whose_first_line_lies_ahead_is_still_the_first_of_its_process() -> None:
    text = started(10) + log(old(10), old(20)) + started(10, load="/ck@25") + log(old(30))
    assert covers(text)[2:] == [(30, 5, True)]


def test_a_drop_without_any_marker_is_a_restart() -> None:
    text = log(new(1080), new(1090), new(1100), new(1004, 4000.0), new(1010, 950.0), new(1020))
    assert covers(text)[3:] == [(1004, 1, True), (1010, 7, False), (1020, 10, False)]


def test_a_drop_without_any_marker_in_an_old_release_covers_an_unknown_number() -> None:
    text = log(old(1080), old(1090), old(1010), old(1020))
    assert covers(text)[2:] == [(1010, None, True), (1020, 10, False)]


def test_a_log_read_from_its_middle_knows_nothing_about_its_first_line() -> None:
    text = log(old(610), old(620), old(630))
    assert covers(text) == [(610, None, False), (620, 10, False), (630, 10, False)]


def test_a_log_of_a_new_release_read_from_its_middle_has_no_first_of_process() -> None:
    text = log(new(610), new(620))
    assert covers(text) == [(610, None, False), (620, 10, False)]


def test_a_line_seen_twice_covers_the_same_twice() -> None:
    text = started(10) + log(old(10), old(10), old(20), old(20))
    assert covers(text) == [(10, 10, True), (10, 10, True), (20, 10, False), (20, 10, False)]


def test_a_first_line_seen_twice_keeps_the_double_count() -> None:
    text = started(10) + log(new(1, 4000.0), new(1, 4000.0), new(10, 760.0))
    assert covers(text) == [(1, 1, True), (1, 1, True), (10, 10, False)]


def test_no_checkpoint_found_is_a_fresh_start() -> None:
    text = started(10, load=None).replace(
        "done with setup ...",
        "WARNING: could not find the metadata file /ck/latest_checkpointed_iteration.txt \n"
        "    will not load any checkpoints and will start from random \ndone with setup ...",
    )
    assert covers(text + log(old(10))) == [(10, 10, True)]


def test_the_interval_may_change_with_a_restart() -> None:
    text = started(10) + log(old(10), old(20)) + started(5, load="/ck@20") + log(old(25), old(30))
    assert covers(text)[2:] == [(25, 5, True), (30, 5, False)]


def test_coverage_does_not_depend_on_how_the_bytes_come() -> None:
    text = started(10) + log(new(1, 4000.0), *(new(n) for n in range(10, 400, 10)))
    text += started(10, load="/ck@200") + log(new(201, 4000.0), new(210, 760.0), new(220))
    whole = covers(text)
    data = text.encode()
    for size in (1, 7, 100, 333, 4096):
        assert _chunked(data, size) == whole


def _chunked(data: bytes, size: int) -> list[Cover]:
    found = only(events(data, chunk=size), Iteration)
    return [(step.iteration, step.covers, step.first_of_process) for step in found]
