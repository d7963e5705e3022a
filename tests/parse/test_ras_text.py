# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The answer of NCCL RAS as text, which only lists differences."""

from __future__ import annotations

import pytest

from mwatch.model.snapshot.pod import MissingRank
from mwatch.parse.ras import read_answer, read_text
from support.fakes.ras_answers import apart, as_text, place, row


def test_a_healthy_job_shows_its_size_and_no_counts() -> None:
    answer = read_text(as_text([row(comms=8, size=4)]))
    assert answer.version == "2.27.7+cuda12.4"
    assert (answer.communicators, answer.gpus, answer.nodes) == (8, 32, 4)
    assert answer.reported == ()
    assert not answer.counts_all


def test_ranks_that_are_not_named_are_all_the_others() -> None:
    text = as_text([row(errors="MISMATCH")], warnings=apart(6650, {5: 6649, 7: 0}))
    (found,) = read_answer(text).reported
    assert (found.hash, found.size) == ("27a079b828ff1a75", 32)
    assert found.begun == {rank: {5: 6649, 7: 0}.get(rank, 6650) for rank in range(32)}
    assert found.is_settled


def test_a_group_of_outliers_is_named_below_its_count() -> None:
    warnings = (
        "#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different collective operation counts\n"
        "  26 ranks have launched up to operation 6650\n"
        "  6 ranks have launched up to operation 6649\n"
    ) + "".join(f"  Rank {rank} -- {place(rank)}\n" for rank in (0, 2, 3, 4, 5, 7))
    (found,) = read_text(as_text([row(errors="MISMATCH")], warnings=warnings)).reported
    assert [rank for rank, count in found.begun.items() if count == 6649] == [0, 2, 3, 4, 5, 7]


def test_differences_of_several_kinds_are_added_up() -> None:
    warnings = apart(10, {3: 9}) + apart(7, {3: 5, 4: 6}, of="AllGather").split("\n", 1)[1]
    (found,) = read_text(as_text([row(errors="MISMATCH")], warnings=warnings)).reported
    assert (found.begun[0], found.begun[3], found.begun[4]) == (17, 14, 16)


def test_two_groups_that_are_not_named_are_distinguished_from_no_rank() -> None:
    warnings = (
        "#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  16 ranks have launched up to operation 6650\n"
        "  16 ranks have launched up to operation 6649\n\n"
    )
    (found,) = read_text(as_text([row(errors="MISMATCH")], warnings=warnings)).reported
    assert found.begun == {-1: 6650, -2: 6649}


def test_ranks_that_enter_or_leave_are_no_difference_of_counts() -> None:
    warnings = (
        "#0-0 (9e17999afaa87dbb) MISMATCH\n"
        "  Communicator ranks have different status\n"
        "  26 ranks have status UNKNOWN\n"
        "  4 ranks have status RUNNING\n"
        f"  Rank 0 -- {place(0)}\n"
        f"  Rank 4 has status FINALIZE -- {place(4)}\n"
    )
    (found,) = read_text(as_text([row("FINALIZE", "MISMATCH")], warnings=warnings)).reported
    assert found.begun == {}
    assert not found.is_settled


@pytest.mark.parametrize("is_old", [False, True])
def test_a_missing_rank_is_named_and_dead_only_where_that_is_stated(is_old: bool) -> None:
    process = "  Process 4021 on node 10.0.0.3 managing GPU 5\n"
    dead = (
        f"DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n{process}\n"
    )
    about = "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n"
    about += "  The missing rank: 21\n\n" if is_old else f"  Rank 21 -- {place(21)}\n\n"
    (found,) = read_text(as_text([row(errors="INCOMPLETE")], dead + about)).reported
    expected = MissingRank(21, None, False) if is_old else MissingRank(21, "10.0.0.3 4021", True)
    assert found.missing == (expected,)
    alive = f"INCOMPLETE\n  Missing communicator data from 1 job process\n{process}\n"
    (found,) = read_text(as_text([row(errors="INCOMPLETE")], alive + about)).reported
    assert [lost.is_dead for lost in found.missing] == [False]
    assert found.missing_count == 1


def test_ranks_that_are_too_many_to_be_named_are_counted() -> None:
    about = "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 16 ranks\n\n"
    (found,) = read_text(as_text([row(errors="INCOMPLETE,MISMATCH")], about)).reported
    assert (found.missing, found.missing_count) == ((), 16)


def test_nodes_of_different_sizes_have_another_summary() -> None:
    text = as_text([row()])
    summary = (
        "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
        f"{3:7d}  {20:9d}  {20:11d}\n"
    )
    start, end = text.index("  Nodes"), text.index("\nCommunicators")
    answer = read_text(text[:start] + summary + text[end:])
    assert (answer.nodes, answer.gpus) == (3, 20)


@pytest.mark.parametrize("cut", [0, 40, 300, 500])
def test_one_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="cut short"):
        read_answer(as_text([row()])[:cut])


def test_a_hostile_number_of_ranks_is_bounded() -> None:
    text = as_text([row(errors="MISMATCH", size=99_999_999)], warnings=apart(5, {1: 4}))
    (found,) = read_text(text).reported
    assert len(found.begun) == 65_536


def test_an_error_of_ranks_is_passed_over() -> None:
    errors = (
        "#0-0 (cf264af53edbe986) ERROR\n  Asynchronous error on 1 rank\n"
        f"  Rank 3 reported System error -- {place(3)}\n\n"
    )
    (found,) = read_text(as_text([row(errors="ERROR")], errors)).reported
    assert (found.begun, found.missing) == ({}, ())


def test_a_rank_of_which_nothing_is_known_has_no_count() -> None:
    """All that answered are named; rank 2 is missing."""
    warnings = (
        "#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        f"  Rank 0 has launched up to operation 5 -- {place(0)}\n"
        f"  Rank 1 has launched up to operation 4 -- [process information not found]\n\n"
    )
    rows = [row(errors="INCOMPLETE,MISMATCH", size=3)]
    (found,) = read_text(as_text(rows, warnings=warnings)).reported
    assert found.begun == {0: 5, 1: 4}
