# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Invariants over simulated jobs and arbitrary files: only the culprit is named, and only the one
documented error is raised.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.flight_recorder import dump
from mwatch.flight_recorder.analysis import analyse, signs
from mwatch.flight_recorder.dump import read_dump
from mwatch.model.collective import Dump
from mwatch.model.observation import SignState
from mwatch_trainer.checkpoint.safe_pickle import UnreadablePickle
from support.builders.flight import Flight, layout, pipeline, steps
from support.builders.flight_format import pickled

SHAPES = st.sampled_from([(2, 1, 2), (2, 1, 4), (4, 1, 2), (2, 2, 2), (1, 1, 6), (3, 1, 2)])


def dumps(flight: Flight, buffer: int = 2000) -> dict[int, Dump]:
    ranks = range(flight.world)
    return {rank: read_dump(pickled(flight.dump(rank, buffer=buffer)), rank) for rank in ranks}


@settings(max_examples=40, deadline=None)
@given(
    shape=SHAPES,
    library=st.sampled_from(["nccl", "gloo"]),
    place=st.floats(0, 1),
    calls=st.integers(0, 20),
    ahead=st.integers(1, 6),
    buffer=st.sampled_from([12, 2000]),
    is_batched=st.booleans(),
)
def test_whoever_stops_is_named_with_and_without_its_own_dump(
    shape: tuple[int, int, int],
    library: str,
    place: float,
    calls: int,
    ahead: int,
    buffer: int,
    is_batched: bool,
) -> None:
    tp, pp, dp = shape
    culprit = min(int(place * tp * pp * dp), tp * pp * dp - 1)
    flight = Flight(layout(tp, pp, dp), library, ahead, batched=is_batched)
    flight.stops[culprit] = calls
    flight.play(pipeline(flight, 7) if pp > 1 and library == "nccl" else steps(8))
    whole = dumps(flight, buffer)
    found = analyse(whole)
    assert found.blamed[0].rank == culprit
    assert analyse(dict(reversed(whole.items()))) == found, "the order of the files says nothing"
    del whole[culprit]
    alone = analyse(whole, flight.world)
    assert alone.blamed[0].rank == culprit
    assert alone.state is SignState.STOPPED


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, calls=st.integers(1, 30), order=st.randoms(use_true_random=False))
def test_ranks_that_change_places_change_nothing_but_their_names(
    shape: tuple[int, int, int], calls: int, order: object
) -> None:
    """Groups are recorded with NCCL, so their shape does not matter."""
    world = shape[0] * shape[1] * shape[2]
    new = list(range(world))
    order.shuffle(new)  # type: ignore[attr-defined]
    moved = {
        kind: [tuple(new[rank] for rank in group) for group in groups]
        for kind, groups in layout(*shape).items()
    }
    flight = Flight(moved, stops={new[0]: calls}).play(steps(12))
    assert analyse(dumps(flight)).blamed[0].rank == new[0]


@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, library=st.sampled_from(["nccl", "gloo"]), calls=st.integers(1, 40))
def test_a_job_that_is_caught_in_step_blames_nobody(
    shape: tuple[int, int, int], library: str, calls: int
) -> None:
    tp, pp, dp = shape
    ranks = range(tp * pp * dp)
    flight = Flight(layout(*shape), library, stops=dict.fromkeys(ranks, calls)).play(steps(12))
    assert analyse(dumps(flight)).blamed == ()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused_and_analysed_all_the_same(data: st.DataObject) -> None:
    library = data.draw(st.sampled_from(["nccl", "gloo"]))
    document = Flight(layout(tp=2), library, stops={1: 9}).play(steps(4)).dump(0)
    whole = pickled(document) if data.draw(st.booleans()) else json.dumps(document).encode()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 8))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dump, "LOOKED_AT", data.draw(st.sampled_from([2, 320])))
            found = read_dump(bytes(damaged), 0)
    except UnreadablePickle as error:
        assert str(error) and "\n" not in str(error)
        return
    assert signs(analyse({0: found}))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_KEYS = [
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "is_p2p",
    "profiling_name", "state", "time_created_ns", "input_sizes", "input_dtypes", "retired",
]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["version", "pg_config", "pg_status", "entries", "nccl_comm_state"]),
        st.lists(st.dictionaries(st.sampled_from(_KEYS), _VALUES), max_size=4) | _VALUES,
    )
)
def test_values_of_any_kind_are_read_or_refused(document: dict[str, object]) -> None:
    try:
        found = read_dump(json.dumps(document, allow_nan=False).encode(), 0)
    except (UnreadablePickle, ValueError):
        return
    assert signs(analyse({0: found, 3: found._replace(rank=3)}))


def test_a_pickle_that_grows_without_end_is_refused_in_time() -> None:
    bomb = b"\x80\x02]q\x00" + b"h\x00h\x00\x86q\x00" * 200_000 + b"."
    began = time.thread_time()
    with suppress(UnreadablePickle):
        read_dump(bomb, 0)
    assert time.thread_time() - began < 20


def test_a_wide_job_is_compared_within_a_moment() -> None:
    """256 ranks here; the benchmark has 2,048 with 2,000 records each."""
    flight = Flight(layout(tp=8, pp=1, dp=32), stops={77: 20}).play(steps(6))
    whole = dumps(flight)
    began = time.thread_time()
    found = analyse(whole)
    assert time.thread_time() - began < 20
    assert [(each.rank, each.waiting) for each in found.blamed] == [(77, 255)]
