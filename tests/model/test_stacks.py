# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many stacks, merged into groups and one tree; the odd one out."""

from __future__ import annotations

from mwatch.model.observation import RankStack, StackKind
from mwatch.model.stacks import MAX_GROUPS, StackGroup, grouped, odd_one_out, spans, tree

OUTER = ("train (megatron/training.py:2100)", "<module> (work/pretrain.py:9)")


def waiting(rank: int) -> RankStack:
    frames = ("all_reduce (distributed/distributed_c10d.py:2810)", "train_step (t.py:3532)", *OUTER)
    place = "training.py:3532 in train_step"
    return RankStack(rank, StackKind.COLLECTIVE, "all_reduce", place, frames)


def fetching(rank: int) -> RankStack:
    frames = ("__next__ (data/dataloader.py:701)", "get_batch (t.py:12)", *OUTER)
    place = "training.py:12 in get_batch"
    return RankStack(rank, StackKind.DATA, "DataLoader.__next__", place, frames)


def test_2048_ranks_are_two_groups_and_the_odd_one_is_named() -> None:
    groups = grouped([fetching(17), *(waiting(rank) for rank in range(2048) if rank != 17)])
    assert [each.text for each in groups] == [
        "2047 ranks (0-16,18-2047): `all_reduce`, called from training.py:3532 in train_step",
        "rank 17: `DataLoader.__next__`, called from training.py:12 in get_batch",
    ]
    odd = odd_one_out(groups)
    assert odd is not None and odd.first == 17


def test_the_tree_shows_shared_calls_once_with_the_number_of_ranks() -> None:
    assert tree(grouped([waiting(0), waiting(1), fetching(2)])) == [
        "3 ranks: <module> (work/pretrain.py:9) → train (megatron/training.py:2100)",
        "  2 ranks (0-1): train_step (t.py:3532) → all_reduce "
        "(distributed/distributed_c10d.py:2810)",
        "  1 rank (2): get_batch (t.py:12) → __next__ (data/dataloader.py:701) → "
        "DataLoader.__next__",
    ]
    assert tree(()) == []


def test_groups_with_the_same_calls_end_the_tree() -> None:
    one = waiting(0)
    assert len(tree(grouped([one, one._replace(rank=1, kind=StackKind.CODE)]))) == 3


def test_nobody_is_odd_if_two_are_away_or_none_waits() -> None:
    assert odd_one_out(grouped([waiting(0), fetching(1), fetching(2)])) is None
    assert odd_one_out(grouped([fetching(0)])) is None
    assert odd_one_out(grouped([waiting(0), waiting(1)])) is None
    two = grouped([fetching(0), waiting(1)])
    assert odd_one_out(two) is not None, "of two ranks, the one that does not wait"


def test_many_groups_keep_the_largest_and_the_smallest() -> None:
    ranks = iter(range(1000))
    stacks = [
        RankStack(next(ranks), StackKind.CODE, "", f"model.py:{line} in f")
        for line in range(20, 0, -1)
        for _ in range(line)
    ]
    groups = grouped(stacks)
    assert len(groups) == MAX_GROUPS
    assert [each.count for each in groups] == [20, 19, 18, 17, 4, 3, 2, 1]


def test_ranks_are_written_as_spans_up_to_a_bound() -> None:
    assert spans([0, 1, 2, 5]) == "0-2,5"
    assert spans(range(0, 40, 2)) == "0,2,4,6,8,10 and 14 more"


def test_a_rank_without_any_frame_is_still_a_group() -> None:
    (group,) = grouped([RankStack(4, StackKind.STOPPED, "stopped by a signal")])
    assert group == StackGroup(1, "4", StackKind.STOPPED, "stopped by a signal", first=4)
    assert group.text == "rank 4: stopped by a signal"
