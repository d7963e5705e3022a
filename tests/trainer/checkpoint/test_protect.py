# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The protected last good checkpoints: what is linked, and what is ever deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

from mwatch_trainer.checkpoint.save_dir import protect
from support.builders.attempt import contents, saved
from support.builders.checkpoint import torch_file


def kept(save: Path) -> set[str]:
    return {path.name for path in (save / ".mwatch" / "keep").iterdir()}


def test_a_protected_checkpoint_survives_the_trainers_cleaning(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    before = contents(tmp_path / "iter_0000010")
    assert protect(str(tmp_path), "iter_0000010") is None
    shutil.rmtree(tmp_path / "iter_0000010")
    after = contents(tmp_path / ".mwatch" / "keep" / "iter_0000010")
    del after[".kept-by-mwatch"]
    after["tokenizer"] = None  # an empty folder has nothing to link
    assert after == before


def test_at_most_two_are_kept_and_the_checkpoints_stay(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    before = {name: data for name, data in contents(tmp_path).items() if name.startswith("iter")}
    for name in ("iter_0000010", "iter_0000020", "iter_0000020", "iter_0000030"):
        assert protect(str(tmp_path), name) is None
    assert kept(tmp_path) == {"iter_0000020", "iter_0000030"}
    after = {name: data for name, data in contents(tmp_path).items() if name.startswith("iter")}
    assert after == before


def test_only_folders_of_ours_are_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    foreign = tmp_path / ".mwatch" / "keep" / "iter_0000001"
    foreign.mkdir(parents=True)
    (foreign / "precious").write_text("of a person")
    for name in ("iter_0000010", "iter_0000020", "iter_0000030"):
        protect(str(tmp_path), name)
    assert (foreign / "precious").read_text() == "of a person"


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    saved(tmp_path / "ck", 10, 20, 30)
    (tmp_path / "ck" / "iter_0000010" / "away").symlink_to(outside)
    (tmp_path / "ck" / "iter_0000010" / "file").symlink_to(outside / "file")
    for name in ("iter_0000010", "iter_0000020", "iter_0000030"):
        assert protect(str(tmp_path / "ck"), name) is None
    assert (outside / "file").read_text() == "x" and (outside / "file").stat().st_nlink == 1
    (tmp_path / "ck" / "iter_0000040").symlink_to(outside)
    assert protect(str(tmp_path / "ck"), "iter_0000040") is not None


def test_the_files_of_all_ranks_of_composer_are_kept(tmp_path: Path) -> None:
    for rank in (0, 1):
        torch_file(tmp_path / f"ep0-ba100-rank{rank}.pt")
    torch_file(tmp_path / "ep0-ba1000-rank0.pt")
    assert protect(str(tmp_path), "ep0-ba100-rank{rank}.pt") is None
    folder = tmp_path / ".mwatch" / "keep" / "ep0-ba100"
    names = {path.name for path in folder.iterdir()}
    assert names == {".kept-by-mwatch", "ep0-ba100-rank0.pt", "ep0-ba100-rank1.pt"}


def test_what_cannot_be_kept_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    assert "is not a checkpoint" in (protect(str(tmp_path), "../etc") or "")
    assert protect(str(tmp_path), "iter_0000010") is not None
    assert kept(tmp_path) == set()
    (tmp_path / "x" / ".mwatch").mkdir(parents=True)
    (tmp_path / "x" / ".mwatch" / "keep").write_text("in the way")
    assert protect(str(saved(tmp_path / "x", 10)), "iter_0000010") is not None
