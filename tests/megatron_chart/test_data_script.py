# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The script that looks at the data before the trainer starts, run for real on real folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.chart_renders import MEGATRON

SCRIPT = MEGATRON / "files" / "data.py"
MAGIC = b"MMIDIDX\x00\x00"


def pair(folder: Path, name: str, size: int = 100) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.bin").write_bytes(b"\0" * size)
    (folder / f"{name}.idx").write_bytes(MAGIC + b"\0" * 25)
    return str(folder / name)


def run(out: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {"OUT": str(out), "SPLIT_BY": "fraction", **settings}
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=environ, capture_output=True, text=True, timeout=60
    )


def refusal(out: Path, **settings: str) -> str:
    done = run(out, **settings)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_files_are_weighed_by_their_size(tmp_path: Path) -> None:
    small, large = pair(tmp_path / "d", "a", 100), pair(tmp_path / "d", "b", 300)
    done = run(tmp_path, DATA_FOLDER=str(tmp_path / "d"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data.txt").read_text().split() == ["100", small, "300", large]


def test_work_in_hidden_folders_is_not_taken(tmp_path: Path) -> None:
    there = pair(tmp_path / "d" / "part", "a")
    pair(tmp_path / "d" / ".work", "b")
    run(tmp_path, DATA_FOLDER=str(tmp_path / "d"))
    assert (tmp_path / "data.txt").read_text().split() == ["100", there]


@pytest.mark.parametrize("count", [31, 45, 72])
def test_whole_files_are_held_back_without_an_overlap(tmp_path: Path, count: int) -> None:
    names = [pair(tmp_path / "d", f"f{number:03}") for number in range(count)]
    settings = {"SPLIT_BY": "files", "VALIDATION_FILES": "15", "TEST_FILES": "15"}
    done = run(tmp_path, DATA_FOLDER=str(tmp_path / "d"), **settings)
    assert done.returncode == 0, done.stderr
    shares = json.loads((tmp_path / "data.json").read_text())
    parts = {split: shares[split][1::2] for split in ("train", "valid", "test")}
    assert parts["train"] + parts["valid"] + parts["test"] == sorted(names)
    assert [len(parts[split]) for split in ("train", "valid", "test")] == [count - 30, 15, 15]


def test_no_test_files_are_a_null_for_megatron(tmp_path: Path) -> None:
    for name in "abc":
        pair(tmp_path / "d", name)
    settings = {"SPLIT_BY": "files", "VALIDATION_FILES": "1", "TEST_FILES": "0"}
    assert run(tmp_path, DATA_FOLDER=str(tmp_path / "d"), **settings).returncode == 0
    assert json.loads((tmp_path / "data.json").read_text())["test"] is None


@pytest.mark.parametrize("count", [1, 16, 29, 30])
def test_too_few_files_are_refused(tmp_path: Path, count: int) -> None:
    for number in range(count):
        pair(tmp_path / "d", f"f{number:03}")
    settings = {"SPLIT_BY": "files", "VALIDATION_FILES": "15", "TEST_FILES": "15"}
    said = refusal(tmp_path, DATA_FOLDER=str(tmp_path / "d"), **settings)
    assert f"holds {count} files" in said
    assert "leave none to train on" in said


def test_a_folder_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    assert "is not there" in refusal(tmp_path, DATA_FOLDER=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "holds no pair" in refusal(tmp_path, DATA_FOLDER=str(tmp_path / "empty"))


def test_a_missing_index_is_refused(tmp_path: Path) -> None:
    prefix = pair(tmp_path / "d", "a")
    Path(f"{prefix}.idx").unlink()
    assert f"{prefix}.idx: No such file" in refusal(tmp_path, DATA_FOLDER=str(tmp_path / "d"))


def test_a_half_written_index_is_refused(tmp_path: Path) -> None:
    prefix = pair(tmp_path / "d", "a")
    Path(f"{prefix}.idx").write_bytes(b"MMID")
    assert "is no index" in refusal(tmp_path, DATA_FOLDER=str(tmp_path / "d"))


def test_an_empty_file_of_tokens_is_refused(tmp_path: Path) -> None:
    pair(tmp_path / "d", "a", 0)
    assert "is empty" in refusal(tmp_path, DATA_FOLDER=str(tmp_path / "d"))


def test_named_files_must_be_there(tmp_path: Path) -> None:
    there = pair(tmp_path / "d", "a")
    assert run(tmp_path, DATA_FOLDER="/none", DATA_PREFIXES=there).returncode == 0
    said = refusal(tmp_path, DATA_FOLDER="/none", DATA_PREFIXES=f"{there} {tmp_path}/gone")
    assert "gone.idx" in said


def test_the_files_of_a_blend_must_be_there(tmp_path: Path) -> None:
    blend = tmp_path / "blend.txt"
    blend.write_text(f"0.3 {pair(tmp_path / 'd', 'a')} 0.7 {pair(tmp_path / 'd', 'b')}\n")
    assert run(tmp_path, DATA_FOLDER="/none", DATA_ARGUMENTS_FILE=str(blend)).returncode == 0
    blend.write_text(f"1.0 {tmp_path}/gone\n")
    said = refusal(tmp_path, DATA_FOLDER="/none", DATA_ARGUMENTS_FILE=str(blend))
    assert "gone.idx" in said
    said = refusal(tmp_path, DATA_FOLDER="/none", DATA_ARGUMENTS_FILE=str(tmp_path / "no"))
    assert "dataset.argumentsFile" in said


def test_a_missing_vocabulary_is_refused(tmp_path: Path) -> None:
    pair(tmp_path / "d", "a")
    said = refusal(tmp_path, DATA_FOLDER=str(tmp_path / "d"), TOKENIZER_FILES="/none/vocab.json")
    assert "/none/vocab.json is not there" in said


def test_a_base_model_is_needed_by_a_first_attempt_alone(tmp_path: Path) -> None:
    base, save = tmp_path / "base", tmp_path / "save"
    settings = {"BASE_CHECKPOINT": str(base), "CHECKPOINTS": str(save)}
    assert "continued.stage=convert first" in refusal(tmp_path, **settings)
    save.mkdir()
    (save / "latest_checkpointed_iteration.txt").write_text("100")
    assert run(tmp_path, **settings).returncode == 0


def test_a_checkpoint_that_must_be_there_is_looked_for(tmp_path: Path) -> None:
    """Megatron would end with 0 instead: a job that has succeeded, and done nothing."""
    save = tmp_path / "save"
    assert "holds no checkpoint" in refusal(tmp_path, MUST_EXIST=str(save))
    save.mkdir()
    (save / "latest_checkpointed_iteration.txt").write_text("100")
    assert run(tmp_path, MUST_EXIST=str(save)).returncode == 0
