# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads Megatron's index (.idx): how many documents and tokens the .bin beside it must hold."""

from __future__ import annotations

import array
import os
import struct
from typing import NamedTuple

from dataset_steps.problem import Problem

_MAGIC = b"MMIDIDX\x00\x00"
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}
"""Of one token, by the code of its type."""
_BLOCK = 1 << 20


class Counted(NamedTuple):
    documents: int
    tokens: int


def count(prefix: str) -> Counted:
    """Problem where the two files do not belong together, or are cut."""
    path = f"{prefix}.idx"
    try:
        with open(path, "rb") as file:
            if file.read(9) != _MAGIC:
                raise Problem(f"{path}: is no index of Megatron")
            version, code, sequences, entries = struct.unpack("<QBQQ", file.read(25))
            tokens = _sum(file, sequences)
        have = os.path.getsize(f"{prefix}.bin")
        length = os.path.getsize(path)
    except (OSError, struct.error) as error:
        raise Problem(f"{path}: cannot be read ({error})") from None
    if version != 1 or code not in _BYTES:
        raise Problem(f"{path}: version {version}, type {code}: unknown")
    whole = 34 + 12 * sequences + 8 * entries
    if length < whole:
        raise Problem(f"{path}: is cut ({length} bytes, {whole} are needed)")
    if have != tokens * _BYTES[code]:
        raise Problem(f"{prefix}.bin: has {have} bytes, its index says {tokens * _BYTES[code]}")
    return Counted(entries - 1, tokens)


def _sum(file: object, sequences: int) -> int:
    """Of the lengths, block by block: there may be hundreds of millions."""
    total, left = 0, sequences
    while left:
        lengths = array.array("i")
        block = file.read(4 * min(left, _BLOCK))  # type: ignore[attr-defined]
        if len(block) % 4 or not block:
            raise Problem("an index ends before its lengths do")
        lengths.frombytes(block)
        total += sum(lengths)
        left -= len(lengths)
    return total
