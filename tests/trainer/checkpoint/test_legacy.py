# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with one file per rank: Megatron's legacy format, and Composer's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch_trainer.checkpoint.files import CheckpointState, Format
from mwatch_trainer.checkpoint.listing import list_checkpoints, verify
from support.builders.checkpoint import (
    OLD_TORCH,
    index_of,
    legacy,
    only,
    sparse,
    torch_file,
    verdict,
)
from support.unprivileged import unprivileged

GRID = tuple(f"mp_rank_{tensor:02d}_{stage:03d}" for tensor in (0, 1) for stage in (0, 1, 2))


@pytest.mark.parametrize(
    "ranks",
    [
        ("mp_rank_00",),
        ("mp_rank_00", "mp_rank_01"),
        GRID,
        tuple(f"{rank}_{expert:03d}" for rank in GRID for expert in (0, 1)),
    ],
    ids=["one rank", "tensor", "tensor and pipeline", "experts too"],
)
def test_a_full_grid_is_complete(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    legacy(tmp_path, 500, *ranks, files=("distrib_optim.pt",))
    found = only(tmp_path)
    assert (found.format, found.state, found.reason) == (
        Format.LEGACY,
        CheckpointState.COMPLETE,
        None,
    )
    assert (found.iteration, found.files) == (500, 2 * len(ranks))


@pytest.mark.parametrize("missing", [rank for rank in GRID if rank != GRID[-1]])
def test_a_gap_in_the_grid_is_named(tmp_path: Path, missing: str) -> None:
    legacy(tmp_path, 500, *(rank for rank in GRID if rank != missing))
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, f"{missing} is missing")


def test_the_last_corner_of_the_grid_is_missed_too(tmp_path: Path) -> None:
    legacy(tmp_path, 500, *GRID[:-1])
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "mp_rank_01_002 is missing")


def test_a_large_number_in_a_name_costs_nothing(tmp_path: Path) -> None:
    legacy(tmp_path, 500, "mp_rank_00_000_000", "mp_rank_99999_99999_99999")
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "mp_rank_00_000_001 is missing")


def test_a_file_that_one_rank_lacks_is_named(tmp_path: Path) -> None:
    folder = legacy(tmp_path, 500, *GRID, files=("distrib_optim.pt",))
    (folder / GRID[3] / "distrib_optim.pt").unlink()
    reason = f"{GRID[3]}/distrib_optim.pt is missing, which other ranks have"
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, reason)


def test_an_empty_rank_folder_lacks_the_files_of_the_others(tmp_path: Path) -> None:
    folder = legacy(tmp_path, 500, *GRID)
    (folder / GRID[4] / "model_optim_rng.pt").unlink()
    assert f"{GRID[4]}/model_optim_rng.pt is missing" in str(only(tmp_path).reason)


def test_folders_without_any_file_are_incomplete(tmp_path: Path) -> None:
    (tmp_path / "iter_0000500" / "mp_rank_00").mkdir(parents=True)
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "mp_rank_00 is empty")


def test_an_optimizer_without_a_model_is_incomplete(tmp_path: Path) -> None:
    torch_file(tmp_path / "iter_0000500" / "mp_rank_00" / "distrib_optim.pt")
    assert "no rank has model_optim_rng.pt" in str(only(tmp_path).reason)


def test_model_and_optimizer_in_folders_of_their_own_are_complete(tmp_path: Path) -> None:
    """The distributed optimizer of v3.0: one more number for the data rank."""
    folder = tmp_path / "iter_0000500"
    for rank in ("mp_rank_00", "mp_rank_01"):
        torch_file(folder / rank / "model_rng.pt")
        for data_rank in ("000", "001"):
            torch_file(folder / f"{rank}_{data_rank}" / "optim.pt")
    assert verdict(tmp_path) == (CheckpointState.COMPLETE, None)
    for data_rank in ("000", "001"):
        (folder / f"mp_rank_01_{data_rank}" / "optim.pt").unlink()
        (folder / f"mp_rank_01_{data_rank}").rmdir()
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "mp_rank_01_000 is missing")


def test_a_file_of_no_length_is_named(tmp_path: Path) -> None:
    sparse(legacy(tmp_path, 500, *GRID) / GRID[1] / "model_optim_rng.pt", 0)
    assert verdict(tmp_path) == (
        CheckpointState.INCOMPLETE,
        f"{GRID[1]}/model_optim_rng.pt is empty",
    )


def test_a_zip_without_its_end_is_cut_short(tmp_path: Path) -> None:
    path = legacy(tmp_path, 500) / "mp_rank_00" / "model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:-30])
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.INCOMPLETE
    assert "mp_rank_00/model_optim_rng.pt is cut short" in str(reason)


def test_a_file_of_zeros_is_no_file_of_torch(tmp_path: Path) -> None:
    sparse(legacy(tmp_path, 500) / "mp_rank_00" / "model_optim_rng.pt", 1 << 33)
    assert "is not a file of torch.save" in str(only(tmp_path).reason)


def test_a_file_of_torch_before_1_6_is_unverified(tmp_path: Path) -> None:
    (legacy(tmp_path, 500) / "mp_rank_00" / "model_optim_rng.pt").write_bytes(OLD_TORCH)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.UNVERIFIED
    assert "torch before 1.6" in str(reason)


