# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The two forms of a dump, the releases of torch, and files that are not dumps."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mwatch.flight_recorder.dump import KEPT, merged, read_dump
from mwatch.model.collective import Dump
from mwatch_trainer.checkpoint.safe_pickle import UnreadablePickle
from support.builders.flight import Call, Flight, layout, pipeline, steps
from support.builders.flight_format import pickled

FOLDER = Path(__file__).resolve().parents[1] / "flight"


def dump_of(document: object) -> Dump:
    return read_dump(pickled(document), 0)


def played(**options: Any) -> Flight:
    return Flight(layout(tp=2, dp=2), **options).play(steps(4))


def sent(number: int, state: str) -> dict[str, Any]:
    return {
        "record_id": number,
        "process_group": ("1", "pp"),
        "p2p_seq_id": number,
        "profiling_name": "nccl:send 0->1",
        "state": state,
        "is_p2p": True,
    }


def test_both_forms_say_the_same() -> None:
    document = played(stops={2: 9}).dump(1)
    assert read_dump(pickled(document), 1) == read_dump(json.dumps(document).encode(), 1)


def test_a_pickle_by_python_itself_is_read_as_well() -> None:
    document = played().dump(1)
    for protocol in (2, 3, 4, 5):
        assert read_dump(pickle.dumps(document, protocol), 1) == dump_of(document)._replace(rank=1)


def test_nccl_is_over_when_it_is_completed_and_gloo_when_it_is_retired() -> None:
    for library in ("nccl", "gloo"):
        found = dump_of(played(library=library, stops={1: 6}).dump(0))
        assert [each.is_done for each in found.operations][-2:] == [True, False]


def test_nccl_that_was_retired_without_an_end_has_timed_out_and_still_waits() -> None:
    document = played(stops={1: 6}).dump(0)
    document["entries"][-1]["retired"] = True
    assert not dump_of(document).operations[-1].is_done


def test_members_are_known_with_nccl_and_not_with_gloo() -> None:
    assert dump_of(played().dump(0)).groups["1"].ranks == (0, 1)
    assert dump_of(played(library="gloo").dump(0)).groups["1"].ranks is None


def test_a_send_and_its_receive_name_the_same_channel() -> None:
    flight = Flight(layout(tp=1, pp=2))
    flight.play(pipeline(flight, 2))
    sent = [each.peer for each in dump_of(flight.dump(0)).operations if each.kind == "send"]
    received = [each.peer for each in dump_of(flight.dump(1)).operations if each.kind == "recv"]
    assert sent == received == [(0, 1), (0, 1)]


def test_batched_sends_of_real_nccl_are_over_when_their_batch_is() -> None:
    """One rank that sends to itself, of torch 2.11: three batches are over, the fourth is not."""
    found = read_dump((FOLDER / "nccl-one-rank.pickle").read_bytes(), 0)
    of_sends = [(each.number, each.is_done) for each in found.operations if each.kind == "send"]
    assert of_sends == [(1, True), (2, True), (3, True), (4, False)]
    waiting = [(each.kind, each.number) for each in found.operations if not each.is_done]
    assert waiting == [("all_reduce", 7), ("send", 4), ("recv", 4), ("all_reduce", 5)]
    assert not any(each.kind == "coalesced" for each in found.operations)
    assert found.groups["1"].ranks == (0,)


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_pipeline_is_read_alike_with_and_without_batches(is_batched: bool) -> None:
    flight = Flight(layout(tp=1, pp=2), batched=is_batched, stops={0: 4})
    flight.play(pipeline(flight, 3))
    found = [(each.kind, each.is_done) for each in dump_of(flight.dump(1)).operations]
    assert found[-2:] == [("all_reduce", True), ("recv", False)]


def test_a_batch_without_its_parts_still_shows_that_something_is_open() -> None:
    flight = Flight(layout(tp=1, pp=2), batched=True, stops={0: 4})
    document = flight.play(pipeline(flight, 3)).dump(1)
    document["entries"] = document["entries"][-1:]
    found = dump_of(document).operations
    assert [(each.kind, each.is_p2p, each.is_done) for each in found] == [
        ("coalesced", True, False)
    ]


def test_what_came_before_a_completed_one_in_its_stream_is_over() -> None:
    entries = [sent(1, "scheduled"), sent(2, "completed")]
    found = dump_of({"pg_config": {}, "entries": entries}).operations
    assert [each.is_done for each in found] == [True, True]


def test_a_full_buffer_is_noticed_and_only_its_tail_is_kept() -> None:
    flight = Flight(layout(tp=2)).play(steps(400))
    found = dump_of(flight.dump(0, buffer=1000))
    assert found.has_wrapped and len(found.operations) == KEPT
    assert not dump_of(flight.dump(0)).has_wrapped


def test_an_old_one_that_is_not_over_is_kept_among_many_new_ones() -> None:
    document = Flight(layout(tp=2), library="gloo").play(steps(400)).dump(0)
    document["entries"][3]["retired"] = False
    found = dump_of(document).operations
    assert [each.record for each in found if not each.is_done] == [3]


def test_a_group_of_old_records_only_is_known_by_its_description() -> None:
    document = Flight(layout(tp=2), library="gloo").play(steps(400)).dump(0)
    for each in document["entries"][:9]:
        each["process_group"] = ("7", "EMBEDDING_GROUP")
    for found in (dump_of(document), read_dump(json.dumps(document).encode(), 0)):
        assert found.groups["7"].description == "EMBEDDING_GROUP"


def test_torch_2_3_had_one_number_for_all() -> None:
    flight = played(stops={1: 6})
    found = dump_of(flight.dump(0, version="1.5")).operations
    assert [each.number for each in found] == [1, 2, 1, 3, 4, 2, 1]


def test_torch_2_2_wrote_nothing_but_the_records() -> None:
    document = played().dump(0)["entries"]
    assert dump_of(document).operations[0].kind == "all_reduce"


def test_sizes_are_compared_by_elements_and_only_where_they_must_be_equal() -> None:
    flight = Flight(layout(tp=2))
    calls = [Call("tp", "all_reduce", (2, 4)), Call("tp", "all_to_all", (3,))]
    found = dump_of(flight.play(lambda rank: calls).dump(0)).operations
    assert [each.shape for each in found] == ["8 Float", ""]


def test_two_recorders_of_one_rank_are_one_recording() -> None:
    one = dump_of(played().dump(0))
    other = dump_of(played(library="gloo").dump(0))
    both = merged(one, other)
    assert len(both.operations) == len(one.operations) + len(other.operations)
    assert [each.record for each in both.operations] == list(range(len(both.operations)))
    assert len(both.groups) == len(one.groups) + len(other.groups)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "neither a pickle nor JSON"),
        (b"\x80\x02", "cut short"),
        (b"\x80\x02}.", "not a dump"),
        (b"[1, 2", "neither a pickle nor JSON"),
        (b'{"a": 1}', "not a dump"),
        (b"\x80\x02cos\nsystem\n.", "step 0x63"),
        (b"\x80\x02\x8c\x02os\x8c\x06system\x93.", "step 0x93"),
        (pickle.dumps({"entries": [set()]}, 4), "step 0x8f"),
    ],
)
def test_what_is_no_dump_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(UnreadablePickle, match=why):
        read_dump(data, 0)


def test_records_that_make_no_sense_are_left_out() -> None:
    document = played().dump(0)
    document["entries"] += [None, 7, {"profiling_name": 3}, {}, [1]]
    assert len(dump_of(document).operations) == 14
