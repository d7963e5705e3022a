# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Streams become one, by time, each in its own order, without being read ahead."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.model.observation import Observed, Source, SourceStatusChange
from mwatch.state.merge import merge
from support.builders.events import events, megatron_line

WORD = SourceStatusChange(Source.LOG, True, "")


def seen(stream: str, *times: float) -> list[Observed]:
    return [Observed(at, stream, WORD) for at in times]


def test_the_order_is_that_of_one_clock() -> None:
    streams = {"a": seen("a", 1, 4, 5), "b": seen("b", 2, 3, 9)}
    assert [each.at for each in merge(streams, {})] == [1, 2, 3, 4, 5, 9]


def test_offsets_are_added_to_the_times() -> None:
    streams = {"a": seen("a", 100, 102), "b": seen("b", 1, 3)}
    found = [(each.stream, each.at) for each in merge(streams, {"b": 100.0})]
    assert found == [("a", 100), ("b", 101), ("a", 102), ("b", 103)]


def test_a_clock_that_steps_back_changes_neither_the_order_nor_the_times() -> None:
    streams = {"a": seen("a", 10, 7, 12), "b": seen("b", 8, 11)}
    found = [(each.stream, each.at) for each in merge(streams, {})]
    assert found == [("b", 8), ("a", 10), ("a", 7), ("b", 11), ("a", 12)]


def test_an_iteration_line_comes_before_what_happens_in_the_same_second() -> None:
    (line,) = events(megatron_line() + "\n")
    streams = {"rank-0": seen("rank-0", 5), "last": [Observed(5, "last", line)]}
    assert [each.stream for each in merge(streams, {})] == ["last", "rank-0"]


def test_a_time_that_is_no_number_is_that_of_the_word_before() -> None:
    streams = {"a": seen("a", 3, math.nan, 9), "b": seen("b", 4)}
    assert [each.at for each in merge(streams, {})] == [3, 3, 4, 9]


def test_nothing_is_nothing() -> None:
    assert list(merge({}, {})) == []
    assert list(merge({"a": []}, {"a": 5.0, "gone": 1.0})) == []


def test_hundreds_of_endless_streams_are_read_one_word_at_a_time() -> None:
    read = 0

    def endless(stream: str) -> Iterator[Observed]:
        nonlocal read
        at = 0.0
        while True:
            read += 1
            at += 1.0
            yield Observed(at, stream, WORD)

    story = merge({str(number): endless(str(number)) for number in range(300)}, {})
    for _ in range(1000):
        next(story)
    assert read <= 1000 + 300


@given(st.lists(st.lists(st.floats(-1e9, 1e9), max_size=20), max_size=8))
def test_nothing_is_lost_and_each_stream_keeps_its_order(times: list[list[float]]) -> None:
    streams = {str(number): seen(str(number), *each) for number, each in enumerate(times)}
    found = list(merge(streams, {}))
    assert len(found) == sum(map(len, times))
    for name, stream in streams.items():
        assert [each for each in found if each.stream == name] == stream


@given(st.lists(st.lists(st.floats(0, 1e9).map(abs), max_size=20).map(sorted), max_size=8))
def test_streams_in_order_give_an_order(times: list[list[float]]) -> None:
    streams = {str(number): seen(str(number), *each) for number, each in enumerate(times)}
    found = [each.at for each in merge(streams, {})]
    assert found == pytest.approx(sorted(found))
