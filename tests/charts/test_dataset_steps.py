# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of the dataset chart, run: in order, again, and with what goes wrong."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fakes.fake_hub import COMMIT, FakeHub, fake_hub
from support.runs.dataset_runs import STEPS, Dataset, hub_spec, lines

FILES = {
    f"train/chunk1/example_train_{number}.jsonl.xz": lzma.compress(
        lines(*(f"document {number}-{each}" for each in range(number + 1)))
    )
    for number in (0, 1, 2, 3, 10)
}
DOCUMENTS = 1 + 2 + 3 + 4 + 11
NAME = "train-chunk1-example_train_{}.jsonl.xz"
TOKENIZER = {"tokenizer/vocab.json": b"{}", "tokenizer/merges.txt": b"#version\n"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub({**FILES, **TOKENIZER}) as made:
        yield made


@pytest.fixture
def dataset(tmp_path: Path, hub: FakeHub) -> Dataset:
    tokenizer = {name: f"{hub.store}/tokenizer/{name}" for name in ("vocab.json", "merges.txt")}
    return Dataset(tmp_path, files=[hub_spec()], endpoint=hub.url, tokenizer=tokenizer)


def prefixes(dataset: Dataset) -> list[str]:
    return sorted(path.name for path in dataset.folder.glob("*_text_document.bin"))


def test_all_steps_make_pairs_of_bin_and_idx_with_every_document(dataset: Dataset) -> None:
    ran = dataset.all_steps()
    assert ran.code == 0, ran.said
    assert prefixes(dataset) == [f"slimpajama-0000{n}_text_document.bin" for n in range(3)]
    assert sorted(path.name for path in dataset.folder.glob("*.idx"))[0].endswith("document.idx")
    summary = json.loads((dataset.folder / "dataset.json").read_text())
    assert summary["documents"] == DOCUMENTS
    assert f"count: ALL of slimpajama: 5 files read, 3 .bin/.idx, {DOCUMENTS} docu" in ran.said
    assert (dataset.root / "tokenizer" / "vocab.json").read_bytes() == b"{}"
    assert (dataset.root / "tokenizer" / "merges.txt").is_file()


def test_files_are_joined_in_the_order_of_their_numbers(dataset: Dataset) -> None:
    assert dataset.all_steps().code == 0
    joined = (dataset.folder / "joined" / "slimpajama-00001.jsonl").read_text().splitlines()
    assert [json.loads(each)["text"] for each in joined][:3] == [
        f"document 2-{n}" for n in range(3)
    ]
    last = (dataset.folder / "joined" / "slimpajama-00002.jsonl").read_text().splitlines()
    assert json.loads(last[0])["text"] == "document 10-0"


def test_a_second_run_gets_and_makes_nothing(dataset: Dataset, hub: FakeHub) -> None:
    assert dataset.all_steps().code == 0
    stamps = {path: path.stat().st_mtime_ns for path in dataset.folder.glob("*.bin")}
    stored = len(hub.stored)
    ran = dataset.all_steps()
    assert ran.code == 0
    assert "preprocess: 0 files" in ran.said
    assert {path: path.stat().st_mtime_ns for path in dataset.folder.glob("*.bin")} == stamps
    assert len(hub.stored) == stored


def test_what_lies_between_goes_when_it_is_not_kept_and_is_not_missed(
    dataset: Dataset, hub: FakeHub
) -> None:
    dataset.settings["keepIntermediate"] = False
    assert dataset.all_steps().code == 0
    left = [
        path for name in ("raw", "text", "joined") for path in (dataset.folder / name).glob("*")
    ]
    assert left == []
    stored = len(hub.stored)
    assert dataset.all_steps().code == 0
    assert len(hub.stored) == stored


def test_a_sample_is_the_first_files_and_may_grow_later(dataset: Dataset, hub: FakeHub) -> None:
    dataset.settings["sample"] = 2
    assert dataset.all_steps().code == 0
    assert prefixes(dataset) == ["slimpajama-00000_text_document.bin"]
    dataset.settings["sample"] = 0
    assert dataset.all_steps().code == 0
    assert len(prefixes(dataset)) == 3
    assert hub.gets["train/chunk1/example_train_0.jsonl.xz"] == 1


def test_a_sample_larger_than_the_set_is_refused(dataset: Dataset) -> None:
    dataset.settings["sample"] = 6
    ran = dataset.step("download")
    assert ran.code == 2 and "there are 5 files, and 6 are wanted" in ran.said


def test_several_pods_share_the_groups_and_the_last_one_counts_all(dataset: Dataset) -> None:
    dataset.settings["parallelism"] = 2
    first = dataset.all_steps(pod=1)
    assert first.code == 0 and "other pods are still at work" in first.said
    assert prefixes(dataset) == ["slimpajama-00001_text_document.bin"]
    assert not (dataset.folder / "dataset.json").exists()
    second = dataset.all_steps(pod=0)
    assert second.code == 0 and f"{DOCUMENTS} documents" in second.said
    assert len(prefixes(dataset)) == 3


@pytest.mark.parametrize("index", range(1, len(STEPS)))
def test_no_step_starts_without_the_one_before(dataset: Dataset, index: int) -> None:
    if index > 1:
        assert dataset.all_steps(steps=STEPS[: index - 1]).code == 0
    ran = dataset.step(STEPS[index])
    assert ran.code != 0
    assert f"the step {STEPS[index - 1]} makes it" in ran.said or "cannot be unpacked" in ran.said


def test_a_raw_file_that_is_damaged_on_the_disk_fails_and_is_got_again(dataset: Dataset) -> None:
    assert dataset.step("download").code == 0
    path = dataset.folder / "raw" / NAME.format(1)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 0xFF
    path.write_bytes(body)
    ran = dataset.step("extract")
    assert ran.code == 1 and "cannot be unpacked" in ran.said
    assert dataset.all_steps().code == 0


def test_a_file_without_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(b"\n \n")
    dataset = Dataset(tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/data/*.jsonl"}])
    assert dataset.all_steps(steps=STEPS[:2]).code == 0
    ran = dataset.step("concatenate")
    assert ran.code == 1 and "has no document" in ran.said


@pytest.mark.parametrize("line", [b'{"body": "x"}\n', b"plain words\n", b'["text"]\n'])
def test_lines_that_are_no_documents_are_refused_for_good(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(lines("x") + line)
    dataset = Dataset(tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/data/*.jsonl"}])
    assert dataset.all_steps(steps=STEPS[:2]).code == 0
    ran = dataset.step("concatenate")
    assert ran.code == 2 and 'no JSON with a text under "text"' in ran.said


def test_files_join_as_lines_even_where_the_last_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.jsonl").write_bytes(lines(name).rstrip(b"\n"))
    dataset = Dataset(tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/data/*.jsonl"}])
    assert dataset.all_steps(steps=STEPS[:3]).code == 0
    joined = (dataset.folder / "joined" / "jsonl-00000.jsonl").read_bytes()
    assert joined == lines("a", "b")


def test_the_name_is_that_of_the_folder_and_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own.jsonl").write_bytes(lines("one"))
    tool = {"engine": "mwatch", "workers": 1, "tokenizerType": "ByteTokenizer"}
    files = [{"path": f"{tmp_path}/data/own.jsonl"}]
    dataset = Dataset(tmp_path, source="jsonl", name="wiki", files=files, preprocess=tool)
    ran = dataset.all_steps()
    assert ran.code == 0 and "count: ALL of wiki: 1 files read" in ran.said
    assert (dataset.root / "wiki" / "wiki-00000_text_document.idx").is_file()
    assert not (dataset.root / "jsonl").exists()


def test_files_of_the_user_are_read_where_they_are_and_stay(tmp_path: Path, hub: FakeHub) -> None:
    (tmp_path / "data").mkdir()
    own = tmp_path / "data" / "own.jsonl"
    own.write_bytes(lines("one", "two"))
    tokenizer = {name: f"{hub.store}/tokenizer/{name}" for name in ("vocab.json", "merges.txt")}
    dataset = Dataset(
        tmp_path, source="jsonl", files=[{"path": str(own)}], tokenizer=tokenizer,
        keepIntermediate=False,
    )  # fmt: skip
    ran = dataset.all_steps()
    assert ran.code == 0, ran.said
    assert own.is_file() and "2 documents" in ran.said


def test_a_path_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/none/*.jsonl"}])
    ran = dataset.step("download")
    assert ran.code == 2 and "no such file on the claim" in ran.said


FAULTS = [
    ("raise SystemExit(3)", "the tool for tokens ended with 3"),
    ("lengths.pop()", "its index says"),
    ("data = data[: -lengths.pop()]", "of 3 documents were written"),
    ("data = data[:-1]", "its index says"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_tool_that_fails_or_loses_documents_is_noticed_and_leaves_no_pair(
    dataset: Dataset, fault: str, words: str
) -> None:
    dataset.tool(fault)
    ran = dataset.all_steps()
    assert ran.code == 1 and words in ran.said
    assert prefixes(dataset) == []
    dataset.tool()
    assert dataset.all_steps().code == 0


@pytest.mark.parametrize("key", ["text", "body"])
def test_our_own_tool_makes_the_pairs_too(tmp_path: Path, key: str) -> None:
    (tmp_path / "data").mkdir()
    documents = b"".join(json.dumps({key: f"page {n}"}).encode() + b"\n" for n in range(20))
    (tmp_path / "data" / "own.jsonl").write_bytes(documents)
    tool = {"engine": "mwatch", "workers": 1, "tokenizerType": "ByteTokenizer", "jsonKey": key}
    dataset = Dataset(
        tmp_path, source="jsonl", files=[{"path": f"{tmp_path}/data/own.jsonl"}], preprocess=tool
    )
    ran = dataset.all_steps()
    assert ran.code == 0, ran.said
    assert "1 .bin/.idx, 20 documents" in ran.said
    assert prefixes(dataset) == ["jsonl-00000_text_document.bin"]
    assert list((dataset.folder / ".work").iterdir()) == []


def test_megatrons_tool_is_asked_to_take_the_files_where_it_would_ask_the_hub(
    dataset: Dataset,
) -> None:
    tool = dataset.megatron / "tools" / "preprocess_data.py"
    text = tool.read_text().replace(
        "a = p.parse_args()",
        "p.add_argument('--legacy-tokenizer', action='store_true', required=True)\n"
        "a = p.parse_args()  # of _add_tokenizer_args",
    )
    tool.write_text(text)
    assert dataset.all_steps().code == 1, "the release does not have the flag: it is not given"
    arguments = dataset.megatron / "megatron" / "training" / "arguments.py"
    arguments.parent.mkdir(parents=True)
    arguments.write_text("group.add_argument('--legacy-tokenizer', action='store_true')")
    assert dataset.all_steps().code == 0


def test_a_pair_that_was_cut_later_is_found_by_the_count(dataset: Dataset) -> None:
    assert dataset.all_steps().code == 0
    path = dataset.folder / "slimpajama-00000_text_document.bin"
    path.write_bytes(path.read_bytes()[:-1])
    ran = dataset.step("count")
    assert ran.code == 1 and "is not whole" in ran.said
    assert dataset.all_steps().code == 0


def test_the_listing_is_pinned_to_a_commit(dataset: Dataset) -> None:
    assert dataset.step("download").code == 0
    listed = json.loads((dataset.folder / ".state" / "files.json").read_text())
    assert all(f"/resolve/{COMMIT}/" in each["url"] for each in listed["entries"])


def test_settings_that_are_none_end_with_2(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path)
    del dataset.settings["source"]
    assert dataset.step("download").code == 2
    assert "no settings" in dataset.step("download").said
    assert dataset.step("nonsense").code == 2
