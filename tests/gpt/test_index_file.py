# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`--check` names what is wrong with a dataset, `--blend` weighs those that are right."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.corpora import convert, json_lines, many
from mwatch_gpt.data import index_file
from mwatch_gpt.data.tool import main


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    assert convert(json_lines(tmp_path / "a.jsonl", many(20)), tmp_path / "o") == 0
    return str(tmp_path / "o_text_document")


def edit(path: str, change: Callable[[bytearray], object]) -> None:
    data = bytearray(Path(path).read_bytes())
    change(data)
    Path(path).write_bytes(data)


def put(at: int, form: str, value: int) -> Callable[[bytearray], object]:
    return lambda data: struct.pack_into(form, data, at, value)


def cut(count: int) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        del data[-count:]

    return change


# 20 sequences: lengths from 34 on, places from 114, documents from 274.
DAMAGE = [
    (".bin", cut(3), "is cut"),
    (".bin", lambda data: data.extend(b"xx"), "is too long"),
    (".idx", cut(1), "is cut"),
    (".idx", lambda data: data.extend(b"x"), "1 bytes too many"),
    (".idx", lambda data: data.clear(), "not an index file"),
    (".idx", cut(420), "the file ends in it"),
    (".idx", put(0, "<B", 65), "not an index file"),
    (".idx", put(9, "<Q", 2), "version 2"),
    (".idx", put(17, "<B", 99), "the code 99"),
    (".idx", put(26, "<Q", 0), "no entry for documents"),
    (".idx", put(26, "<Q", 99), "is cut"),
    (".idx", put(34, "<i", -4), "negative length"),
    (".idx", put(34 + 4, "<i", 1), "do not follow the lengths"),
    (".idx", put(114 + 8, "<q", 1), "do not follow the lengths"),
    (".idx", put(274, "<q", 1), "do not begin"),
    (".idx", put(274 + 8, "<q", 9), "out of order"),
    (".idx", put(274 + 160, "<q", 30), "documents end at sequence 30"),
]


@pytest.mark.parametrize(("ending", "change", "words"), DAMAGE, ids=[row[2] for row in DAMAGE])
def test_damage_is_named(
    prefix: str,
    ending: str,
    change: Callable[[bytearray], object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(prefix + ending, change)
    assert main(["--check", prefix]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("code", [4, 6, 7])
def test_another_type_of_tokens_is_found(
    prefix: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers with a fraction are in Megatron's format, and no token is one."""
    edit(f"{prefix}.idx", put(17, "<B", code))
    assert main(["--check", prefix]) == 1
    words = "do not follow the lengths" if code == 4 else f"the code {code}"
    assert words in capsys.readouterr().out


def test_tokens_above_the_vocabulary_are_found_where_its_size_is_given(
    prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_PIECE", 7)
    assert main(["--check", prefix, "--vocab-size", "257"]) == 0
    edit(f"{prefix}.bin", put(2 * 10, "<H", 257))
    assert main(["--check", prefix]) == 0
    capsys.readouterr()
    assert main(["--check", prefix, "--vocab-size", "257"]) == 1
    said = capsys.readouterr().out
    assert "o_text_document.bin: token 10 is 257, and a vocabulary of 257 has none such" in said
    edit(f"{prefix}.idx", put(17, "<B", 3))
    edit(f"{prefix}.bin", put(2 * 9, "<h", -2))
    assert "token 9 is -2" in index_file.check(prefix, 300).problems[0]


def test_a_whole_one_is_counted(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["--check", f"{prefix}.idx"]) == 0
    assert "whole: 20 documents, 20 sequences, 1" in capsys.readouterr().out


def test_a_missing_half_is_named(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{prefix}.bin").unlink()
    assert main(["--check", prefix]) == 1
    assert "o_text_document.bin: No such file" in capsys.readouterr().out


def test_more_sequences_than_one_piece_are_checked_too(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_PIECE", 3)
    assert index_file.check(prefix).problems == ()
    edit(f"{prefix}.idx", put(114 + 8 * 19, "<q", 1))
    assert "from 18 on" in index_file.check(prefix).problems[0]


def test_a_blend_is_weighed_by_tokens_or_by_hand(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(json_lines(tmp_path / "b.jsonl", many(60)), tmp_path / "b") == 0
    other = str(tmp_path / "b_text_document")
    weights = tmp_path / "weights.txt"
    assert main(["--blend", str(weights), prefix, f"{other}.bin"]) == 0
    words = weights.read_text().split()
    assert words[1::2] == [prefix, other]
    assert sum(map(float, words[::2])) == pytest.approx(1.0)
    assert float(words[2]) > float(words[0])
    assert main(["--blend", str(weights), f"{prefix}=3", f"{other}=1"]) == 0
    assert weights.read_text() == f"3 {prefix}\n1 {other}\n"
    for wrong in ([f"{prefix}=3", other], [f"{prefix}=x"], [f"{prefix}=-1"], ["a b"], ["nowhere"]):
        assert main(["--blend", str(weights), *wrong]) == 2
    assert weights.read_text() == f"3 {prefix}\n1 {other}\n"


@pytest.mark.parametrize("argv", ["--check", "x", "", "--workers 0", "--vocab-size 9"])
def test_bad_usage_is_refused(argv: str) -> None:
    with pytest.raises(SystemExit) as leave:
        main(argv.split())
    assert leave.value.code == 2


WRONG = [
    (["--tokenizer-type", "GPT2BPETokenizer"], "--vocab-file and --merge-file"),
    (["--tokenizer-type", "HuggingFaceTokenizer"], "--tokenizer-model"),
    (["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "nowhere"], "No such file"),
    (["--input", "nowhere.jsonl"], "nowhere.jsonl"),
]


@pytest.mark.parametrize(("argv", "words"), WRONG)
def test_bad_input_is_one_line(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--output-prefix", str(tmp_path / "o"), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_half_a_character_and_a_packed_file_that_is_none_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard")
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud800"}\n')
    assert convert(tmp_path / "a.jsonl", tmp_path / "o") == 2
    assert "a.jsonl:1: half of a surrogate pair" in capsys.readouterr().err
    for ending in ("gz", "zst"):
        (tmp_path / f"b.jsonl.{ending}").write_bytes(b"plain text")
        assert convert(tmp_path / f"b.jsonl.{ending}", tmp_path / "o") == 2
        assert f"b.jsonl.{ending}" in capsys.readouterr().err


def test_a_packed_file_that_is_cut_is_not_taken_for_a_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = b"".join(b'{"text": "line %d"}\n' % number for number in range(20_000))
    for ending, packed in (
        ("gz", gzip.compress(text)),
        ("zst", zstandard.ZstdCompressor().compress(text)),
    ):
        name = tmp_path / f"c.jsonl.{ending}"
        name.write_bytes(packed)
        assert convert(name, tmp_path / f"whole-{ending}") == 0
        name.write_bytes(packed[: len(packed) // 2])
        capsys.readouterr()
        assert convert(name, tmp_path / f"cut-{ending}") == 2
        assert f"c.jsonl.{ending}" in capsys.readouterr().err