def test_a_rank_that_may_not_be_read_is_unverified(tmp_path: Path) -> None:
    path = legacy(tmp_path, 500, *GRID) / GRID[2]
    (path / "model_optim_rng.pt").chmod(0)
    with unprivileged():
        assert verdict(tmp_path)[0] is CheckpointState.UNVERIFIED
    path.chmod(0)
    try:
        with unprivileged():
            state, reason = verdict(tmp_path)
    finally:
        path.chmod(0o700)
    assert (state, reason) == (
        CheckpointState.UNVERIFIED,
        f"{GRID[2]} cannot be listed: Permission denied",
    )


def test_a_rank_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = legacy(tmp_path / "save", 500, "mp_rank_00", "mp_rank_01")
    (folder / "mp_rank_01").rename(tmp_path / "elsewhere")
    (folder / "mp_rank_01").symlink_to(tmp_path / "elsewhere")
    state, reason = verdict(tmp_path / "save")
    assert state is CheckpointState.UNVERIFIED
    assert reason == "mp_rank_01 is a link to a folder, which is not followed"


def test_a_composer_file_is_complete_when_its_zip_has_an_end(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "ep0-ba100-rank0.pt")
    found = only(tmp_path)
    assert (found.name, found.iteration, found.files) == ("ep0-ba100-rank0.pt", 100, 1)
    assert (found.format, found.state) == (Format.COMPOSER, CheckpointState.COMPLETE)
    path.write_bytes(path.read_bytes()[:40])
    assert "ep0-ba100-rank0.pt is cut short" in str(only(tmp_path).reason)


def test_composer_files_of_several_ranks_are_one_checkpoint(tmp_path: Path) -> None:
    for rank in range(12):
        torch_file(tmp_path / f"ep0-ba100-rank{rank}.pt")
    found = only(tmp_path)
    assert (found.name, found.state) == ("ep0-ba100-rank{rank}.pt", CheckpointState.COMPLETE)
    assert found.files == 12
    (tmp_path / "ep0-ba100-rank5.pt").unlink()
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "the file of rank 5 is missing")


def test_a_compressed_composer_file_is_unverified(tmp_path: Path) -> None:
    (tmp_path / "ep0-ba100-rank0.tar.gz").write_bytes(b"\x1f\x8b...")
    assert verdict(tmp_path)[0] is CheckpointState.UNVERIFIED


def test_a_sharded_composer_checkpoint_is_complete_with_all_its_shards(tmp_path: Path) -> None:
    folder = tmp_path / "ep0-ba100"
    shards = {"__0_0.distcp": 500, "__1_0.distcp": 700}
    for name, length in shards.items():
        sparse(folder / name, length)
    state, reason = verdict(tmp_path)
    assert (state, reason) == (
        CheckpointState.INCOMPLETE,
        ".metadata is missing: the save did not finish",
    )
    (folder / ".metadata").write_bytes(index_of(shards, common=False))
    found = only(tmp_path)
    assert (found.format, found.state) == (Format.COMPOSER_SHARDED, CheckpointState.COMPLETE)
    sparse(folder / "__1_0.distcp", 699)
    assert "__1_0.distcp is too short" in str(only(tmp_path).reason)


def heavy(save: Path, iteration: int, *ranks: str, bytes_each: int = 1000) -> None:
    """Only the sizes of what lies beside the model file differ."""
    folder = legacy(save, iteration, *ranks)
    for rank in ranks:
        (folder / rank / "optim.bin").write_bytes(b"x" * bytes_each)


def states(save: Path) -> dict[int | None, tuple[CheckpointState, str | None]]:
    found = list_checkpoints(str(save)).checkpoints
    return {each.iteration: (each.state, each.reason) for each in found}


BOTH = ("mp_rank_00", "mp_rank_01")


def test_a_rank_that_the_checkpoints_beside_it_have_is_missing(tmp_path: Path) -> None:
    for iteration in (100, 200, 400):
        heavy(tmp_path, iteration, *BOTH)
    heavy(tmp_path, 300, "mp_rank_00")
    heavy(tmp_path, 500, "mp_rank_00")
    why = (CheckpointState.INCOMPLETE, "mp_rank_01 is missing, which iter_0000400 has")
    assert states(tmp_path)[300] == why
    assert states(tmp_path)[500] == why
    assert states(tmp_path)[400] == (CheckpointState.COMPLETE, None)
    alone = verify(str(tmp_path), "iter_0000500")
    assert alone is not None
    assert (alone.state, alone.reason) == why


def test_a_row_of_the_grid_that_is_gone_is_named(tmp_path: Path) -> None:
    heavy(tmp_path, 100, *GRID)
    heavy(tmp_path, 200, *GRID[:3])
    why = "mp_rank_01_000 is missing, which iter_0000100 has"
    assert states(tmp_path)[200] == (CheckpointState.INCOMPLETE, why)


def test_a_job_that_was_continued_with_fewer_ranks_holds_as_many_bytes(tmp_path: Path) -> None:
    heavy(tmp_path, 100, *BOTH, bytes_each=100_000)
    heavy(tmp_path, 200, "mp_rank_00", bytes_each=200_000)
    assert {state for state, _ in states(tmp_path).values()} == {CheckpointState.COMPLETE}


def test_a_larger_grid_later_says_nothing_of_one_with_other_bytes(tmp_path: Path) -> None:
    heavy(tmp_path, 100, "mp_rank_00", bytes_each=200_000)
    heavy(tmp_path, 200, *BOTH, bytes_each=100_000)
    legacy(tmp_path, 300, "mp_rank_00_000", "mp_rank_00_001")  # pipeline, not tensor
    assert {state for state, _ in states(tmp_path).values()} == {CheckpointState.COMPLETE}
