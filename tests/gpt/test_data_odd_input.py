# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Input as it comes: other line ends, damage in the middle, lines without an end to them."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest

from gpt.corpora import ODD, both, convert, gpt2_files, json_lines, many
from mwatch_gpt.data import conversion, corpus
from mwatch_gpt.data.corpus import BadInput, LineStart
from mwatch_gpt.data.tool import main

BOM = b"\xef\xbb\xbf"


def plain(folder: Path) -> tuple[Path, list[str]]:
    """A file of odd texts, converted, and the flags that it was converted with."""
    flags = [*gpt2_files(folder), "--append-eod"]
    source = json_lines(folder / "plain.jsonl", [*ODD, *many(50)])
    assert convert(source, folder / "plain", *flags) == 0
    return source, flags


@pytest.mark.parametrize("kind", ["windows", "blank lines", "no end", "byte order mark", "utf-8"])
def test_how_a_file_is_written_down_does_not_matter(tmp_path: Path, kind: str) -> None:
    source, flags = plain(tmp_path)
    body = source.read_bytes()
    raw = b"".join(
        json.dumps(json.loads(line), ensure_ascii=False).encode() + b"\n"
        for line in body.splitlines()
    )
    other = {
        "windows": body.replace(b"\n", b"\r\n"),
        "blank lines": body.replace(b"\n", b"\n \r\n\n"),
        "no end": body.rstrip(b"\n"),
        "byte order mark": BOM + body,
        "utf-8": raw,
    }[kind]
    (tmp_path / "other.jsonl").write_bytes(other)
    assert convert(tmp_path / "other.jsonl", tmp_path / "other", *flags) == 0
    assert both(tmp_path / "other") == both(tmp_path / "plain")


BAD = [
    ("{broken", "not a JSON object"),
    ('{"text": "cut off', "not a JSON object"),
    ('{"text": "\xe9"}', "not a JSON object"),
    ("[" * 100_000, "not a JSON object"),
    ('{"body": "x"}', "no text under 'text'"),
    ('{"text": null}', "no text under 'text'"),
    ('{"text": ["x", 3]}', "no text under 'text'"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[each[0][:20] for each in BAD])
def test_a_bad_line_in_the_middle_is_named_by_file_and_line(
    tmp_path: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [json.dumps({"text": text}).encode() for text in many(4000)]
    good[2500] = line.encode("latin-1")
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good))
    assert convert(tmp_path / "a.jsonl", tmp_path / "o") == 2
    said = capsys.readouterr().err
    assert f"a.jsonl:2501: {words}" in said and said.count("\n") == 1
    assert not (tmp_path / "o_text_document.idx").exists()
    assert convert(tmp_path / "a.jsonl", tmp_path / "o", "--skip-bad") == 0
    assert "1 bad lines left out" in capsys.readouterr().out


def test_a_line_far_longer_than_a_block_is_one_document(tmp_path: Path) -> None:
    text = "word " * 100_000
    json_lines(tmp_path / "a.jsonl", ["before", text, "after"])
    found = corpus.blocks([str(tmp_path / "a.jsonl")], LineStart(), 1000)
    lines = [line for block in found for line in block.data.splitlines()]
    assert [json.loads(each)["text"] for each in lines] == ["before", text, "after"]
    assert convert(tmp_path / "a.jsonl", tmp_path / "o") == 0
    lengths = struct.unpack_from("<3i", both(tmp_path / "o")[1], 34)
    assert lengths == (7, len(text) + 1, 6)


def test_a_line_without_end_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 5000)
    json_lines(tmp_path / "a.jsonl", ["before", "x" * 9000])
    with pytest.raises(BadInput, match=r"a\.jsonl:2: a line of more than"):
        list(corpus.blocks([str(tmp_path / "a.jsonl")], LineStart(), 1000))


def test_frames_of_zst_may_end_anywhere_and_some_hold_no_data(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    source, flags = plain(tmp_path)
    data, packer = source.read_bytes(), zstandard.ZstdCompressor()
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    frames = [packer.compress(data[at : at + 37]) + skipped for at in range(0, len(data), 37)]
    (tmp_path / "b.jsonl.zst").write_bytes(skipped + b"".join(frames))
    assert convert(tmp_path / "b.jsonl.zst", tmp_path / "b", *flags) == 0
    assert both(tmp_path / "b") == both(tmp_path / "plain")
    (tmp_path / "b.jsonl.zst").write_bytes(b"".join(frames) + b"rubbish")
    assert convert(tmp_path / "b.jsonl.zst", tmp_path / "c", *flags) == 2


def test_a_gz_that_is_damaged_in_the_middle_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = bytearray(gzip.compress(json_lines(tmp_path / "a.jsonl", many(9000)).read_bytes()))
    body[len(body) // 2 : len(body) // 2 + 99] = b"\xff" * 99
    (tmp_path / "a.jsonl.gz").write_bytes(body)
    assert convert(tmp_path / "a.jsonl.gz", tmp_path / "o") == 2
    said = capsys.readouterr().err
    assert "a.jsonl.gz: " in said and said.count("\n") == 1


def test_one_worker_and_eight_write_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight processes that each load a tokenizer take some seconds."""
    whole = corpus.blocks
    monkeypatch.setattr(conversion, "blocks", lambda paths, start: whole(paths, start, 3000))
    flags = [*gpt2_files(tmp_path), "--append-eod"]
    source = json_lines(tmp_path / "a.jsonl", many(2000))
    for workers in (1, 8):
        assert convert(source, tmp_path / str(workers), *flags, workers=workers) == 0
    assert both(tmp_path / "1") == both(tmp_path / "8")


def test_a_vocabulary_with_numbers_far_above_its_size_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = gpt2_files(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, "a": 70_000}))
    assert convert(json_lines(tmp_path / "a.jsonl", ["a"]), tmp_path / "o", *files) == 2
    assert "gives one a far larger number" in capsys.readouterr().err


def test_texts_that_are_all_empty_are_documents_without_a_token(tmp_path: Path) -> None:
    """As in Megatron: they are counted, and training never sees them."""
    source = json_lines(tmp_path / "a.jsonl", ["", [], ["", ""]])
    assert convert(source, tmp_path / "o", *gpt2_files(tmp_path), "--append-eod") == 0
    data, index = both(tmp_path / "o")
    assert data == b"" and struct.unpack_from("<QQ", index, 18) == (0, 4)
    assert main(["--check", str(tmp_path / "o_text_document")]) == 0
