# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that are drawn: in their time, without what is missing, and apart from what was lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

import pytest

from mwatch.model.cause import Cause
from mwatch.report.html.charts import curve, frame, spread, thinned
from mwatch.report.html.scale import Up
from mwatch.report.model import AttemptReport
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange
from support.builders.story import quiet


def bucket(number: int, at: float, *, attempt: int = 1, loss: float | None = 2.0) -> Bucket:
    told = None if loss is None else ValueRange(loss, loss, loss, 1)
    return Bucket(attempt, number, number, at, at, told, ValueRange(1.0, 1.0, 1.0, 1))


def story(*buckets: Bucket, attempts: tuple[AttemptReport, ...] = ()) -> RunReport:
    return quiet(*buckets, attempts=attempts, started_at=None, ended_at=None)


def attempt(number: int, first: int, last: int, resumed: int | None) -> AttemptReport:
    return AttemptReport(number, 0.0, None, first, last, resumed, 0, Cause.UNKNOWN, "")


def test_lines_that_were_read_together_are_reported_over_the_time_of_their_steps() -> None:
    told = spread([bucket(1, 10.0), *(bucket(number, 20.0) for number in (2, 3, 4))])
    assert [each.ended_at for each in told] == [10.0, 18.0, 19.0, 20.0]


def test_they_are_never_reported_before_the_line_before_them() -> None:
    told = spread([bucket(1, 19.0), *(bucket(number, 20.0) for number in range(2, 12))])
    assert told[1].ended_at == pytest.approx(19.1)
    assert all(one.ended_at < other.ended_at for one, other in pairwise(told))


def test_the_first_lines_of_an_attempt_have_nothing_before_them() -> None:
    told = spread([bucket(1, 5.0, attempt=1), *(bucket(n, 20.0, attempt=2) for n in (1, 2))])
    assert [each.ended_at for each in told] == [5.0, 19.0, 20.0]


def test_lines_with_times_of_their_own_are_left_alone() -> None:
    lines = [bucket(number, float(number)) for number in range(1, 9)]
    assert spread(lines) == lines


def test_lines_without_a_step_time_stay_where_they_are() -> None:
    lines = [replace(bucket(number, 20.0), step_seconds=None) for number in (1, 2)]
    assert [each.ended_at for each in spread(lines)] == [20.0, 20.0]


def test_thinning_keeps_attempts_apart_and_every_line() -> None:
    lines = [bucket(n, float(n), attempt=a) for a in (1, 2) for n in range(1, 101)]
    fewer = thinned(lines, 20)
    assert len(fewer) <= 20
    assert sum(each.loss.lines for each in fewer if each.loss) == 200
    assert {each.attempt for each in fewer} == {1, 2}


def test_what_a_later_attempt_did_again_was_lost() -> None:
    lines = [bucket(n, float(n)) for n in range(1, 11)]
    lines += [bucket(n, 20.0 + n, attempt=2) for n in range(7, 13)]
    drawn = frame(story(*lines, attempts=(attempt(1, 1, 10, None), attempt(2, 7, 12, 6))))
    assert [each.first for each in drawn.buckets if drawn.is_lost(each)] == [7, 8, 9, 10]
    told = curve(drawn, attrgetter("loss"), Up(0.0, 4.0), drawn.step_of)
    assert (told.kept.count("M"), told.lost.count("M")) == (2, 1)


def test_a_second_rollback_reaches_through_the_first() -> None:
    attempts = (attempt(1, 1, 50, None), attempt(2, 41, 60, 40), attempt(3, 21, 70, 20))
    drawn = frame(story(bucket(30, 1.0), attempts=attempts))
    assert drawn.forks == {1: 20, 2: 20}


def test_an_attempt_that_began_anew_loses_all_before_it() -> None:
    drawn = frame(story(bucket(1, 1.0), attempts=(attempt(1, 1, 5, None), attempt(2, 1, 9, None))))
    assert drawn.forks == {1: 0}


def test_a_missing_number_is_a_gap_and_a_lone_one_a_dot() -> None:
    lines = [bucket(1, 1.0), bucket(2, 2.0, loss=None), bucket(3, 3.0), bucket(4, 4.0)]
    drawn = frame(story(*lines))
    told = curve(drawn, attrgetter("loss"), Up(0.0, 4.0), drawn.time_of)
    assert told.kept == "M0 50h.01M666.67 50L1000 50"


def test_the_range_of_a_bucket_is_an_area() -> None:
    wide = replace(bucket(2, 2.0), loss=ValueRange(1.0, 3.0, 2.0, 5))
    drawn = frame(story(bucket(1, 1.0), wide))
    told = curve(drawn, attrgetter("loss"), Up(0.0, 4.0), drawn.time_of)
    assert told.ranges == "M0 50L1000 25L1000 75L0 50Z"
