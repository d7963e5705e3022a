# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's folder of evidence stays within its bounds, and takes nothing else away."""

from __future__ import annotations

from pathlib import Path

from mwatch.remediate.evidence import evidence_folder, prune


def bundle(root: Path, job: str, second: int, size: int = 10) -> Path:
    folder = root / job / f"20260101T0000{second:02d}Z-a1-hang"
    folder.mkdir(parents=True)
    (folder / "pod-0.tgz").write_bytes(b"x" * size)
    return folder


def test_of_each_job_the_newest_are_kept(tmp_path: Path) -> None:
    made = [bundle(tmp_path, "gpt", number) for number in range(5)]
    other = bundle(tmp_path, "bert", 0)
    (tmp_path / "gpt" / "notes").mkdir()
    prune(tmp_path, "gpt", most=3)
    assert [each.exists() for each in made] == [False, False, False, True, True]
    assert other.exists() and (tmp_path / "gpt" / "notes").exists()


def test_all_together_have_their_room_and_the_oldest_give_way(tmp_path: Path) -> None:
    old, new = bundle(tmp_path, "a", 1, 600), bundle(tmp_path, "b", 2, 600)
    prune(tmp_path, "a", max_bytes=1000)
    assert not old.exists() and new.exists()


def test_a_folder_that_is_not_there_yet_is_no_trouble(tmp_path: Path) -> None:
    assert evidence_folder(None, "gpt", "id") is None
    assert evidence_folder(tmp_path / "none", "gpt", "id") == tmp_path / "none" / "gpt" / "id"
