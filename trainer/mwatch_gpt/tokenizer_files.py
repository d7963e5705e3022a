# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from files: GPT-2's vocabulary and merges, or a Hugging Face `tokenizer.json`.

Types have Megatron's names, and nothing is downloaded. As in Megatron's old GPT2BPETokenizer,
`<|endoftext|>` in a text is ordinary text: a document cannot forge its own end. A `tokenizer.json`
is read by the package `tokenizers`; it says itself which tokens are found in a text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mwatch_gpt.bad_input import BadInput
from mwatch_gpt.gpt2_bpe import Gpt2Tokenizer
from mwatch_gpt.optional_package import package
from mwatch_gpt.tokens import ByteTokenizer

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


class Choice(NamedTuple):
    """Which tokenizer; small enough to be handed to every worker."""

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
        """Changes when any file does."""
        kind = (self.type, self.eod_token, self.add_special_tokens)
        found = hashlib.sha256(repr(kind).encode())
        for path in self.files:
            found.update(_bytes(path))
        return found.hexdigest()


class _FromFile:
    """Any tokenizer of the package `tokenizers`."""

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


def build(choice: Choice) -> Tokenizer:
    """BadInput where a file is missing or is none."""
    if choice.type == BYTES:
        return ByteTokenizer()
    if choice.type == GPT2:
        return _gpt2(choice)
    # The workers are the parallelism; threads below them would fight for the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _hugging_face(package("tokenizers", choice.type), choice)


def _gpt2(choice: Choice) -> Tokenizer:
    if not choice.vocab_file or not choice.merge_file:
        raise BadInput(f"{GPT2} needs --vocab-file and --merge-file")
    return Gpt2Tokenizer(choice.vocab_file, choice.merge_file, choice.eod_token)


def _hugging_face(library: Any, choice: Choice) -> Tokenizer:
    if not choice.model:
        raise BadInput(f"{HUGGING_FACE} needs --tokenizer-model: a tokenizer.json or its folder")
    path = _tokenizer_json(choice.model)
    try:
        inner = library.Tokenizer.from_str(_bytes(path).decode("utf-8"))
    except BadInput:
        raise
    except Exception as error:  # as above
        raise BadInput(f"{path}: is no tokenizer ({error})") from None
    name = choice.eod_token or _end_token(path.parent)
    found = None if name is None else inner.token_to_id(name)
    if choice.eod_token and found is None:
        raise BadInput(f"{path}: has no token {choice.eod_token!r}")
    return _FromFile(inner, found, add_special_tokens=choice.add_special_tokens)


def _tokenizer_json(model: str | None) -> Path:
    path = Path(model or "")
    return path / "tokenizer.json" if path.is_dir() else path


def _end_token(folder: Path) -> str | None:
    """`eos_token` of the configuration beside it: a string, or an object with `content`."""
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
