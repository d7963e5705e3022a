# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`torch_dist` checkpoints of Megatron: what makes one complete, and each way to fall short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch_trainer.checkpoint.files import CheckpointState, Format
from mwatch_trainer.checkpoint.listing import list_checkpoints
from support.builders.checkpoint import (
    REAL_SHARD,
    REAL_SHARD_BYTES,
    config,
    index_of,
    only,
    sparse,
    torch_dist,
    torch_file,
    verdict,
)
from support.unprivileged import unprivileged

FOUR = {f"__{rank}_{part}.distcp": 1000 for rank in (0, 1) for part in (0, 1)}


def test_a_checkpoint_with_its_recorded_index_is_complete(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20)
    os.utime(folder / REAL_SHARD, (5e9, 5e9))
    found = only(tmp_path)
    assert (found.name, found.iteration, found.format) == ("iter_0000020", 20, Format.TORCH_DIST)
    assert (found.state, found.reason) == (CheckpointState.COMPLETE, None)
    assert (found.files, found.newest_mtime) == (3, 5e9)
    assert found.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_one_byte_less_than_the_index_says_is_too_short(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20)
    sparse(folder / REAL_SHARD, REAL_SHARD_BYTES - 1)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.INCOMPLETE
    assert reason == "__0_0.distcp is too short: 409991886 of at least 409991887 bytes"


def test_more_bytes_than_the_index_says_are_no_flaw(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20)
    sparse(folder / REAL_SHARD, REAL_SHARD_BYTES + 512)
    assert verdict(tmp_path) == (CheckpointState.COMPLETE, None)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (torch_dist(tmp_path, 20, FOUR) / "__1_0.distcp").unlink()
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "__1_0.distcp is missing")


def test_of_several_flaws_the_first_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    for name in ("__0_1.distcp", "__1_1.distcp"):
        (folder / name).unlink()
    sparse(folder / "__1_0.distcp", 0)
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "__0_1.distcp is missing (and 2 more)")


def test_a_folder_in_the_place_of_a_shard_is_no_shard(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    (folder / "__1_0.distcp").unlink()
    (folder / "__1_0.distcp").mkdir()
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "__1_0.distcp is missing")


def test_a_shard_may_be_a_link_to_a_file(tmp_path: Path) -> None:
    shard = torch_dist(tmp_path / "save", 20, FOUR) / "__1_0.distcp"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    assert verdict(tmp_path / "save") == (CheckpointState.COMPLETE, None)
    (tmp_path / "elsewhere").unlink()
    assert verdict(tmp_path / "save") == (CheckpointState.INCOMPLETE, "__1_0.distcp is missing")


def test_an_empty_folder_is_a_save_that_was_stopped_at_once(tmp_path: Path) -> None:
    """Seen: killed 0.15 s into a save, the folder was there and empty."""
    (tmp_path / "iter_0000020").mkdir()
    found = only(tmp_path)
    assert (found.state, found.format) == (CheckpointState.INCOMPLETE, Format.UNKNOWN)
    assert "empty" in str(found.reason)
    assert found.newest_mtime == (tmp_path / "iter_0000020").stat().st_mtime


