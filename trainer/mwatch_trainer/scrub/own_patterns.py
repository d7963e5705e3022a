# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own patterns for secrets; rejects patterns that could run practically forever.

Python's `re` cannot be interrupted and blocks all threads, including the one that forwards signals
to the trainer. So a pattern is rejected if the same text can be divided between its repeats in many
ways: a repeat inside a repeat, `(x+x+)+`, or a repeat after another one of the same characters,
`.*a.*b`. Accepted patterns take at most quadratic time and are applied to windows of a few KiB.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from functools import lru_cache
from typing import Any, Iterator, NamedTuple, Pattern

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # before Python 3.11
        import sre_parse as parser

VARIABLE = "MWATCH_SCRUB"
_WINDOW_BYTES = 2048
_OVERLAP_BYTES = 512
_SHORT_REPEAT, _LONG_REPEAT = 4, 64
_MAX_WEIGHT = 2  # at most one long repeat or two bounded ones over the same characters
_ALL = frozenset(range(256))
_MAX_ITEMS = 512


def compiled(pattern: str) -> Pattern[bytes]:
    """Compile a user's pattern. Raises ValueError."""
    data = pattern.encode("utf-8", "surrogateescape")
    try:
        found = re.compile(data)
        tree = parser.parse(data)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from None
    if _is_slow(_flat(tree)):
        raise ValueError(
            f"{pattern!r} could take for ever: a repeat inside or after another repeat of the same"
            " characters; bound it, as in [a-z]{1,32}, or name the characters between"
        )
    return found


def patterns_in(text: str) -> list[str]:
    """Return the patterns in the variable's value, one per line."""
    return [each.strip() for each in text.split("\n") if each.strip()]


@lru_cache(maxsize=4)
def environment_patterns(text: str) -> tuple[Pattern[bytes], ...]:
    """Compile the variable's patterns, skipping invalid ones: `mwatch-run` reports those."""
    found = []
    for each in patterns_in(text):
        with contextlib.suppress(ValueError):
            found.append(compiled(each))
    return tuple(found)


def windows(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield overlapping windows: a match shorter than the overlap is whole in one of them."""
    begin = 0
    while True:
        end = min(begin + _WINDOW_BYTES, len(data))
        yield begin, end
        if end == len(data):
            return
        begin = end - _OVERLAP_BYTES


class _Nested(Exception):
    """The pattern has a repeat inside a repeat, or an element that cannot be analyzed."""


class _Item(NamedTuple):
    chars: frozenset[int]
    weight: int  # 2: a long repeat, 1: a bounded one
    may_be_absent: bool


def _flat(tree: Any) -> list[_Item] | None:
    """Return the pattern's items in order, or None if a repeat is inside a repeat."""
    items: list[_Item] = []
    try:
        _collect(tree, items, is_repeated=False)
    except _Nested:
        return None
    return items


def _collect(tree: Any, items: list[_Item], *, is_repeated: bool) -> None:
    for operation, argument in tree:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, inner = argument
            weight = 2 if int(most) > _LONG_REPEAT else int(int(most) - least > _SHORT_REPEAT)
            if is_repeated and most != least:
                raise _Nested
            inside: list[_Item] = []
            _collect(inner, inside, is_repeated=is_repeated or int(most) > 1)
            chars = frozenset(char for each in inside for char in each.chars)
            items.append(_Item(chars, weight, least == 0))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            inner = argument[-1] if name == "SUBPATTERN" else argument
            _collect(inner, items, is_repeated=is_repeated)
        elif name == "BRANCH":
            _branches(argument[1], items, is_repeated=is_repeated)
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            raise _Nested
        elif name in ("ASSERT", "ASSERT_NOT"):
            _collect(argument[1], [], is_repeated=is_repeated)
        elif name != "AT":
            items.append(_Item(_characters(name, argument), 0, False))
        if len(items) > _MAX_ITEMS:
            raise _Nested


def _branches(trees: Any, items: list[_Item], *, is_repeated: bool) -> None:
    """Treat alternatives as one item of all their characters, repeated if any of them is."""
    chars: set[int] = set()
    weight = 0
    for each in trees:
        inside: list[_Item] = []
        _collect(each, inside, is_repeated=is_repeated)
        if _is_slow(inside):
            raise _Nested
        chars.update(char for item in inside for char in item.chars)
        weight = max([weight, *(item.weight for item in inside)])
    items.append(_Item(frozenset(chars), weight, False))


def _characters(name: str, argument: Any) -> frozenset[int]:
    if name == "LITERAL":
        return frozenset(_both_cases({int(argument)}))
    if name == "NOT_LITERAL":
        return _ALL - {int(argument)}
    if name != "IN":
        return _ALL
    found: set[int] = set()
    is_negated = False
    for kind, value in argument:
        if str(kind) == "NEGATE":
            is_negated = True
        elif str(kind) == "LITERAL":
            found.add(value)
        elif str(kind) == "RANGE":
            found.update(range(value[0], value[1] + 1))
        else:
            found.update(_category(str(value)))
    return _ALL - found if is_negated else frozenset(_both_cases(found))


def _both_cases(chars: set[int]) -> set[int]:
    data = bytes(each for each in chars if each < 256)
    return {*data.lower(), *data.upper()}


@lru_cache(maxsize=16)
def _category(name: str) -> frozenset[int]:
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}.get(name.rpartition("_")[2], "")
    if not letter:
        return _ALL
    one = re.compile(b"\\" + (letter.upper() if "NOT" in name else letter).encode())
    return frozenset(each for each in _ALL if one.match(bytes([each])))


def _is_slow(items: list[_Item] | None) -> bool:
    """Whether a long repeat is followed by another one that can match the same characters."""
    if items is None:
        return True
    for at, item in enumerate(items):
        weight = item.weight
        for other in items[at + 1 :] if weight else ():
            overlaps = not item.chars.isdisjoint(other.chars)
            weight += other.weight if overlaps else 0
            if weight > _MAX_WEIGHT:
                return True
            if not other.may_be_absent and not overlaps:
                break
    return False
