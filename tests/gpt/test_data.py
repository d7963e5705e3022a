# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text becomes an indexed dataset that the trainer can read."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.launch import Job, Nursery
from mwatch_gpt.data.corpus import BadInput
from mwatch_gpt.data.encoding import Encoder, EncodingOptions
from mwatch_gpt.data.tokenizers import END_OF_DOCUMENT, TokenizerChoice
from mwatch_gpt.data.tool import SAMPLE, read


def make(nursery: Nursery, folder: Path, *argv: str) -> tuple[int | None, str]:
    log = folder / "data.log"
    code = nursery.wait(nursery.start("data", argv, {}, log), 50)
    return code, log.read_text()


def test_a_byte_is_a_token_and_a_document_has_an_end() -> None:
    encoded = Encoder(EncodingOptions(TokenizerChoice())).document(["aß"])
    assert list(array("H", encoded.tokens)) == [97, 195, 159, END_OF_DOCUMENT]


def test_lines_are_documents_and_empty_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo")
    assert list(read(tmp_path / "a.txt", "text")) == ["one", "two"]


def test_json_lines_give_their_field_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one", "n": 1}\n{"text": "two\\nlines"}\n')
    assert list(read(source, "text")) == ["one", "two\nlines"]
    with pytest.raises(BadInput, match=r"a\.jsonl:1: no text under 'body'"):
        list(read(source, "body"))


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"text": 3}', '{"text"'])
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(BadInput, match=r"a\.jsonl:2"):
        list(read(tmp_path / "a.jsonl", "text"))


def test_the_text_that_comes_with_the_package_has_enough_documents() -> None:
    assert len(list(read(SAMPLE, "text"))) > 60


def test_a_dataset_of_json_lines_is_trained_on(
    nursery: Nursery, tmp_path: Path, train: Callable[..., Job]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"text": "{"ab" * 20} {n}"}}\n' for n in range(60)))
    prefix = str(tmp_path / "out" / "corpus")
    code, said = make(nursery, tmp_path, "--input", str(corpus), "--output-prefix", prefix)
    assert code == 0, said
    assert "60 documents, 2630 tokens: train with --data-path" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "corpus_text_document.bin",
        "corpus_text_document.idx",
        "corpus_text_document.state.json",
    ]
    job = train(f"--train-iters 3 --data-path {prefix}_text_document", ranks=1)
    assert job.wait() == [0], job.log(0)


def test_bad_input_is_one_line_and_leaves_nothing(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{}\n')
    prefix = str(tmp_path / "out" / "x")
    code, said = make(
        nursery, tmp_path, "--input", str(tmp_path / "bad.jsonl"), "--output-prefix", prefix
    )
    assert (code, said.count("\n")) == (2, 1)
    assert "bad.jsonl:2: no text under 'text'" in said
    assert list((tmp_path / "out").iterdir()) == []
    code, said = make(nursery, tmp_path, "--input", "nowhere.txt", "--output-prefix", prefix)
    assert code == 2
    assert "nowhere.txt" in said


def test_a_part_without_documents_is_refused_instead_of_searched_for_ever(
    train: Callable[..., Job],
) -> None:
    job = train("--split 969,30,1", ranks=1)
    assert job.wait() == [1]
    assert "--split 969,30,1 leaves a part without a document" in job.log(0)


def test_a_dataset_that_is_not_there_is_named(train: Callable[..., Job]) -> None:
    job = train("--data-path nowhere", ranks=1)
    assert job.wait() == [1]
    assert "no dataset at nowhere" in job.log(0)
