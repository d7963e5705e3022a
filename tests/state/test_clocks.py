# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks of recorded pods: moved when causes would follow effects, and not otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mwatch.model.event import Checkpoint, Iteration, Phase
from mwatch.model.observation import Observed
from mwatch.state.merge import estimate_offsets

START = 1_700_000_000.0
STAMP = "2026-01-07T10:00:00"


def line(stream: str, at: float, iteration: int, covers: int = 10, **more: Any) -> Observed:
    fields: dict[str, Any] = dict.fromkeys(Iteration._fields)
    fields |= {"iteration": iteration, "timestamp": STAMP, "elapsed_ms": 1000.0, "losses": {},
               "extra": {}, "covers": covers, "first_of_process": False, "file": "log",
               "line": iteration, "flavour": "megatron"}  # fmt: skip
    return Observed(START + at, stream, Iteration(**(fields | more)))


def save(at: float, edge: Any, iteration: int, timestamp: str | None = STAMP) -> Observed:
    said = Checkpoint("save", edge, iteration, "/ck", False, "", timestamp, None, "log", 1)
    return Observed(START + at, "rank-0", said)


def mark(at: float, name: str = "first-step", stream: str = "rank-0") -> Observed:
    return Observed(START + at, stream, Phase(name, "mark", "", STAMP, None, "log", 1))


def run(skew: float, *, evaluation: float = 0.0, stamped: bool = True) -> dict[str, list[Observed]]:
    """200 steps of a second; rank 0, whose clock is behind by `skew`, saves every 50 for 5 s."""
    last, rank_0 = [], [mark(-skew)]
    now = 0.0
    for iteration in range(10, 210, 10):
        now += 10.0
        last.append(line("last", now, iteration))
        if iteration % 50 == 0:
            now += evaluation
            stamp = STAMP if stamped else None
            rank_0.append(save(now + 0.1 - skew, "begin", iteration, stamp))
            rank_0.append(save(now + 5.0 - skew, "end", iteration, stamp))
            now += 5.1
    return {"last": last, "rank-0": rank_0}


@pytest.mark.parametrize("skew", [0.0, 1.0, -1.5])
def test_clocks_that_agree_are_left_alone(skew: float) -> None:
    assert estimate_offsets(run(skew)) == {"last": 0.0, "rank-0": 0.0}


@pytest.mark.parametrize("evaluation", [0.0, 60.0])
def test_an_evaluation_before_each_save_is_no_skew(evaluation: float) -> None:
    assert estimate_offsets(run(0.0, evaluation=evaluation))["rank-0"] == 0.0


@pytest.mark.parametrize("skew", [30.0, -30.0, 400.0, -2000.0])
def test_a_clock_that_is_wrong_is_put_right(skew: float) -> None:
    assert estimate_offsets(run(skew))["rank-0"] == pytest.approx(skew, abs=2.5)


@pytest.mark.parametrize("hours", [1, -5, 5.5, 8, -12])
@pytest.mark.parametrize("evaluation", [0.0, 20.0])
def test_another_time_zone_is_taken_out_exactly(hours: float, evaluation: float) -> None:
    found = estimate_offsets(run(hours * 3600, evaluation=evaluation))
    assert found["rank-0"] == hours * 3600


def test_the_first_step_alone_is_enough() -> None:
    found = estimate_offsets(run(7200.0, stamped=False))
    assert found["rank-0"] == 7200


def test_more_than_a_day_is_not_believed() -> None:
    assert estimate_offsets(run(100_000.0))["rank-0"] == 0.0


def test_a_few_saves_of_another_attempt_do_not_matter() -> None:
    streams = run(3600.0)
    odd = [save(5000.0, "begin", 150), save(5005.0, "end", 150)]
    streams["rank-0"] = [*odd, *streams["rank-0"]]
    streams["last"] += [line("last", 300 + each, 200 + each) for each in range(10, 400, 10)]
    for iteration in range(250, 600, 50):
        at = 300 + iteration - 200 - 3600.0
        streams["rank-0"] += [save(at + 0.1, "begin", iteration), save(at, "end", iteration)]
    assert estimate_offsets(streams)["rank-0"] == 3600


def test_bounds_that_contradict_each_other_move_nothing() -> None:
    streams = run(0.0)
    streams["rank-0"] = [mark(0), save(900, "begin", 50), save(905, "end", 50),
                         save(60, "begin", 150), save(61, "end", 150)]  # fmt: skip
    assert estimate_offsets(streams)["rank-0"] == 0.0


def test_lines_that_two_pods_print_are_one() -> None:
    both = {name: [line(name, at + shift, at) for at in range(10, 500, 10)]
            for name, shift in (("a", 0.0), ("b", 37.0))}  # fmt: skip
    assert estimate_offsets(both) == {"a": 0.0, "b": pytest.approx(-37, abs=1)}


def test_a_pod_without_anything_in_common_is_moved_only_by_a_zone() -> None:
    streams = run(0.0)
    streams["rank-0"] = streams["rank-0"][1:]
    whole = [mark(at + 3620.0, "loading", "pod-3") for at in (0.0, 190.0)]
    late = [mark(at + 3600.0, "loading", "pod-4") for at in (0.0, 5000.0)]
    found = estimate_offsets({**streams, "pod-3": whole, "pod-4": late})
    assert (found["pod-3"], found["pod-4"]) == (-3600, 0)


def test_nothing_known_is_no_offset() -> None:
    assert estimate_offsets({}) == {}
    assert estimate_offsets({"a": []}) == {"a": 0.0}
    assert estimate_offsets({"a": [], "b": []}) == {"a": 0.0, "b": 0.0}
    unstamped = {name: [line(name, 10, 10, timestamp=None)] for name in "ab"}
    assert estimate_offsets(unstamped) == {"a": 0.0, "b": 0.0}


def test_only_the_beginning_of_a_long_stream_is_read() -> None:
    read = 0

    def endless() -> Iterator[Observed]:
        nonlocal read
        while True:
            read += 1
            yield line("a", float(read), read, covers=1)

    assert estimate_offsets({"a": endless(), "b": []}, max_events=5000) == {"a": 0.0, "b": 0.0}
    assert read <= 5001


def test_asynchronous_saves_are_no_anchors() -> None:
    streams = run(0.0)
    said = Checkpoint("save", "begin", 50, "/ck", True, "", STAMP, None, "log", 1)
    streams["rank-0"] = [mark(0), Observed(START + 900, "rank-0", said)]
    assert estimate_offsets(streams)["rank-0"] == 0.0


def test_bounds_that_are_apart_by_little_meet_in_the_middle() -> None:
    lines = [line("last", at, at) for at in range(10, 500, 10)]
    other = [line("b", at + (100 if at < 250 else 104), at) for at in range(10, 500, 10)]
    assert estimate_offsets({"last": lines, "b": other})["b"] == pytest.approx(-102, abs=0.1)


def test_a_save_without_its_line_bounds_nothing() -> None:
    streams = run(500.0)
    streams["rank-0"] = [save(5, "begin", 55), save(6, "end", 55)]
    assert estimate_offsets(streams)["rank-0"] == 0.0
