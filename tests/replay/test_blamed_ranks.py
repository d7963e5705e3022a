# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What hits several ranks, or what they share, is blamed on none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.replay.replay import ReplayRequest, replay

NOW = 1_800_000_000.0
TIMED_OUT = (
    "[rank{rank}]:[E711 19:02:48.410022931 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=3104, OpType=ALLREDUCE, NumelIn=20, "
    "NumelOut=20, Timeout(ms)=600000) ran for 600022 milliseconds before timing out."
)
WATCHDOG = (
    "[rank{rank}]:[E711 19:02:48.410398120 ProcessGroupNCCL.cpp:2268] [PG ID 1 PG GUID 1 "
    "Rank {rank}]  failure detected by watchdog at work sequence id: 3104 PG status: last enqueued "
    "work: {work}, last completed work: 3103"
)
LEFT = "Global rank {rank} (PID 190{rank}) exited with code {code}"
CRASHED = (
    "[rank{rank}]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
)


def blamed(folder: Path, *lines: str) -> int | None:
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    culprit = replay(ReplayRequest([str(folder / "train.log")]), NOW).verdict.culprit
    return None if culprit is None else culprit.rank


@pytest.mark.parametrize(("work", "rank"), [(3103, 0), (3111, None)])
def test_who_has_enqueued_what_the_others_wait_for_is_not_behind(
    tmp_path: Path, work: int, rank: int | None
) -> None:
    enqueued = {6: 3112, 3: 3112, 0: work}
    lines = [
        line.format(rank=each, work=last)
        for each, last in enqueued.items()
        for line in (TIMED_OUT, WATCHDOG)
    ]
    assert blamed(tmp_path, *lines) == rank


@pytest.mark.parametrize(("code", "rank"), [(1, None), (-15, 2)])
def test_the_same_exit_code_of_several_ranks_blames_none(
    tmp_path: Path, code: int, rank: int | None
) -> None:
    lines = (LEFT.format(rank=2, code=1), LEFT.format(rank=0, code=code))
    assert blamed(tmp_path, *lines) == rank


@pytest.mark.parametrize(("ranks", "blame"), [((2,), 2), ((2, 3), None)])
def test_a_fault_that_several_ranks_report_is_that_of_none(
    tmp_path: Path, ranks: tuple[int, ...], blame: int | None
) -> None:
    assert blamed(tmp_path, *(CRASHED.format(rank=rank) for rank in ranks)) == blame


def test_shared_memory_that_ran_out_is_nobodys_fault(tmp_path: Path) -> None:
    assert blamed(tmp_path, "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.") is None
    killed = "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -9."
    assert blamed(tmp_path, killed) == 2
