# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The dataset's steps with our own tool, again: after a kill, with another wish, on other files."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mwatch_gpt.data.tool import main
from support.fakes.fake_hub import fake_hub
from support.runs.dataset_runs import STEPS, Dataset, lines
from support.waiting import until

TOOL = {"engine": "mwatch", "workers": 1, "tokenizerType": "ByteTokenizer", "jsonKey": "text"}


IN_THE_MIDDLE = """
import time
from mwatch_gpt.data import conversion
whole = conversion.blocks
def held(paths, start):
    for number, block in enumerate(whole(paths, start, 5000)):
        while number == 200: time.sleep(0.1)
        yield block
conversion.blocks = held
"""
"""The tool does not come to its end before it is killed."""


def own(folder: Path, **more: Any) -> Dataset:
    """Of files that the user has put on the claim."""
    (folder / "data" / "own").mkdir(parents=True, exist_ok=True)
    files = [{"path": f"{folder}/data/own/*.jsonl"}]
    return Dataset(folder, **{"source": "jsonl", "files": files, "preprocess": dict(TOOL), **more})


def put(dataset: Dataset, name: str, *texts: str) -> Path:
    path = dataset.root / "own" / name
    path.write_bytes(lines(*texts))
    return path


def documents(dataset: Dataset) -> int:
    return int(json.loads((dataset.folder / "dataset.json").read_text())["documents"])


def pair(dataset: Dataset) -> list[bytes]:
    prefix = dataset.folder / "jsonl-00000_text_document"
    return [Path(f"{prefix}.{each}").read_bytes() for each in ("bin", "idx")]


def test_another_tokenizer_makes_other_tokens_and_not_a_second_look(tmp_path: Path) -> None:
    dataset = own(tmp_path, keepIntermediate=False)
    put(dataset, "a.jsonl", "one", "two")
    assert dataset.all_steps().code == 0
    before = pair(dataset)
    dataset.settings["preprocess"] |= {"jsonKey": "title"}
    (dataset.root / "own" / "a.jsonl").write_text('{"text": "one", "title": "other"}\n')
    assert dataset.all_steps().code == 0
    assert pair(dataset) != before and documents(dataset) == 1


def test_files_that_came_or_changed_since_then_are_seen(tmp_path: Path) -> None:
    dataset = own(tmp_path)
    first = put(dataset, "a.jsonl", "one")
    assert dataset.all_steps().code == 0
    put(dataset, "b.jsonl", "two", "three")
    assert dataset.all_steps().code == 0
    assert documents(dataset) == 3
    put(dataset, "a.jsonl", "eno")
    os.utime(first, (1_000_000_000, 1_000_000_000))
    assert dataset.all_steps().code == 0
    assert pair(dataset)[0][:6] == b"e\0n\0o\0", "of the same size, and another text"


def test_what_an_earlier_request_has_left_is_reported(tmp_path: Path) -> None:
    dataset = own(tmp_path, perOutput=1)
    put(dataset, "a.jsonl", "one")
    put(dataset, "b.jsonl", "two").touch()
    assert dataset.all_steps().code == 0
    (dataset.root / "own" / "b.jsonl").unlink()
    ran = dataset.all_steps()
    assert ran.code == 0 and "1 more lie beside them, such as jsonl-00001_text_document" in ran.said


@pytest.mark.parametrize("bad", ["{broken", '{"title": "x"}'])
def test_a_bad_line_in_the_middle_fails_for_good_and_is_named(tmp_path: Path, bad: str) -> None:
    dataset = own(tmp_path)
    path = put(dataset, "a.jsonl", "one", "two")
    path.write_bytes(lines("one") + bad.encode() + b"\n" + lines("two"))
    ran = dataset.all_steps()
    assert ran.code == 2, "no other pod can do better"
    assert "joined/jsonl-00000.jsonl:2: " in ran.said
    assert not list(dataset.folder.glob("*_text_document.*"))


def test_a_tool_that_the_image_lacks_a_package_for_fails_for_good(tmp_path: Path) -> None:
    """As an image without the extra `data` would: here a vocabulary that is not there."""
    dataset = own(tmp_path)
    put(dataset, "a.jsonl", "one")
    dataset.settings["preprocess"]["tokenizerType"] = "GPT2BPETokenizer"
    ran = dataset.all_steps()
    assert ran.code == 2 and "needs --vocab-file and --merge-file" in ran.said


def test_a_pod_that_is_killed_while_it_makes_tokens_is_followed_by_one_that_goes_on(
    tmp_path: Path,
) -> None:
    """Real processes and four megabytes: it takes some seconds."""
    dataset = own(tmp_path)
    put(dataset, "a.jsonl", *(f"document {n} " * 40 for n in range(8000)))
    assert dataset.all_steps(steps=STEPS[:3]).code == 0
    (tmp_path / "sitecustomize.py").write_text(IN_THE_MIDDLE)
    process = dataset.start("preprocess", site=tmp_path)
    tokens = dataset.folder / ".work" / "jsonl-00000_text_document.bin.part"
    until(lambda: tokens.exists() and tokens.stat().st_size > 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM, "at once, and not after the grace period"
    assert process.stdout is not None
    process.stdout.close()
    assert not list(dataset.folder.glob("*_text_document.*"))
    ran = dataset.all_steps()
    assert ran.code == 0, ran.said
    assert documents(dataset) == 8000
    source = dataset.folder / "joined" / "jsonl-00000.jsonl"
    words = ["--input", str(source), "--output-prefix", str(tmp_path / "whole"), "--workers", "1"]
    assert main([*words, "--append-eod"]) == 0
    assert pair(dataset) == [
        Path(f"{tmp_path}/whole_text_document.{each}").read_bytes() for each in ("bin", "idx")
    ]


def test_two_datasets_may_get_the_same_vocabulary_at_the_same_time(tmp_path: Path) -> None:
    """Large enough that the one is in the middle of it while the other is, too."""
    names = ("vocab.json", "merges.txt")
    with fake_hub({name: os.urandom(8_000_000) for name in names}) as hub:
        tokenizer = {name: f"{hub.store}/{name}" for name in names}
        both = [own(tmp_path, name=name, tokenizer=tokenizer) for name in ("one", "two")]
        put(both[0], "a.jsonl", "text")
        processes = []
        for dataset in both:
            dataset.file = tmp_path / f"{dataset.settings['name']}.json"
            processes.append(dataset.start("download"))
        for process in processes:
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0, said
        assert (tmp_path / "data" / "tokenizer" / "vocab.json").read_bytes() == hub.files[names[0]]


@pytest.mark.parametrize("left", ["a state of another wish", "a broken state"])
def test_what_an_own_try_has_left_is_never_refused(tmp_path: Path, left: str) -> None:
    dataset = own(tmp_path)
    put(dataset, "a.jsonl", "one", "two")
    assert dataset.all_steps(steps=STEPS[:3]).code == 0
    state = dataset.folder / ".work" / "jsonl-00000_text_document.state.json"
    state.parent.mkdir()
    known = {"version": 1, "settings": "other", "outputs": 1, "stage": "writing"}
    known |= {"place": [0, 0, 1], "sizes": [[99, 99, 99]], "documents": 1, "tokens": 1}
    state.write_text("{" if left == "a broken state" else json.dumps(known))
    assert dataset.all_steps(steps=STEPS[3:]).code == 0
    assert documents(dataset) == 2
