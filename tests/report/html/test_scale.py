# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Places on a chart stay on it, and labels are round numbers inside it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.report.html.scale import (
    Across,
    Up,
    labels_by_step,
    labels_by_time,
    labels_up,
    linear,
    logarithmic,
)
from mwatch.report.html.text import power_of_two
from mwatch.report.model import ReportClock

NUMBERS = st.floats(-1e300, 1e300)
MIDNIGHT = 1_767_744_000.0  # 2026-01-07 00:00:00 UTC


@given(st.lists(NUMBERS, min_size=1, max_size=9), NUMBERS)
def test_every_number_has_a_place_on_a_linear_axis(seen: list[float], asked: float) -> None:
    axis = linear(seen, seen)
    assert all(0 <= axis.place(each) <= 100 for each in (*seen, asked))
    assert all(0 <= tick.place <= 100 for tick in labels_up(axis))
    assert len(labels_up(axis)) <= 12


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=9), NUMBERS)
def test_every_number_has_a_place_on_a_logarithmic_axis(seen: list[float], asked: float) -> None:
    axis = logarithmic(seen, seen)
    assert all(0 <= axis.place(each) <= 100 for each in (*seen, asked))
    assert len(labels_up(axis)) <= 12
    assert len(labels_up(axis, power_of_two)) <= 12


@given(NUMBERS, NUMBERS, NUMBERS)
def test_every_moment_has_a_place(low: float, high: float, asked: float) -> None:
    axis = Across(min(low, high), max(low, high))
    assert 0 <= axis.place(asked) <= 1000
    for clock in (
        ReportClock(),
        ReportClock(is_relative=True),
        ReportClock(zone="CET", offset_seconds=3600),
    ):
        assert len(labels_by_time(axis, clock)) <= 12
    assert len(labels_by_step(axis)) <= 20


def test_higher_is_further_up() -> None:
    assert Up(0.0, 10.0).place(9.0) < Up(0.0, 10.0).place(1.0)
    assert Up(1.0, 100.0, is_log=True).place(10.0) == pytest.approx(50.0)


def test_a_flat_line_lies_in_the_middle() -> None:
    assert linear([2.0], [2.0]).place(2.0) == pytest.approx(50.0)
    assert linear([0.0], [0.0]).place(0.0) == pytest.approx(100.0)


def test_labels_of_an_axis_are_round() -> None:
    assert [tick.label for tick in labels_up(Up(1.8, 10.9))] == ["2", "4", "6", "8", "10"]
    scales = labels_up(logarithmic([1.0], [2.0**18], 1.6), power_of_two)
    assert scales[0].label == "2⁰"
    assert {tick.label for tick in scales} <= {f"2{chr(0x2070)}", "2⁴", "2⁸", "2¹²", "2¹⁶"}


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (10, ["12:00:00", "12:00:02", "12:00:04"]),
        (600, ["12:00", "12:02", "12:04"]),
        (6 * 3600, ["12:00", "13:00", "14:00"]),
        (20 * 86400, ["Jan 08", "Jan 15", "Jan 22"]),
    ],
)
def test_times_are_shown_by_the_clock(seconds: float, labels: list[str]) -> None:
    noon = MIDNIGHT + 43200
    told = [tick.label for tick in labels_by_time(Across(noon, noon + seconds), ReportClock())]
    assert told[:3] == labels[: len(told)]


def test_full_hours_are_those_of_the_zone_that_is_shown() -> None:
    axis = Across(MIDNIGHT, MIDNIGHT + 3 * 3600)
    ticks = labels_by_time(axis, ReportClock(zone="IST", offset_seconds=19800))
    assert ticks[0].label == "05:30"


def test_times_without_a_clock_are_shown_since_the_first_line() -> None:
    ticks = labels_by_time(Across(0.0, 60.0), ReportClock(is_relative=True))
    assert [tick.label for tick in ticks][:2] == ["0:00", "0:10"]


def test_one_moment_is_in_the_middle() -> None:
    assert Across(5.0, 5.0).place(5.0) == 500.0
    assert labels_by_time(Across(5.0, 5.0), ReportClock()) == []


def test_iterations_are_whole_numbers() -> None:
    ticks = labels_by_step(Across(1.0, 5_000_000.0))
    assert [tick.label for tick in ticks][:2] == ["1,000,000", "2,000,000"]
    assert [tick.label for tick in labels_by_step(Across(1.0, 2.0))] == ["1", "2"]
    assert math.isclose(ticks[0].place, 200, abs_tol=1)
