# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A save folder as a whole: which checkpoints it lists, its pointers, leftovers and limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mwatch_trainer.checkpoint import listing
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import (
    FolderListing,
    has_checkpoints,
    list_checkpoints,
    looks_like_checkpoint,
    read_tracker,
    verify,
)
from support.builders.checkpoint import legacy, sparse, torch_dist, torch_file, track
from support.unprivileged import unprivileged

SHARDS = {"__0_0.distcp": 10}


def listed(save: Path, **limits: int) -> FolderListing:
    return list_checkpoints(str(save), **limits)


def names(save: Path) -> list[str]:
    return [each.name for each in listed(save).checkpoints]


def test_the_newest_iteration_comes_first_and_release_last(tmp_path: Path) -> None:
    for iteration in (100, 20, 9_999_999, 12_345_678):
        torch_dist(tmp_path, iteration, SHARDS)
    legacy(tmp_path, 1).rename(tmp_path / "release")
    assert names(tmp_path) == [
        "iter_12345678", "iter_9999999", "iter_0000100", "iter_0000020", "release",
    ]  # fmt: skip


def test_what_is_no_checkpoint_is_not_listed(tmp_path: Path) -> None:
    for name in ("iter_", "iter_x", "xiter_0000020", "iter_0000020_0_local.pt", "ep0", "latest"):
        (tmp_path / name).mkdir()
    (tmp_path / "progress.txt").write_text("x")
    (tmp_path / "iter_\u0661\u0662").mkdir()
    assert names(tmp_path) == []


def test_a_folder_called_release_with_nothing_of_megatron_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "notes.md").write_text("x")
    assert names(tmp_path) == []
    track(tmp_path, "release")
    assert names(tmp_path) == ["release"]


def test_the_tracker_marks_its_checkpoint_and_no_other(tmp_path: Path) -> None:
    for iteration in (20, 40):
        torch_dist(tmp_path, iteration, SHARDS)
    track(tmp_path, " 20\n")
    assert [each.tracked for each in listed(tmp_path).checkpoints] == [False, True]
    (pointer,) = listed(tmp_path).pointers
    assert (pointer.value, pointer.checkpoint, pointer.problem) == ("20", "iter_0000020", None)


def test_a_tracker_may_say_release(tmp_path: Path) -> None:
    legacy(tmp_path, 1).rename(tmp_path / "release")
    track(tmp_path, "release")
    (found,) = listed(tmp_path).checkpoints
    assert (found.tracked, found.iteration, found.state) == (True, None, CheckpointState.COMPLETE)


@pytest.mark.parametrize(
    "text", ["", "\n", "-1", "1_0", "0x10", "20 40", "2" * 200, "None", "\x1b[2J", "\u0662"]
)
def test_garbage_in_the_tracker_is_reported_and_not_fatal(tmp_path: Path, text: str) -> None:
    torch_dist(tmp_path, 20, SHARDS)
    track(tmp_path, text)
    tracker = read_tracker(str(tmp_path))
    assert tracker is not None
    assert (tracker.value, tracker.checkpoint) == (None, None)
    assert tracker.problem
    assert tracker.problem.isprintable()
    assert names(tmp_path) == ["iter_0000020"]


def test_a_tracker_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    assert read_tracker(str(tmp_path)) is None
    track(tmp_path, 20)
    path = tmp_path / "latest_checkpointed_iteration.txt"
    path.chmod(0)
    with unprivileged():
        tracker = read_tracker(str(tmp_path))
    assert tracker is not None
    assert tracker.problem == "cannot be read: Permission denied"
    sparse(path, 1 << 40)
    path.chmod(0o600)
    tracker = read_tracker(str(tmp_path))
    assert tracker is not None
    assert "larger than" in str(tracker.problem)


def test_a_tracker_that_names_a_missing_iteration_has_no_checkpoint(tmp_path: Path) -> None:
    track(tmp_path, 60)
    (pointer,) = listed(tmp_path).pointers
    assert (pointer.value, pointer.checkpoint) == ("60", None)


def test_the_link_of_composer_marks_its_checkpoint(tmp_path: Path) -> None:
    for batch in (100, 200):
        torch_file(tmp_path / f"ep0-ba{batch}-rank0.pt")
    (tmp_path / "latest-rank0.pt").symlink_to("ep0-ba200-rank0.pt")
    assert [each.tracked for each in listed(tmp_path).checkpoints] == [True, False]
    (tmp_path / "latest-rank0.pt").unlink()
    (tmp_path / "latest-rank0.pt").symlink_to(tmp_path / "ep0-ba100-rank0.pt")
    assert [each.tracked for each in listed(tmp_path).checkpoints] == [False, True]


