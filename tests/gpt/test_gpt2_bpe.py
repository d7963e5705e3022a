# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""GPT-2's encoding: against the rule written out plainly, and against Hugging Face's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.corpora import ODD, PLAIN, gpt2_files, gpt2_tables
from mwatch_gpt.data.corpus import BadInput
from mwatch_gpt.data.tokenizers import END, Gpt2Tokenizer, byte_letters, merged

VOCABULARY, MERGES = gpt2_tables()
RANKS = {pair: rank for rank, pair in enumerate(MERGES)}


def plainly_merged(parts: list[str]) -> list[str]:
    """The lowest rank of all neighbours, joined wherever it stands, until none is left."""
    while pairs := [pair for pair in pairwise(parts) if pair in RANKS]:
        best = min(pairs, key=RANKS.__getitem__)
        joined: list[str] = []
        for part in parts:
            if joined and (joined[-1], part) == best:
                joined[-1] += part
            else:
                joined.append(part)
        parts = joined
    return parts


@pytest.fixture
def tokenizer(tmp_path: Path) -> Gpt2Tokenizer:
    gpt2_files(tmp_path)
    return Gpt2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))


@given(st.text(alphabet="thearsn do", max_size=60))
def test_the_heap_joins_what_the_plain_rule_joins(word: str) -> None:
    letters = byte_letters()
    parts = [letters[byte] for byte in word.encode()]
    assert merged(list(parts), RANKS) == plainly_merged(parts)


def test_tokens_spell_the_text_again(tokenizer: Gpt2Tokenizer) -> None:
    spelling = {number: part for part, number in VOCABULARY.items()}
    back = {letter: byte for byte, letter in enumerate(byte_letters())}
    for text, ids in zip([*ODD, *PLAIN], tokenizer.encode([*ODD, *PLAIN]), strict=True):
        letters = "".join(spelling[each] for each in ids)
        assert bytes(back[letter] for letter in letters).decode() == text


def test_it_agrees_with_hugging_faces_implementation(
    tokenizer: Gpt2Tokenizer, tmp_path: Path
) -> None:
    library = pytest.importorskip("tokenizers")
    model = library.models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    theirs = library.Tokenizer(model)
    theirs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [*ODD, *PLAIN]
    assert tokenizer.encode(texts) == [each.ids for each in theirs.encode_batch(texts)]


def test_the_end_of_a_document_cannot_be_forged_by_a_text(tokenizer: Gpt2Tokenizer) -> None:
    assert tokenizer.eod == VOCABULARY[END]
    (ids,) = tokenizer.encode([END])
    assert tokenizer.eod not in ids


WRONG = [
    ("vocab.json", "{", "invalid JSON"),
    ("vocab.json", "[1]", "not a table"),
    ("vocab.json", json.dumps({"a": 1}), "not GPT-2's kind"),
    ("merges.txt", "#version\nq zz\n", r"merges\.txt:2: not a merge"),
]


@pytest.mark.parametrize(("name", "text", "words"), WRONG)
def test_files_that_are_none_are_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    gpt2_files(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=words):
        Gpt2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    with pytest.raises(BadInput, match="No such file"):
        Gpt2Tokenizer(str(tmp_path / "nowhere"), "")