def test_shards_without_an_index_are_incomplete(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    (folder / ".metadata").unlink()
    state, reason = verdict(tmp_path)
    assert (state, reason) == (
        CheckpointState.INCOMPLETE,
        ".metadata is missing: the save did not finish",
    )
    (folder / "metadata.json").unlink()
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.INCOMPLETE
    assert "metadata.json is missing" in str(reason)


def test_a_save_stopped_at_the_temporary_index_says_so(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    (folder / "metadata.json").unlink()
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    assert ".metadata.tmp" in str(only(tmp_path).reason)
    (leftover,) = list_checkpoints(str(tmp_path)).leftovers
    assert (leftover.name, leftover.kind) == ("iter_0000020/.metadata.tmp", "temporary")


def test_metadata_json_is_written_last_so_without_it_the_save_did_not_finish(
    tmp_path: Path,
) -> None:
    (torch_dist(tmp_path, 20) / "metadata.json").unlink()
    found = only(tmp_path)
    assert (found.state, found.format) == (CheckpointState.INCOMPLETE, Format.TORCH_DIST)
    assert found.reason == "metadata.json is missing, which Megatron writes last"


@pytest.mark.parametrize(
    "text", ["", '{"sharded_ba', "[]", "{}", '{"sharded_backend": 7}', "[" * 60_000]
)
def test_a_metadata_json_that_does_not_parse_is_incomplete(tmp_path: Path, text: str) -> None:
    (torch_dist(tmp_path, 20) / "metadata.json").write_text(text)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.INCOMPLETE
    assert str(reason).startswith("metadata.json ")
    assert len(str(reason)) < 100


def test_a_huge_metadata_json_is_not_read(tmp_path: Path) -> None:
    sparse(torch_dist(tmp_path, 20) / "metadata.json", 1 << 40)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.UNVERIFIED
    assert "metadata.json cannot be read: it is larger" in str(reason)


def test_a_format_that_is_not_known_is_unverified(tmp_path: Path) -> None:
    config(torch_dist(tmp_path, 20), "zarr")
    assert verdict(tmp_path)[0] is CheckpointState.UNVERIFIED


@pytest.mark.parametrize("data", [b"garbage", b"\x80\x04cos\nsystem\n.", b"\x80\x04N."])
def test_an_index_that_cannot_be_read_is_unverified(tmp_path: Path, data: bytes) -> None:
    (torch_dist(tmp_path, 20) / ".metadata").write_bytes(data)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.UNVERIFIED
    assert str(reason).startswith(".metadata cannot be read: it ")


def test_an_empty_index_is_incomplete(tmp_path: Path) -> None:
    (torch_dist(tmp_path, 20) / ".metadata").write_bytes(b"")
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, ".metadata is empty")


def test_a_huge_index_is_not_read(tmp_path: Path) -> None:
    sparse(torch_dist(tmp_path, 20) / ".metadata", 1 << 40)
    state, reason = verdict(tmp_path)
    assert state is CheckpointState.UNVERIFIED
    assert "larger than" in str(reason)


@pytest.mark.parametrize("name", [".metadata", "metadata.json"])
def test_a_named_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = torch_dist(tmp_path, 20) / name
    path.unlink()
    os.mkfifo(path)
    assert verdict(tmp_path)[0] is CheckpointState.UNVERIFIED


@pytest.mark.parametrize("name", [".metadata", "metadata.json"])
def test_a_file_that_may_not_be_read_is_unverified(tmp_path: Path, name: str) -> None:
    (torch_dist(tmp_path, 20) / name).chmod(0)
    with unprivileged():
        state, reason = verdict(tmp_path)
    assert (state, reason) == (
        CheckpointState.UNVERIFIED, f"{name} cannot be read: Permission denied",
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0o000, 0o600])
def test_a_folder_that_may_not_be_looked_into_is_unverified(tmp_path: Path, mode: int) -> None:
    folder = torch_dist(tmp_path, 20)
    folder.chmod(mode)
    try:
        with unprivileged():
            state, reason = verdict(tmp_path)
    finally:
        folder.chmod(0o700)
    assert state is CheckpointState.UNVERIFIED
    assert "Permission denied" in str(reason)


def test_older_releases_keep_the_common_state_in_its_own_file(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    (folder / ".metadata").write_bytes(index_of(FOUR, common=False))
    assert "common.pt is missing" in str(only(tmp_path).reason)
    torch_file(folder / "common.pt")
    assert verdict(tmp_path) == (CheckpointState.COMPLETE, None)
    sparse(folder / "common.pt", 0)
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "common.pt is empty")


def test_torch_dcp_has_no_metadata_json_and_stays_unverified(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, FOUR)
    (folder / "metadata.json").unlink()
    (folder / ".metadata").write_bytes(index_of(FOUR, common=False))
    found = only(tmp_path)
    assert (found.state, found.format) == (CheckpointState.UNVERIFIED, Format.TORCH_DCP)
    (folder / "__1_0.distcp").unlink()
    assert verdict(tmp_path) == (CheckpointState.INCOMPLETE, "__1_0.distcp is missing")
