# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The answer of NCCL RAS as JSON."""

from __future__ import annotations

import json

import pytest

from mwatch.model.snapshot.pod import MissingRank
from mwatch.parse.ras import read_answer, read_json
from support.fakes.ras_answers import Comm, Lost, as_json

TWO = Comm(0xAE94423CFBB2EF4A, {0: 7, 1: 6})


def test_the_builder_writes_what_json_readers_take() -> None:
    body = json.loads(as_json(TWO, Comm(0x2, {0: 1}, [Lost(1)])))
    assert body["communicators"][1]["missing_ranks"][0]["status"]["unresponsive"] is True


def test_counts_and_processes_of_every_rank_are_read() -> None:
    answer = read_json(as_json(TWO))
    assert (answer.version, answer.communicators, answer.gpus) == ("2.30.7+cuda13.0", 1, 2)
    assert answer.counts_all
    (found,) = answer.reported
    assert found.size == 2
    assert found.begun == {0: 7, 1: 6}
    assert found.processes == {0: "10.0.0.1 4000 0", 1: "10.0.0.1 4001 1"}
    assert found.is_settled
    assert found.hash.startswith("0xae94423cfbb2ef4a ")


def test_all_five_kinds_of_collectives_are_added_up() -> None:
    text = as_json(TWO).replace('"AllGather": 0', '"AllGather": 100', 1)
    assert read_json(text).reported[0].begun == {0: 107, 1: 6}


def test_the_comma_that_2_28_leaves_out_is_put_back() -> None:
    text = as_json(Comm(0x1, {0: 3}, [Lost(1), Lost(2, is_dead=True)]), lost_comma=True)
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(text)
    (found,) = read_json(text).reported
    assert found.missing == (
        MissingRank(1, "10.0.0.1 4001 1", False),
        MissingRank(2, "10.0.0.1 4002 2", True),
    )
    assert found.missing_count == 2


def test_a_rank_that_answers_but_has_left_is_not_missing_and_nothing_is_settled() -> None:
    (found,) = read_json(as_json(Comm(0x1, {0: 3}, [Lost(1, is_unresponsive=False)]))).reported
    assert found.missing == ()
    assert not found.is_settled


def test_a_communicator_that_is_entered_or_left_is_not_settled() -> None:
    begins = Comm(0x1, {0: 0, 1: 0}, init_state=7)
    ends = Comm(0x2, {0: 9, 1: 9}, finalizing=frozenset({1}))
    assert [each.is_settled for each in read_json(as_json(begins, ends)).reported] == [False, False]


def test_one_that_is_all_zeros_or_has_no_status_is_left_out_or_not_settled() -> None:
    null = as_json(TWO).replace('"status": {', '"status": null, "was": {')
    assert not read_json(null).reported[0].is_settled
    assert read_json(as_json(Comm(0x0, {}))).reported == ()


def test_a_process_that_ras_does_not_know_is_not_named() -> None:
    (found,) = read_json(as_json(Comm(0x1, {0: 3}, [Lost(1, is_dead=True, pid=-1)]))).reported
    assert found.missing == (MissingRank(1, None, True),)


def test_an_answer_without_communicators_is_one() -> None:
    answer = read_json(as_json())
    assert (answer.communicators, answer.reported, answer.gpus) == (0, (), None)


@pytest.mark.parametrize("length", [0, 10, 150, 400, 900])
def test_one_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_answer(as_json(TWO)[:length])


@pytest.mark.parametrize(
    "text",
    [
        '{"communicators": [' + "[" * 100_000,
        '{"communicators": [1, 2]}',
        '{"communicators": {}}',
        '{"communicators": [' + "{}," * 70_000 + "]",
        '{"communicators": [{"size": ' + "9" * 5000 + "}]}",
        "{\x00\xff}",
    ],
)
def test_garbage_is_refused_and_never_more(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_answer(text)


def test_values_of_other_kinds_are_not_read_as_numbers() -> None:
    text = '{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": true}, 3, {"rank": 1,'
    text += ' "collective_counts": {"AllReduce": "x", "Reduce": null}}], "missing_ranks": 7}]}'
    (found,) = read_json(text).reported
    assert found.begun == {1: 0}
    assert not found.is_settled
