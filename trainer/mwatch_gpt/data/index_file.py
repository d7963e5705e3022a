# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes and checks Megatron's index (`.idx`), and computes the weights of a blend of datasets.

Layout: `MMIDIDX` and two zero bytes; version 1 (8 bytes); token type code (1); number of sequences
(8); number of document entries (8); sequence lengths (int32); byte offset of each sequence in the
`.bin` (int64); for each document the number of its first sequence, then the end (int64). All
little-endian. The index is never loaded whole: there may be hundreds of millions of sequences.
"""

from __future__ import annotations

import math
import os
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, NamedTuple

from mwatch_gpt.data.corpus import BadInput

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEAD = struct.Struct("<QBQQ")
HEAD_BYTES = len(MAGIC) + _HEAD.size
CODES = {"H": 8, "i": 4}
_TOKENS = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}
"""Type code -> `array` type code. Megatron's format also has 6 and 7 for floating-point numbers,
which are never tokens."""
_PIECE = 1 << 18


class DatasetIndex(NamedTuple):
    code: int
    sequences: int
    entries: int

    @property
    def documents(self) -> int:
        return self.entries - 1

    @property
    def item_bytes(self) -> int:
        return array(_TOKENS[self.code]).itemsize

    @property
    def file_bytes(self) -> int:
        return HEAD_BYTES + 12 * self.sequences + 8 * self.entries


class IndexCheck(NamedTuple):
    problems: tuple[str, ...]
    documents: int = 0
    sequences: int = 0
    tokens: int = 0


def write(out: IO[bytes], typecode: str, lengths: Path, documents: Path) -> None:
    """Write an index from two files: lengths (int32), documents' first sequences (int64)."""
    sequences = lengths.stat().st_size // 4
    entries = documents.stat().st_size // 8
    out.write(MAGIC + _HEAD.pack(VERSION, CODES[typecode], sequences, entries))
    for piece in _pieces(lengths, "i"):
        out.write(_little(piece))
    place, size = 0, array(typecode).itemsize
    for piece in _pieces(lengths, "i"):
        starts = array("q", accumulate((size * each for each in piece), initial=place))
        place = starts.pop()
        out.write(_little(starts))
    for piece in _pieces(documents, "q"):
        out.write(_little(piece))


def _pieces(path: Path, typecode: str) -> Iterator[array[int]]:
    with path.open("rb") as file:
        while data := file.read(_PIECE * array(typecode).itemsize):
            yield array(typecode, data)


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def read_head(file: IO[bytes]) -> DatasetIndex | str:
    """Read the header of a newly opened file; return a message if it is not an index."""
    head = file.read(HEAD_BYTES)
    if head[: len(MAGIC)] != MAGIC:
        return "bad header: not an index file of Megatron"
    if len(head) < HEAD_BYTES:
        return "bad header: the file ends in it"
    version, code, sequences, entries = _HEAD.unpack(head[len(MAGIC) :])
    if version != VERSION:
        return f"bad header: version {version}, not {VERSION}"
    if code not in _TOKENS:
        return f"bad header: no type of tokens has the code {code}"
    if not entries:
        return "bad header: no entry for documents, of which even an empty one has one"
    return DatasetIndex(code, sequences, entries)


def check(prefix: str, vocabulary: int | None = None) -> IndexCheck:
    """Check both files of a dataset; the tokens only if `vocabulary` (its size) is given.

    Checking the tokens takes as long as reading the `.bin`.
    """
    try:
        with open(f"{prefix}.idx", "rb") as file:
            head = read_head(file)
            if isinstance(head, str):
                return IndexCheck((f"{prefix}.idx: {head}",))
            have = os.fstat(file.fileno()).st_size
            if have < head.file_bytes:
                cut = f"is cut: {have} bytes of {head.file_bytes}"
                return IndexCheck((f"{prefix}.idx: {cut}",))
            extra = have - head.file_bytes
            tokens, problems = _body(file, head)
        problems += [f"{extra} bytes too many at its end"] if extra else []
        found = [f"{prefix}.idx: {each}" for each in problems]
        found += _bin_problems(prefix, tokens * head.item_bytes)
        if vocabulary is not None and not found:
            found += _token_problems(prefix, head, vocabulary)
    except OSError as error:
        return IndexCheck((f"{error.filename or prefix}: {error.strerror}",))
    return IndexCheck(tuple(found), head.documents, head.sequences, tokens)


