# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank is blamed in simulated jobs, with records of NCCL and of gloo."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from mwatch.flight_recorder.analysis import analyse, signs
from mwatch.flight_recorder.dump import read_dump
from mwatch.model.collective import Analysis, Dump, GroupSeen
from mwatch.model.observation import SignSource, SignState
from support.builders.flight import Call, Flight, layout, pipeline, steps
from support.builders.flight_format import pickled

LIBRARIES = pytest.mark.parametrize("library", ["nccl", "gloo"])


def dumps(
    flight: Flight, without: Collection[int] = (), buffers: Mapping[int, int] | None = None
) -> dict[int, Dump]:
    ranks = [rank for rank in range(flight.world) if rank not in without]
    sizes = buffers or {}
    return {
        rank: read_dump(pickled(flight.dump(rank, buffer=sizes.get(rank, 2000))), rank)
        for rank in ranks
    }


def blamed(found: Analysis) -> list[int]:
    return [each.rank for each in found.blamed]


@LIBRARIES
def test_a_rank_that_never_joins_is_found_behind_three_links(library: str) -> None:
    flight = Flight(layout(tp=2, dp=4), library, stops={5: 9}).play(steps(8))
    found = analyse(dumps(flight))
    assert (found.state, blamed(found)) == (SignState.NEVER_JOINED, [5])
    assert found.blamed[0].waiting == 7
    assert found.chain_ranks[-1] == 5 and len(found.chain_ranks) >= 3


@LIBRARIES
def test_two_ranks_that_stop_apart_are_both_named(library: str) -> None:
    groups = layout(tp=2, dp=2)
    flight = Flight(groups, library, stops={0: 4, 3: 4}).play(steps(6))
    assert sorted(blamed(analyse(dumps(flight)))) == [0, 3]


def test_all_joined_and_none_comes_out_is_nobodys_fault() -> None:
    flight = Flight(layout(tp=4), stops=dict.fromkeys(range(4), 5)).play(steps(4))
    for rank in range(4):
        flight.log[rank][-1].is_done = False
    found = analyse(dumps(flight))
    assert (found.state, found.blamed) == (SignState.ALL_EQUAL, ())
    assert "every member has joined all_reduce #4" in found.summary
    assert signs(found)[0][:3] == (SignSource.FLIGHT_RECORDER, SignState.ALL_EQUAL, None)


def test_one_that_does_not_come_out_of_what_the_others_left_is_stuck() -> None:
    flight = Flight(layout(tp=4), stops=dict.fromkeys(range(4), 5)).play(steps(4))
    flight.log[2][-1].is_done = False
    found = analyse(dumps(flight))
    assert (found.state, blamed(found)) == (SignState.STUCK, [2])
    assert [each.rank for each in signs(found)] == [2], "those who wait are not told beside it"


def test_the_device_that_has_not_begun_while_most_have_is_stuck() -> None:
    flight = Flight(layout(tp=4), stops=dict.fromkeys(range(4), 5)).play(steps(4))
    for rank in range(4):
        flight.log[rank][-1].is_done = False
    documents = {rank: flight.dump(rank) for rank in range(4)}
    documents[1]["entries"][-1]["state"] = "scheduled"
    found = analyse({rank: read_dump(pickled(each), rank) for rank, each in documents.items()})
    assert (found.state, blamed(found)) == (SignState.STUCK, [1])


def test_what_is_queued_behind_an_older_one_leads_on_to_it() -> None:
    """Rank 3 does not come to its tensor-parallel call; the others have handed more over."""
    flight = Flight(layout(tp=2, dp=2), ahead=6, stops={3: 7}).play(steps(8))
    found = analyse(dumps(flight))
    assert blamed(found) == [3]


@pytest.mark.parametrize("is_small", [False, True], ids=["four", "pair"])
@pytest.mark.parametrize(
    "call", [Call("tp", "broadcast", (16,)), Call("tp", "all_reduce", (99,))], ids=["kind", "size"]
)
def test_another_call_than_the_group_is_out_of_step(call: Call, is_small: bool) -> None:
    shape = layout(tp=2, dp=2) if is_small else layout(tp=4)
    flight = Flight(shape, instead={(1, 8): call}).play(steps(8))
    found = analyse(dumps(flight))
    assert (found.state, blamed(found)) == (SignState.OUT_OF_STEP, [1])
    assert "others all_reduce of 16 Float" in found.summary


