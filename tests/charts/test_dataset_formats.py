# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the steps open: .zst, .xz, .gz, archives of texts; and MDS for LLM-Foundry."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs.dataset_runs import SCRIPTS, STEPS, Dataset, Ran, archive, lines

DOCUMENTS = lines("one", "two", "three")


def zstd(content: bytes) -> bytes:
    program = shutil.which("zstd")
    if program is None:
        pytest.skip("no zstd here to make a .zst with: install the Debian package zstd")
    # Two frames one after the other are one file, and both must be read.
    half = len(content) // 2
    runs = [
        subprocess.run([program, "-c"], input=part, capture_output=True, check=True, timeout=60)
        for part in (content[:half], content[half:])
    ]
    return b"".join(each.stdout for each in runs)


def joined(folder: Path, name: str, body: bytes) -> tuple[Ran, bytes]:
    (folder / "data").mkdir()
    (folder / "data" / name).write_bytes(body)
    dataset = Dataset(folder, source="jsonl", files=[{"path": f"{folder}/data/{name}"}])
    ran = dataset.all_steps(steps=STEPS[:3])
    path = dataset.folder / "joined" / "jsonl-00000.jsonl"
    return ran, path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("kind", ["jsonl", "json", "jsonl.gz", "jsonl.xz", "jsonl.zst"])
def test_documents_come_out_as_they_went_in(tmp_path: Path, kind: str) -> None:
    pack = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd}.get(kind.rpartition(".")[2])
    body = pack(DOCUMENTS) if pack else DOCUMENTS  # type: ignore[operator]
    ran, found = joined(tmp_path, f"a.{kind}", body)
    assert ran.code == 0, ran.said
    assert found == DOCUMENTS


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_cut_file_is_an_error(tmp_path: Path, kind: str) -> None:
    body = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd}[kind](DOCUMENTS)  # type: ignore[operator]
    ran, _ = joined(tmp_path, f"a.jsonl.{kind}", body[:-5])
    assert ran.code == 1 and "cannot be unpacked" in ran.said


def test_the_program_zstd_is_enough(tmp_path: Path) -> None:
    """Without any package: `-S` hides them."""
    for name, body in (("whole", zstd(DOCUMENTS)), ("cut", zstd(DOCUMENTS)[:-5])):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "a.jsonl.zst").write_bytes(body)
        dataset = Dataset(folder, source="jsonl", files=[{"path": f"{folder}/data/*.zst"}])
        assert dataset.step("download").code == 0
        done = subprocess.run(
            [sys.executable, "-S", "-m", "dataset_steps", "extract", str(folder / "settings.json")],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SCRIPTS)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == (0 if name == "whole" else 1), done.stdout


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    ran, _ = joined(tmp_path, "a.parquet", b"PAR1")
    assert ran.code == 2 and "unknown ending" in ran.said


def test_openwebtext_is_texts_in_an_archive_in_an_archive(tmp_path: Path) -> None:
    inner = archive({"./a.txt": b"first\n\n\n\n\npage\n", "./b.txt": b"second", "./c.txt": b" \n"})
    outer = archive({"openwebtext-10k/10k.xz": inner})
    ran, found = joined(tmp_path, "openwebtext-10k.tar.xz", outer)
    assert ran.code == 0, ran.said
    texts = [json.loads(each)["text"] for each in found.splitlines()]
    assert texts == ["first\n\npage", "second"]


