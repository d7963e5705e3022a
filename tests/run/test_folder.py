# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`runs/<name>/`: what it is called, and that nothing of an earlier run is written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.errors import InputError
from mwatch.run.folder import make
from support.unprivileged import unprivileged

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node 8 pretrain_gpt.py --save x", "pretrain_gpt"),
        ("python -m torch.distributed.run --nproc-per-node 8 /a/pretrain_gpt.py", "pretrain_gpt"),
        ("torchrun -m mwatch_gpt --lr 1", "mwatch_gpt"),
        ("python -m megatron.training.run --config x.py", "run"),
        ("torchrun train.py -m other", "train"),
        ("/opt/bin/launch --deep", "launch"),
        ("./-.", "run"),
    ],
)
def test_a_run_is_named_after_what_is_trained_with(tmp_path: Path, command: str, name: str) -> None:
    folder = make(tmp_path, None, command.split(), NOW)
    assert folder.name.rpartition("-")[0].rpartition("-")[0] == name
    assert folder.volume.is_dir()


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    first = make(tmp_path, "mine", ["x"], NOW)
    (first.path / "story.json").write_text("kept")
    second = make(tmp_path, "mine", ["x"], NOW)
    third = make(tmp_path, "mine", ["x"], NOW)
    assert [each.name for each in (first, second, third)] == ["mine", "mine-2", "mine-3"]
    assert first.story.read_text() == "kept"


def test_the_folder_is_absolute_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make(Path("runs"), "r", ["x"], NOW)
    assert folder.path == (tmp_path / "runs" / "r").resolve()


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", "a b", "x" * 65, "a\n", "a\0b"])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        make(tmp_path / "runs", name, ["x"], NOW)
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_to_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--runs"):
        make(tmp_path / "file", None, ["x"], NOW)
    os.chmod(tmp_path, 0o500)
    try:
        with unprivileged(), pytest.raises(InputError, match=r"Permission denied.*--runs"):
            make(tmp_path / "runs", None, ["x"], NOW)
    finally:
        os.chmod(tmp_path, 0o700)
