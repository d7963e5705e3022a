# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small texts and tokenizers for the tests of the data tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from mwatch_gpt.data.tokenizers import END, byte_letters
from mwatch_gpt.data.tool import main

ODD = [
    "",
    " ",
    "\n\n\n",
    "naïve café — “quotes” ∑∞ 日本語 한국어 العربية हिन्दी",
    f"{END} inside {END}",
    "👩‍👩‍👧‍👦🇩🇪 \U0001f9ec",
    "\x00\x01\x7f\u2028\u2029\xa0x",
    "a" * 3000,
    "  leading and trailing  ",
    "tabs\tand\r\nline ends",
    "don't I'll we've they're 12345 3.14e-10 ½ ①",
]
PLAIN = ["the cat sat on the mat", "there and then, this or that", "hidden things and thoughts"]


@cache
def gpt2_tables(size: int = 300) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and merges of GPT-2's kind, learnt from three sentences."""
    letters = byte_letters()
    words = [[letters[b] for b in word.encode()] for text in PLAIN for word in text.split(" ")]
    words += [[letters[32], *word] for word in words]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < size - 1:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        vocabulary.setdefault("".join(best), len(vocabulary))
        words = [_joined(word, best) for word in words]
    vocabulary[END] = len(vocabulary)
    return vocabulary, merges


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(word):
        is_pair = tuple(word[at : at + 2]) == pair
        found.append("".join(pair) if is_pair else word[at])
        at += 2 if is_pair else 1
    return found


def gpt2_files(folder: Path) -> list[str]:
    """Written, as the flags of the tool."""
    vocabulary, merges = gpt2_tables()
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return [
        *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(folder / "vocab.json")),
        *("--merge-file", str(folder / "merges.txt")),
    ]


def json_lines(path: Path, texts: Iterable[Any], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts), "utf-8")
    return path


def convert(source: Path, prefix: Path, *flags: str, workers: int = 1) -> int:
    common = ["--input", str(source), "--output-prefix", str(prefix), "--workers", str(workers)]
    return main([*common, *flags])


def both(prefix: Path, key: str = "text") -> tuple[bytes, bytes]:
    """The bytes of a dataset."""
    stem = f"{prefix}_{key}_document"
    return Path(f"{stem}.bin").read_bytes(), Path(f"{stem}.idx").read_bytes()


def many(count: int) -> Sequence[str]:
    return [f"{PLAIN[n % 3]} {n} {ODD[n % len(ODD)][:40]}" for n in range(count)]
