# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Damage to lines as transports, terminals and other writers do it, and some worse."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBERS = (
    *(
        b"nan",
        b"NAN",
        b"inf",
        b"-inf",
        b"INF",
        b"1e999",
        b"-1e999",
        b"1e-999",
        b"0",
        b"-0.0",
        b"-1",
    ),
    *(b"1_000", b"12,345", b"85.8G", b"0x1F", b"1.2.3", b"1e", b"+7", b" ", b"", b"00000012"),
    *(b"9" * 18, b"9" * 19, b"18446744073709551616", b"9" * 40, b"9" * 400, b"1" + b"0" * 5000),
    *("\u0661\u0662\u0663".encode(), "\uff11\uff12".encode(), "\u00b2".encode(), b"N/A", b"None"),
)
_JUNK = (
    *(b"\x1b[31m", b"\x1b[0m", b"\x1b[38;2;180;60;0m", b"\x1b[2K\x1b[1A", b"\x1b]0;title\x07"),
    *(b"\x1b", b"\x1b[", b"\x1b]8;;", b"\x9b31m", b"\r", b"\r\r", b"\r\n", b"\0", b"\0\0\0\0"),
    *("\u2588\u258e".encode(), b"\xe2\x96", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f"),
    *("\u2028".encode(), "\u0085".encode(), b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xa0", b"\t"),
    *(b"|", b" | ", b":", b"=", b"iteration 5/ 9 |", b" nan ", b"\n", b"\n\n", b"%", b"[", b"]: "),
)
_Mutation = Callable[[random.Random, bytes, bytes], bytes]


def _place(chance: random.Random, line: bytes) -> int:
    return chance.randrange(len(line) + 1)


def _span(chance: random.Random, line: bytes) -> tuple[int, int]:
    start = _place(chance, line)
    return start, min(len(line), start + chance.choice((1, 2, 5, 20, 100)))


def _flip(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    out = bytearray(line)
    for _ in range(min(len(out), chance.choice((1, 1, 2, 4)))):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def _delete(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    start, end = _span(chance, line)
    return line[:start] + line[end:]


def _insert(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    place = _place(chance, line)
    return line[:place] + chance.randbytes(chance.choice((1, 1, 2, 8))) + line[place:]


def _truncate(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    place = _place(chance, line)
    return line[:place] if chance.random() < 0.7 else line[place:]


def _duplicate(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    start, end = _span(chance, line)
    return line[:end] + line[start:end] * chance.choice((1, 1, 3, 50)) + line[end:]


def _glue(_chance: random.Random, line: bytes, other: bytes) -> bytes:
    return line + other


def _interleave(chance: random.Random, line: bytes, other: bytes) -> bytes:
    place = _place(chance, line)
    return line[:place] + other + line[place:]


def _junk(chance: random.Random, line: bytes, _other: bytes) -> bytes:
    place = _place(chance, line)
    return line[:place] + chance.choice(_JUNK) + line[place:]


def _renumber(chance: random.Random, line: bytes, other: bytes) -> bytes:
    numbers = list(_NUMBER.finditer(line))
    if not numbers:
        return _junk(chance, line, other)
    found = chance.choice(numbers)
    return line[: found.start()] + chance.choice(_NUMBERS) + line[found.end() :]


_MUTATIONS: tuple[_Mutation, ...] = (
    *(_flip, _delete, _insert, _truncate, _duplicate, _glue, _interleave, _junk, _junk),
    *(_renumber, _renumber),
)


def mutate(chance: random.Random, line: bytes, other: bytes) -> bytes:
    """`line`, damaged once or several times; `other` is the line of another writer."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        line = chance.choice(_MUTATIONS)(chance, line, other)
    return line


def stretch(chance: random.Random, line: bytes) -> bytes:
    """One to three bytes of `line` repeated 20,000 times: slow patterns take for ever on it."""
    start = chance.randrange(max(len(line), 1))
    end = start + chance.choice((1, 1, 2, 3))
    return line[:start] + line[start:end] * 20_000 + line[end:]