def _bin_problems(prefix: str, expected: int) -> list[str]:
    have = os.stat(f"{prefix}.bin").st_size
    if have == expected:
        return []
    word = "is cut" if have < expected else "is too long"
    return [f"{prefix}.bin: {word}: {have} bytes, its index says {expected}"]


def _token_problems(prefix: str, head: DatasetIndex, vocabulary: int) -> list[str]:
    code = _TOKENS[head.code]
    with open(f"{prefix}.bin", "rb") as file:
        first = 0
        while tokens := _read(file, code, first * head.item_bytes, _PIECE):
            for worst in (max(tokens), min(tokens)):
                if not 0 <= worst < vocabulary:
                    at = first + tokens.index(worst)
                    place = f"token {at} is {worst}"
                    return [
                        f"{prefix}.bin: {place}, and a vocabulary of {vocabulary} has none such"
                    ]
            first += len(tokens)
    return []


def _body(file: IO[bytes], head: DatasetIndex) -> tuple[int, list[str]]:
    problems: list[str] = []
    tokens = 0
    lengths_at, starts_at = HEAD_BYTES, HEAD_BYTES + 4 * head.sequences
    for first in range(0, head.sequences, _PIECE):
        count = min(_PIECE, head.sequences - first)
        lengths = _read(file, "i", lengths_at + 4 * first, count)
        starts = _read(file, "q", starts_at + 8 * first, count)
        if min(lengths) < 0 and not problems:
            problems.append(f"a sequence from {first} on has a negative length")
        expected = array("q", accumulate((head.item_bytes * n for n in lengths), initial=0))
        base = tokens * head.item_bytes
        if not all(a == b + base for a, b in zip(starts, expected, strict=False)) and not problems:
            problems.append(f"places in the .bin do not follow the lengths, from {first} on")
        tokens += sum(lengths)
    problems += _document_problems(file, head)
    return tokens, problems


def _document_problems(file: IO[bytes], head: DatasetIndex) -> list[str]:
    at, last = HEAD_BYTES + 12 * head.sequences, 0
    for first in range(0, head.entries, _PIECE):
        values = _read(file, "q", at + 8 * first, min(_PIECE, head.entries - first))
        if (first == 0 and values[0] != 0) or values[0] < last:
            return ["documents do not begin where they should"]
        if any(b < a for a, b in pairwise(values)):
            return ["documents are out of order"]
        last = values[-1]
    if last != head.sequences:
        return [f"documents end at sequence {last}, and there are {head.sequences}"]
    return []


def _read(file: IO[bytes], typecode: str, at: int, count: int) -> array[int]:
    file.seek(at)
    values = array(typecode)
    values.frombytes(file.read(count * values.itemsize))
    if sys.byteorder == "big":
        values.byteswap()
    return values


class Share(NamedTuple):
    """A dataset's weight: the given one, or else its share of all tokens."""

    prefix: str
    weight: float
    tokens: int


def shares(names: Sequence[str]) -> list[Share]:
    """Parse `PREFIX` or `PREFIX=WEIGHT` (the same form for all) and check every dataset."""
    found = [_named(name) for name in names]
    given = [weight for _, weight in found if weight is not None]
    if given and len(given) != len(found):
        raise BadInput("give a weight to every dataset, or to none")
    tokens = [_tokens(prefix) for prefix, _ in found]
    total = sum(tokens) or 1
    return [
        Share(prefix, count / total if weight is None else weight, count)
        for (prefix, weight), count in zip(found, tokens, strict=True)
    ]


def write_blend(path: Path, blended: Sequence[Share]) -> None:
    """Write the file that Megatron's `--data-args-path` reads, atomically."""
    text = "".join(f"{each.weight:.9g} {each.prefix}\n" for each in blended)
    part = path.with_name(path.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, path)


def _named(name: str) -> tuple[str, float | None]:
    prefix, is_weighted, text = name.rpartition("=")
    if not is_weighted:
        return _usable(name), None
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise BadInput(f"{name}: {text!r} is not a weight")
    return _usable(prefix), weight


def _usable(prefix: str) -> str:
    if any(char.isspace() for char in prefix):
        raise BadInput(f"{prefix!r}: Megatron cuts this file at every space")
    for ending in (".bin", ".idx"):
        prefix = prefix.removesuffix(ending)
    return prefix


def _tokens(prefix: str) -> int:
    checked = check(prefix)
    if checked.problems:
        raise BadInput(checked.problems[0])
    return checked.tokens
