# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text as numbers: one token a byte, one for the end of a document, one for padding.

Nothing to download and nothing to train; any text in any language is in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

END_OF_DOCUMENT = 256
PADDING = 257
VOCABULARY = 258


class ByteTokenizer:
    """The few names that Megatron's datasets ask of a tokenizer."""

    eod = END_OF_DOCUMENT
    pad = PADDING
    vocab_size = VOCABULARY
    unique_identifiers: ClassVar[dict[str, object]] = {"class": "ByteTokenizer", "version": 1}

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [text.encode("utf-8") for text in texts]


def tokenize(text: str) -> list[int]:
    """A document, with its end."""
    return [*text.encode("utf-8"), END_OF_DOCUMENT]
