# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: bytes, GPT-2's vocabulary and merges, or a Hugging Face `tokenizer.json`.

Types have Megatron's names, and nothing is downloaded. As in Megatron's old GPT2BPETokenizer,
`<|endoftext|>` in a text is ordinary text: a document cannot forge its own end. A `tokenizer.json`
itself defines which special tokens are recognized in a text.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from mwatch_gpt.data.corpus import BadInput, package

END_OF_DOCUMENT = 256
PADDING = 257
VOCABULARY = 258

END = "<|endoftext|>"
_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MOST_WORDS = 1_000_000
_LONGEST_KEPT = 200
_ABOVE_BYTES = 256


class ByteTokenizer:
    """One token per byte, one for end of document, one for padding."""

    eod = END_OF_DOCUMENT
    pad = PADDING
    vocab_size = VOCABULARY
    unique_identifiers: ClassVar[dict[str, object]] = {"class": "ByteTokenizer", "version": 1}

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [text.encode("utf-8") for text in texts]


def byte_letters() -> list[str]:
    """Return a printable letter for each byte: itself, or the next unused one above 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(_ABOVE_BYTES, 2 * _ABOVE_BYTES))
    return [chr(each if each in printable else next(others)) for each in range(_ABOVE_BYTES)]


class WordTokens(dict[str, tuple[int, ...]]):
    """Cache of each word's tokens, computed on first use; most words of a corpus are repeats."""

    def __init__(self, vocabulary: dict[str, int], ranks: dict[tuple[str, str], int]) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._ranks = ranks
        self._letters = byte_letters()

    def __missing__(self, word: str) -> tuple[int, ...]:
        parts = merged([self._letters[byte] for byte in word.encode("utf-8")], self._ranks)
        found = tuple(self._vocabulary[part] for part in parts)
        if len(word) <= _LONGEST_KEPT:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = found
        return found


def merged(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge neighbours: the pair with the lowest rank first, the leftmost among equals."""
    after = [*range(1, len(parts)), -1]
    before = list(range(-1, len(parts) - 1))
    heap: list[tuple[int, int, str, str]] = []

    def offer(left: int) -> None:
        right = after[left]
        if right >= 0 and (rank := ranks.get((parts[left], parts[right]))) is not None:
            heapq.heappush(heap, (rank, left, parts[left], parts[right]))

    for left in range(len(parts) - 1):
        offer(left)
    while heap:
        _, left, first, second = heapq.heappop(heap)
        right = after[left]
        if parts[left] != first or right < 0 or parts[right] != second:
            continue  # stale: one of the two has since been merged with another part
        parts[left], parts[right] = first + second, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        if before[left] >= 0:
            offer(before[left])
        offer(left)
    return [part for part in parts if part]


class Gpt2Tokenizer:
    """GPT-2's byte-pair encoding; words are split by the package `regex`, as in Megatron."""

    def __init__(self, vocab_file: str, merge_file: str, eod_token: str | None = None) -> None:
        regex = package("regex", "GPT2BPETokenizer")
        vocabulary = _vocabulary(vocab_file)
        self._find: Any = regex.compile(_WORDS).findall
        self._words = WordTokens(vocabulary, _ranks(merge_file, vocabulary))
        self.vocab_size = len(vocabulary)
        self.eod = vocabulary.get(eod_token or END)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        look_up, find = self._words.__getitem__, self._find
        return [list(chain.from_iterable(map(look_up, find(text)))) for text in texts]


def _vocabulary(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{path}: invalid JSON") from None
    if not isinstance(found, dict) or not all(isinstance(each, int) for each in found.values()):
        raise BadInput(f"{path}: not a table of tokens and numbers")
    missing = [letter for letter in byte_letters() if letter not in found]
    if missing:
        raise BadInput(f"{path}: has no token for {len(missing)} of 256 bytes: not GPT-2's kind")
    return found


def _ranks(path: str, vocabulary: dict[str, int]) -> dict[tuple[str, str], int]:
    """Read the merges file: a version line, then pairs, the most frequent first."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")[1:]
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{path}: not UTF-8 text") from None
    found: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        first, _, second = line.partition(" ")
        if first + second not in vocabulary or not second or " " in second:
            raise BadInput(f"{path}:{number}: not a merge of this vocabulary")
        found[first, second] = len(found)
    return found


GPT2 = "GPT2BPETokenizer"
HUGGING_FACE = "HuggingFaceTokenizer"
BYTES = "ByteTokenizer"
TYPES = (BYTES, GPT2, HUGGING_FACE)


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def eod(self) -> int | None: ...

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]: ...


class TokenizerChoice(NamedTuple):
    """Selects a tokenizer; small enough to be sent to every worker."""

    type: str = BYTES
    model: str | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    eod_token: str | None = None
    add_special_tokens: bool = False

    @property
    def files(self) -> list[Path]:
        if self.type == GPT2:
            return [Path(each) for each in (self.vocab_file, self.merge_file) if each]
        return [_tokenizer_json(self.model)] if self.type == HUGGING_FACE and self.model else []

    def fingerprint(self) -> str:
        kind = (self.type, self.eod_token, self.add_special_tokens)
        found = hashlib.sha256(repr(kind).encode())
        for path in self.files:
            found.update(_bytes(path))
        return found.hexdigest()


class _FromFile:
    def __init__(self, inner: Any, eod: int | None, *, add_special_tokens: bool) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._special = add_special_tokens
        self.eod = eod
        self.vocab_size = int(inner.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        found = self._inner.encode_batch_fast(list(texts), add_special_tokens=self._special)
        return [each.ids for each in found]


def build(choice: TokenizerChoice) -> Tokenizer:
    if choice.type == BYTES:
        return ByteTokenizer()
    if choice.type == GPT2:
        if not choice.vocab_file or not choice.merge_file:
            raise BadInput(f"{GPT2} needs --vocab-file and --merge-file")
        return Gpt2Tokenizer(choice.vocab_file, choice.merge_file, choice.eod_token)
    # The workers already run in parallel; threads in them would compete for the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _hugging_face(package("tokenizers", choice.type), choice)


def _hugging_face(library: Any, choice: TokenizerChoice) -> Tokenizer:
    if not choice.model:
        raise BadInput(f"{HUGGING_FACE} needs --tokenizer-model: a tokenizer.json or its folder")
    path = _tokenizer_json(choice.model)
    try:
        inner = library.Tokenizer.from_str(_bytes(path).decode("utf-8"))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{path}: not a tokenizer ({error})") from None
    name = choice.eod_token or _end_token(path.parent)
    found = None if name is None else inner.token_to_id(name)
    if choice.eod_token and found is None:
        raise BadInput(f"{path}: has no token {choice.eod_token!r}")
    return _FromFile(inner, found, add_special_tokens=choice.add_special_tokens)


def _tokenizer_json(model: str | None) -> Path:
    path = Path(model or "")
    return path / "tokenizer.json" if path.is_dir() else path


def _end_token(folder: Path) -> str | None:
    """Return `eos_token` from the folder's configuration: a string, or an object's `content`."""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
