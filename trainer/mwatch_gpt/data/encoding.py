# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes lines into tokens: the work of one worker on one block.

Same rules as Megatron's preprocess_data.py: a text that is a list has one sequence per part, the
end-of-document token belongs to the last one, and a document without tokens remains a document
without a sequence. Text is not split into sentences.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mwatch_gpt.data.corpus import BadInput, TextBlock, is_json
from mwatch_gpt.data.tokenizers import BYTES, Tokenizer, TokenizerChoice, build

SMALL_VOCABULARY = 65500  # below this size Megatron writes two bytes per token
_SHOWN = 60


class EncodingOptions(NamedTuple):
    tokenizer: TokenizerChoice
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    skip_bad: bool = False


class Encoded(NamedTuple):
    tokens: bytes
    lengths: bytes  # lengths of the sequences, int32
    documents: bytes  # number of sequences per document, int32


class EncodedBlock(NamedTuple):
    parts: tuple[Encoded, ...]
    documents: int
    token_count: int  # sum over all keys
    bad: tuple[str, ...] = ()  # skipped lines, with the reason


def typecode(vocab_size: int) -> str:
    return "H" if vocab_size < SMALL_VOCABULARY else "i"


class Encoder:
    """Encodes blocks; one per worker, because a tokenizer takes a while to load."""

    def __init__(self, wanted: EncodingOptions) -> None:
        self._wanted = wanted
        self._tokenizer = build(wanted.tokenizer)
        self._code = typecode(self._tokenizer.vocab_size)
        self._end = end_of_document(self._tokenizer, wanted)

    def encode(self, path: str, data: bytes, first_line: int) -> EncodedBlock:
        """Encode a block. Raises BadInput for the first bad line, unless bad lines are skipped."""
        rows: list[list[list[str]]] = []
        bad: list[str] = []
        for number, line in enumerate(data.split(b"\n"), first_line):
            if not line.strip():
                continue
            try:
                rows.append(list(_texts(path, line, self._wanted.keys)))
            except BadInput as error:
                problem = f"{path}:{number}: {error}"
                if not self._wanted.skip_bad:
                    raise BadInput(problem) from None
                bad.append(problem)
        try:
            parts = tuple(self._encode([row[at] for row in rows]) for at in range(len(self._keys)))
        except OverflowError:
            size = self._tokenizer.vocab_size
            raise BadInput(
                f"the tokenizer of {size} tokens gives one a far larger number"
            ) from None
        tokens = sum(len(each.tokens) for each in parts) // array(self._code).itemsize
        return EncodedBlock(parts, len(rows), tokens, tuple(bad))

    def document(self, texts: list[str]) -> Encoded:
        return self._encode([texts])

    @property
    def _keys(self) -> tuple[str, ...]:
        return self._wanted.keys

    def _encode(self, documents: list[list[str]]) -> Encoded:
        flat = [text for document in documents for text in document]
        found: Iterator[Sequence[int]] = iter(self._tokenizer.encode(flat))
        tokens, lengths, counts = array(self._code), array("i"), array("i")
        for document in documents:
            before = len(lengths)
            for _ in document:
                ids = next(found)
                if len(ids):
                    tokens.extend(ids)
                    lengths.append(len(ids))
            if self._end is not None and (len(lengths) > before or self._is_bytes):
                if len(lengths) == before:
                    lengths.append(0)
                tokens.append(self._end)
                lengths[-1] += 1
            counts.append(len(lengths) - before)
        return Encoded(tokens.tobytes(), lengths.tobytes(), counts.tobytes())

    @property
    def _is_bytes(self) -> bool:
        """Whether the byte tokenizer is used, which ends every document with an end token."""
        return self._wanted.tokenizer.type == BYTES


def end_of_document(tokenizer: Tokenizer, wanted: EncodingOptions) -> int | None:
    """Return the end-of-document token, if wanted. Raises BadInput if the tokenizer has none."""
    if wanted.tokenizer.type == BYTES:
        return tokenizer.eod
    if not wanted.append_eod:
        return None
    if tokenizer.eod is None:
        raise BadInput("--append-eod: the tokenizer names no end of a document; add --eod-token")
    return tokenizer.eod


def documents(block: TextBlock, key: str) -> Iterator[str]:
    for number, line in enumerate(block.data.split(b"\n"), block.start.line):
        if line.strip():
            try:
                (texts,) = _texts(block.path, line, (key,))
            except BadInput as error:
                raise BadInput(f"{block.path}:{number}: {error}") from None
            yield "".join(texts)


def _texts(path: str, line: bytes, keys: Sequence[str]) -> Iterator[list[str]]:
    """Yield, for each key, the texts of the document in this line."""
    if not is_json(path):
        yield [line.rstrip(b"\r").decode("utf-8", "replace")]
        return
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput("not a JSON object") from None
    for key in keys:
        value = document.get(key) if isinstance(document, dict) else None
        texts: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise BadInput(f"no text under {key[:_SHOWN]!r}")
        for text in texts:
            _refuse_half_a_character(text)
        yield texts


def _refuse_half_a_character(text: str) -> None:
    """Reject half of a surrogate pair, which JSON can contain but UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput("half of a surrogate pair in the text") from None
