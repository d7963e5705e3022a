# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The two writers that replace a file in one step: the sidecar's and the wrapper's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.runtime.files import replace_file, replacing
from mwatch_trainer import contract


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_bytes(b"old")
    with replacing(path, mode=0o640) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert os.listdir(tmp_path) == ["report"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["report"])
    (tmp_path / "folder").mkdir()
    for write in (replace_file, lambda target, data: contract.replace_file(str(target), data)):
        with pytest.raises(OSError):
            write(tmp_path / "folder", b"new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "report"]


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "report"
    victim.write_bytes(b"keep")
    (tmp_path / f".report.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert victim.read_bytes() == b"keep"


def test_the_wrappers_writer_follows_no_link_and_lets_nobody_else_write(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "decision.json"
    victim.write_bytes(b"keep")
    half = tmp_path / f"decision.json.{os.getpid()}.tmp"
    half.symlink_to(victim)
    with pytest.raises(OSError):
        contract.replace_file(str(path), b"new")
    assert victim.read_bytes() == b"keep" and not half.is_symlink()
    before = os.umask(0)
    try:
        contract.replace_file(str(path), b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_wrappers_writer_sets_a_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        contract.replace_file(str(tmp_path / "dump"), b"x", mode=0o644, is_synced=True)
    finally:
        os.umask(before)
    assert (tmp_path / "dump").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["dump"]