def test_the_link_of_composer_may_name_a_folder_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "ep0-ba100").mkdir()
    (tmp_path / "latest-sharded-rank0").symlink_to("ep0-ba100")
    (tmp_path / "latest-rank0.pt").symlink_to("ep0-ba300-rank0.pt")
    (tmp_path / "latest-rank1.pt").write_text("no link")
    found = {each.file: each for each in listed(tmp_path).pointers}
    assert found["latest-sharded-rank0"].checkpoint == "ep0-ba100"
    assert found["latest-rank0.pt"].checkpoint is None
    assert found["latest-rank1.pt"].problem == "is not a link"


def test_temporary_files_and_the_second_folder_are_leftovers(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, SHARDS)
    for name in (".metadata.tmp", "__3.metadata.tmp", ".metadata.bck", "plan.tmp.3"):
        (folder / name).write_bytes(b"xx")
    (tmp_path / "iter_0000010_0_local.dirty.pt").write_bytes(b"x")
    torch_dist(tmp_path / "non_persistent", 30, SHARDS)
    found = {each.name: (each.kind, each.files) for each in listed(tmp_path).leftovers}
    assert found.pop("non_persistent") == ("non_persistent", 3)
    assert found.pop("iter_0000010_0_local.dirty.pt") == ("temporary", 1)
    assert set(found) == {
        f"iter_0000020/{name}"
        for name in (".metadata.tmp", "__3.metadata.tmp", ".metadata.bck", "plan.tmp.3")
    }
    assert names(tmp_path) == ["iter_0000020"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, SHARDS)
    (folder / "tokenizer" / "up").symlink_to(tmp_path)
    (folder / "self").symlink_to("self")
    (tmp_path / "iter_0000030").symlink_to("iter_0000030")
    (tmp_path / "iter_0000040").symlink_to("nowhere")
    (tmp_path / "iter_0000050").symlink_to("iter_0000020")
    states = {each.name: (each.state, each.files) for each in listed(tmp_path).checkpoints}
    assert states["iter_0000020"] == states["iter_0000050"] == (CheckpointState.COMPLETE, 3)
    assert states["iter_0000030"][0] is CheckpointState.UNVERIFIED
    assert states["iter_0000040"][0] is CheckpointState.INCOMPLETE


def test_a_file_with_the_name_of_a_checkpoint_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "iter_0000020").write_text("x")
    (found,) = listed(tmp_path).checkpoints
    assert (found.state, found.reason) == (CheckpointState.INCOMPLETE, "is not a folder")


def test_one_checkpoint_can_be_verified_alone(tmp_path: Path) -> None:
    torch_dist(tmp_path, 20, SHARDS)
    for rank in (0, 1):
        torch_file(tmp_path / f"ep0-ba100-rank{rank}.pt")
    for each in listed(tmp_path).checkpoints:
        assert verify(str(tmp_path), each.name) == each
    assert verify(str(tmp_path), "iter_0000040") is None


def test_beyond_the_limit_the_older_ones_are_counted(tmp_path: Path) -> None:
    for iteration in range(1, 6):
        (tmp_path / f"iter_{iteration:07d}").mkdir()
    found = listed(tmp_path, max_checkpoints=2)
    assert [each.iteration for each in found.checkpoints] == [5, 4]
    assert found.left_out == 3


def test_a_folder_of_very_many_entries_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"file{number}").write_text("x")
    assert listed(tmp_path).is_cut


def test_more_files_than_the_limit_change_the_count_and_not_the_verdict(tmp_path: Path) -> None:
    torch_dist(tmp_path, 20, {f"__{rank}_0.distcp": 100 for rank in range(30)})
    (found,) = listed(tmp_path, max_files=5).checkpoints
    assert (found.state, found.is_cut) == (CheckpointState.COMPLETE, True)
    assert found.files <= 5


def test_a_legacy_checkpoint_of_more_files_than_the_limit_is_unverified(tmp_path: Path) -> None:
    legacy(tmp_path, 20, *(f"mp_rank_{rank:02d}" for rank in range(30)))
    (found,) = listed(tmp_path, max_files=40).checkpoints
    assert found.state is CheckpointState.UNVERIFIED


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listed(tmp_path / "nowhere")


def test_a_checkpoint_and_a_folder_of_checkpoints_are_distinguished(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, SHARDS)
    assert (looks_like_checkpoint(str(folder)), looks_like_checkpoint(str(tmp_path))) == (
        True,
        False,
    )
    assert (has_checkpoints(str(folder)), has_checkpoints(str(tmp_path))) == (False, True)


def test_nothing_is_changed(tmp_path: Path) -> None:
    torch_dist(tmp_path, 20, SHARDS)
    legacy(tmp_path, 40)
    track(tmp_path, 40)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    modes = {path: path.stat().st_mode for path in (*before, tmp_path)}
    for path in modes:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        with unprivileged():
            found = listed(tmp_path)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert [each.state for each in found.checkpoints] == [
        CheckpointState.COMPLETE,
        CheckpointState.COMPLETE,
    ]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = "import mwatch_trainer.checkpoint.listing"
    root = str(Path(listing.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