def test_in_a_lone_pair_the_own_past_shows_who_is_out_of_step() -> None:
    flight = Flight(layout(tp=2), instead={(0, 8): Call("tp", "all_reduce", (99,))})
    found = analyse(dumps(flight.play(steps(8, with_world=False))))
    assert (found.state, blamed(found)) == (SignState.OUT_OF_STEP, [0])


def test_calls_in_the_wrong_order_make_a_ring_and_the_odd_one_is_named() -> None:
    wrong = {(1, 20): Call("tp"), (1, 21): Call("world", sizes=(1,))}
    flight = Flight(layout(tp=2), instead=wrong).play(steps(8))
    found = analyse(dumps(flight))
    assert (found.state, blamed(found)) == (SignState.OUT_OF_STEP, [1])
    assert "wait for each other" in found.summary


def test_a_receive_without_a_send_leads_to_the_stage_before() -> None:
    flight = Flight(layout(tp=1, pp=4, dp=2), stops={0: 7})
    flight.play(pipeline(flight, 5))
    found = analyse(dumps(flight))
    assert (found.state, blamed(found)) == (SignState.NEVER_JOINED, [0])
    assert any("a send from rank 0 to rank 2" in link for link in found.chain)


def test_a_send_that_nobody_takes_leads_to_the_stage_after() -> None:
    flight = Flight(layout(tp=1, pp=3), stops={2: 6})
    flight.play(pipeline(flight, 5))
    assert blamed(analyse(dumps(flight))) == [2]
    without = analyse(dumps(flight, without=[2]))
    assert (without.state, blamed(without)) == (SignState.STOPPED, [2])


@LIBRARIES
def test_several_dumps_may_be_missing_beside_the_culprits(library: str) -> None:
    flight = Flight(layout(tp=2, dp=4), library, stops={2: 8}).play(steps(8))
    found = analyse(dumps(flight, without=[2, 7]), 8)
    assert blamed(found)[0] == 2
    assert found.missing == (2, 7)


def test_ranks_without_dumps_that_cannot_be_distinguished_are_all_named_with_less_certainty() -> (
    None
):
    flight = Flight(layout(dp=4), stops={1: 5}).play(steps(8, with_world=False))
    found = analyse(dumps(flight, without=[1, 2]))
    assert sorted(blamed(found)) == [1, 2]
    assert found.confidence <= 0.6 and "cannot be distinguished" in found.summary


def test_of_one_dump_the_other_of_a_pair_is_named_and_of_a_larger_group_nobody_for_sure() -> None:
    pair = Flight(layout(tp=2, dp=2), stops={1: 4}).play(steps(8))
    alone = analyse({0: dumps(pair)[0]})
    assert blamed(alone) == [1] and alone.confidence <= 0.4
    assert signs(alone)[0].state is SignState.FLAT
    wide = Flight(layout(tp=8), stops={1: 4}).play(steps(8))
    assert analyse({0: dumps(wide)[0]}).confidence < 0.25


def test_names_may_differ_from_rank_to_rank_where_the_members_are_recorded() -> None:
    flight = Flight(layout(tp=2, dp=2), stops={2: 8}).play(steps(8))
    documents = {rank: flight.dump(rank) for rank in range(4)}
    for rank, document in documents.items():
        for each in document["pg_config"].values():
            each["name"] = f"{each['name']}-{rank}" if each["desc"] != "default_pg" else "0"
        for each in document["entries"]:
            name, description = each["process_group"]
            own = f"{name}-{rank}" if description != "default_pg" else "0"
            each["process_group"] = (own, description)
    found = analyse({rank: read_dump(pickled(each), rank) for rank, each in documents.items()})
    assert blamed(found) == [2]


def test_a_name_that_is_used_for_other_ranks_is_another_group() -> None:
    flight = Flight(layout(tp=2, dp=2), stops={2: 8}).play(steps(8))
    documents = {rank: flight.dump(rank) for rank in range(4)}
    for document in documents.values():
        for each in (*document["pg_config"].values(), *document["entries"]):
            if "desc" in each and each["desc"].startswith("TENSOR"):
                each["name"] = "9"
            elif "process_group" in each and each["process_group"][1].startswith("TENSOR"):
                each["process_group"] = ("9", each["process_group"][1])
    found = analyse({rank: read_dump(pickled(each), rank) for rank, each in documents.items()})
    assert blamed(found) == [2]