def test_a_zst_without_any_means_to_open_it_names_the_fix(tmp_path: Path) -> None:
    body = zstd(DOCUMENTS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl.zst").write_bytes(body)
    dataset = Dataset(tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/data/*.zst"}])
    assert dataset.step("download").code == 0
    done = subprocess.run(
        [sys.executable, "-S", "-m", "dataset_steps", "extract", str(tmp_path / "settings.json")],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if sys.version_info >= (3, 14):
        assert done.returncode == 0
    else:
        assert done.returncode == 2 and "add one" in done.stdout


# Writes what LLM-Foundry's converter would: an index and the shards that it names.
FAKE_CONVERTER = """
import argparse, json, os
p = argparse.ArgumentParser()
p.add_argument("--splits", nargs="+"), p.add_argument("--out_root")
for name in ("dataset", "data_subset", "concat_tokens", "tokenizer", "eos_text", "num_workers"):
    p.add_argument("--" + name, required=True)
a = p.parse_args()
for split in a.splits:
    folder = os.path.join(a.out_root, split)
    os.makedirs(folder)
    open(os.path.join(folder, "shard.00000.mds"), "wb").write(b"x" * 100)
    FAULT
    shard = {"samples": 7, "raw_data": {"basename": "shard.00000.mds", "bytes": 100}}
    json.dump({"version": 2, "shards": [shard]}, open(os.path.join(folder, "index.json"), "w"))
"""


def mds(folder: Path, fault: str = "pass") -> Dataset:
    converter = folder / "fake_converter.py"
    converter.write_text(FAKE_CONVERTER.replace("FAULT", fault))
    wish = {
        "converter": str(converter), "dataset": "allenai/c4", "subset": "en", "workers": 1,
        "splits": ["train_small", "val_small"], "concatTokens": 2048,
        "tokenizer": "EleutherAI/gpt-neox-20b", "eosText": "<|endoftext|>",
    }  # fmt: skip
    return Dataset(folder, source="c4-mds", mds=wish)


def test_mds_splits_are_made_measured_and_counted(tmp_path: Path) -> None:
    ran = mds(tmp_path).all_steps(steps=("convert", "count-mds"))
    assert ran.code == 0, ran.said
    assert "count: ALL of c4-mds: 14 samples" in ran.said
    assert (tmp_path / "data/c4-mds/train_small/index.json").is_file()
    assert (tmp_path / "data/c4-mds/val_small/index.json").is_file()


def test_mds_splits_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    dataset = mds(tmp_path)
    assert dataset.step("convert").code == 0
    before = (dataset.folder / "val_small" / "index.json").stat().st_mtime_ns
    ran = dataset.step("convert")
    assert ran.code == 0 and ran.said.count("is there") == 2
    assert (dataset.folder / "val_small" / "index.json").stat().st_mtime_ns == before


def test_mds_with_another_tokenizer_is_made_anew(tmp_path: Path) -> None:
    dataset = mds(tmp_path)
    assert dataset.step("convert").code == 0
    dataset.settings["mds"]["tokenizer"] = "gpt2"
    ran = dataset.step("convert")
    assert ran.code == 0 and ran.said.count("made anew") == 2


def test_a_split_that_was_left_half_is_made_anew(tmp_path: Path) -> None:
    dataset = mds(tmp_path)
    (dataset.folder / "train_small").mkdir(parents=True)
    (dataset.folder / "train_small" / "shard.00000.mds").write_bytes(b"x")
    ran = dataset.step("convert")
    assert ran.code == 0 and "left half" in ran.said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise SystemExit(4)", "the converter ended with 4"),
        (
            "os.truncate(os.path.join(folder, 'shard.00000.mds'), 50)",
            "50 bytes, its index says 100",
        ),
        ("continue", "has no index.json"),
    ],
)
def test_a_converter_that_fails_leaves_no_split(tmp_path: Path, fault: str, words: str) -> None:
    dataset = mds(tmp_path, fault)
    ran = dataset.step("convert")
    assert ran.code == 1 and words in ran.said
    assert not (dataset.folder / "train_small").exists()


def test_a_shard_that_went_missing_is_found_by_the_count(tmp_path: Path) -> None:
    dataset = mds(tmp_path)
    assert dataset.step("convert").code == 0
    (dataset.folder / "val_small" / "shard.00000.mds").unlink()
    ran = dataset.step("count-mds")
    assert ran.code == 1 and "its index says 100" in ran.said
