# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Both files are those that Megatron-core's own builder writes of the same tokens.

Megatron-LM's preprocess_data.py feeds that builder; docs/data.md says how the script itself was
compared. The rules that the expected tokens follow are the script's.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpt.corpora import ODD, PLAIN, both, convert, gpt2_files, json_lines, many
from gpt.launch import Nursery
from mwatch_gpt.data.tokenizers import Gpt2Tokenizer
from mwatch_gpt.data.tool import main

DOCUMENTS: list[Any] = [*ODD, *PLAIN, ["one", "", "two"], [], ["", ""], *many(200)]


def by_megatron(nursery: Nursery, folder: Path, documents: Any, dtype: str) -> tuple[bytes, bytes]:
    """What its builder writes of documents of sequences of tokens."""
    (folder / "documents.json").write_text(json.dumps(documents))
    prefix, log = folder / "theirs_text_document", folder / "builder.log"
    argv = [str(folder / "documents.json"), str(prefix), dtype]
    code = nursery.wait(nursery.start("megatron-builder", argv, {}, log), 25)
    assert code == 0, log.read_text()
    return both(folder / "theirs")


def sequences(encode: Any, document: Any, end: int | None) -> list[list[int]]:
    """As the script does it: no empty sequence, the end on the last one, if there is one."""
    texts = document if isinstance(document, list) else [document]
    found = [list(ids) for ids in encode(texts) if len(ids)]
    if found and end is not None:
        found[-1].append(end)
    return found


@pytest.mark.parametrize("flags", [[], ["--append-eod"]])
def test_gpt2(nursery: Nursery, tmp_path: Path, flags: list[str]) -> None:
    files = gpt2_files(tmp_path)
    source = json_lines(tmp_path / "a.jsonl", DOCUMENTS)
    assert convert(source, tmp_path / "ours", *files, *flags) == 0
    tokenizer = Gpt2Tokenizer(files[3], files[5])
    end = tokenizer.eod if flags else None
    expected = [sequences(tokenizer.encode, each, end) for each in DOCUMENTS]
    assert both(tmp_path / "ours") == by_megatron(nursery, tmp_path, expected, "uint16")


@pytest.mark.parametrize(("size", "dtype"), [(400, "uint16"), (70_000, "int32")])
def test_a_tokenizer_of_hugging_face_small_and_large(
    nursery: Nursery, tmp_path: Path, size: int, dtype: str
) -> None:
    library = pytest.importorskip("tokenizers")
    vocabulary = {f"w{n}": n for n in range(size - 2)} | {"<unk>": size - 2, "</s>": size - 1}
    inner = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    inner.enable_truncation(2)  # a tokenizer's own limit is no limit for a document
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    texts = [f"w{n} w{n * 7 % (size - 2)} other" for n in range(50)]
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tmp_path)]
    source = json_lines(tmp_path / "a.jsonl", texts)
    assert convert(source, tmp_path / "o", *flags, "--append-eod") == 0
    unknown, end = size - 2, size - 1
    expected = [[[n, n * 7 % (size - 2), unknown, end]] for n in range(50)]
    assert both(tmp_path / "o") == by_megatron(nursery, tmp_path, expected, dtype)


def test_packed_input_several_files_and_workers_change_nothing(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    files = [*gpt2_files(tmp_path), "--append-eod"]
    plain = json_lines(tmp_path / "a.jsonl", DOCUMENTS)
    assert convert(plain, tmp_path / "plain", *files) == 0
    data = plain.read_bytes()
    cut = data.index(b"\n", len(data) // 2) + 1
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data[:cut]))
    # Two frames, cut in the middle of a line, as parallel tools write them.
    frames = [zstandard.ZstdCompressor().compress(part) for part in (data[cut:-99], data[-99:])]
    (tmp_path / "c.jsonl.zst").write_bytes(b"".join(frames))
    second = str(tmp_path / "c.jsonl.zst")
    source = tmp_path / "b.jsonl.gz"
    inputs = ["--input", str(source), second, "--output-prefix", str(tmp_path / "packed")]
    assert main([*inputs, *files, "--workers", "2"]) == 0
    assert both(tmp_path / "packed") == both(tmp_path / "plain")


def test_every_key_gets_its_own_dataset(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"a{n}", "title": f"b{n}"}) for n in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert convert(tmp_path / "a.jsonl", tmp_path / "o", "--json-keys", "text", "title") == 0
    for key, letter in (("text", "a"), ("title", "b")):
        json_lines(tmp_path / f"{key}.jsonl", [f"{letter}{n}" for n in range(9)])
        assert convert(tmp_path / f"{key}.jsonl", tmp_path / key) == 0
        assert both(tmp_path / "o", key) == both(tmp_path / key)