def test_groups_without_descriptions_are_completed_by_the_order_they_were_made_in() -> None:
    flight = Flight(layout(tp=2, dp=4), "gloo", described=False, stops={3: 8}).play(steps(8))
    assert blamed(analyse(dumps(flight, without=[3])))[0] == 3


def test_dumps_of_different_moments_mean_that_the_job_went_on() -> None:
    early = Flight(layout(tp=2, dp=2), stops=dict.fromkeys(range(4), 9)).play(steps(8))
    later = Flight(layout(tp=2, dp=2), stops=dict.fromkeys(range(4), 20)).play(steps(8))
    found = analyse(dumps(later) | {1: dumps(early)[1]})
    assert (found.state, found.blamed) == (SignState.MOVING, ())


def test_a_dump_that_an_earlier_stall_left_counts_as_missing() -> None:
    flight = Flight(layout(tp=2, dp=2), stops={1: 20}).play(steps(12))
    left = Flight(layout(tp=2, dp=2), stops=dict.fromkeys(range(4), 9)).play(steps(8))
    for played in left.log[1]:
        played.at -= 3600
    found = analyse(dumps(flight) | {1: dumps(left)[1]})
    assert (found.state, blamed(found)) == (SignState.STOPPED, [1])
    assert "earlier time" in found.notes[0]


def test_nobody_waits_and_all_have_done_as_much() -> None:
    flight = Flight(layout(tp=2), stops=dict.fromkeys(range(2), 6)).play(steps(8))
    found = analyse(dumps(flight))
    assert (found.state, found.since) == (SignState.ALL_EQUAL, None)
    assert "outside of collectives" in found.summary


def test_gloo_ends_what_a_killed_rank_was_in_so_the_one_without_a_dump_is_named() -> None:
    flight = Flight(layout(tp=4), "gloo", stops=dict.fromkeys(range(4), 7)).play(steps(8))
    found = analyse(dumps(flight, without=[2]))
    assert (found.state, blamed(found)) == (SignState.STOPPED, [2])
    assert "stopped right after an operation with it" in found.summary
    whole = Flight(layout(tp=4), "nccl", stops=dict.fromkeys(range(4), 7)).play(steps(8))
    assert analyse(dumps(whole, without=[2])).blamed == (), "NCCL says that it went well"


def test_an_operation_that_gloo_ended_by_an_error_is_no_sign_that_the_job_went_on() -> None:
    """Rank 1 is killed before its data-parallel call; rank 0 is thrown out of the next one."""
    flight = Flight(layout(tp=2, dp=2), "gloo", stops={1: 5}).play(steps(8))
    flight.log[0][-1].is_done = True
    found = analyse(dumps(flight, without=[1]))
    assert (found.state, blamed(found)[0]) == (SignState.STOPPED, 1)


def test_without_any_dump_nothing_is_known() -> None:
    found = analyse({}, 8)
    assert (found.state, found.confidence) == (SignState.UNKNOWN, 0.0)
    assert [each.state for each in signs(found)] == [SignState.UNKNOWN]


@LIBRARIES
def test_a_rank_alone_waits_for_no_other(library: str) -> None:
    flight = Flight(layout(tp=1), library, stops={0: 3}).play(steps(4))
    flight.log[0][-1].is_done = False
    found = analyse(dumps(flight), 1)
    assert (found.state, found.blamed) == (SignState.UNKNOWN, ())
    assert found.summary == "the only rank waits for no other: look at its stack"
    assert signs(found) == []


def test_a_group_of_one_rank_is_not_compared() -> None:
    flight = Flight(layout(tp=4), stops=dict.fromkeys(range(4), 5)).play(steps(4))
    every = dumps(flight)
    own = GroupSeen("own", "", (2,), 1, 1, has_p2p=False)
    stuck = every[2].operations[-1]._replace(group="own", number=1, is_done=False)
    with_own = every[2]._replace(
        groups={**every[2].groups, "own": own}, operations=(*every[2].operations, stuck)
    )
    assert analyse({**every, 2: with_own}) == analyse(every)
