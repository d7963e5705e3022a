# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Extract the literals that every match of a regular expression contains.

A scanner for literals alone finds every candidate line and is built in a few milliseconds; building
one for the expressions themselves takes half a second.
"""

from __future__ import annotations

import re
from operator import add

TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?P=\w+\)|\(\?.|[*+?]|\{\d*,?\d*\}|.", re.DOTALL
)
_PLAIN = r"[\w ,:;'\"=/<>&%#@!~-]"
_PIECE = re.compile(rf"{_PLAIN}+(?![*+?{{])|{TOKEN.pattern}", re.DOTALL)
"""Like `TOKEN`, but keeps a run of characters without a quantifier in one piece."""
_IS_PLAIN = re.compile(_PLAIN).match
_REPEATS = frozenset("*+?")
GROUPS = ("(?:", "(?P<")
_COMMON = " etaoinsrhldcumfpgwybvkxjqz"  # most common letters first; others are rarer
_WEIGHTS = {letter: weight for weight, letter in enumerate(_COMMON)}
_MIN_LEFT = 9
_MAX_CUT = 24
_MAX_TRIGGER_CUT = 6


def literals(pattern: str) -> tuple[str, ...]:
    """Return literals of which every match contains at least one; empty if there are none."""
    return _required(_PIECE.findall(pattern), 0)[0]


def _required(tokens: list[str], at: int) -> tuple[tuple[str, ...], int]:
    """Return the literals of the alternation at `at`, and where it ends."""
    branches: list[tuple[str, ...]] = []
    best: tuple[str, ...] = ()
    size, run = 0, ""
    while at < len(tokens) and tokens[at] != ")":
        token = tokens[at]
        at += 1
        if token == "|":
            branches.append(best)
            best, size, run = (), 0, ""
            continue
        if len(token) > 1 and _IS_PLAIN(token):
            run += token
            if len(run) > size:
                best, size = (run,), len(run)
            continue
        inside: tuple[str, ...] = ()
        if token == "(" or token.startswith(GROUPS):
            inside, at = _required(tokens, at)
            at += 1
        least, at = _repeats(tokens, at)
        own = run + token[-1] if _is_literal(token) and least != 0 else ""
        if len(own) > size:
            best, size = (own,), len(own)
        if inside and least != 0 and shortest(inside) > size:
            best, size = inside, shortest(inside)
        run = own if least is None else ""
    branches.append(best)
    return (tuple(dict.fromkeys(sum(branches, ()))) if all(branches) else ()), at


def with_rarer_end(trigger: str) -> str:
    """Shorten a trigger that is one literal; false matches only cost reading the line in full."""
    tokens = TOKEN.findall(trigger)
    if not all(map(_is_literal, tokens)) or {"*", "+", "?", "|"} & set(tokens):
        return trigger
    return re.escape(with_rare_end("".join(token[-1] for token in tokens), _MAX_TRIGGER_CUT))


def with_rare_end(text: str, most: int = _MAX_CUT) -> str:
    """Drop last characters so that the text ends in rare letters.

    The scanner filters by the last bytes of a text, and `device ID` is rarer than `global rank`.
    """
    least = max(len(text) - most, _MIN_LEFT)
    if len(text) <= least:
        return text
    weights = [_WEIGHTS.get(letter, len(_COMMON)) for letter in text[: least - 2 : -1]]
    pairs = list(map(add, weights, weights[1:]))  # the last two letters first
    return text[: len(text) - pairs.index(max(pairs))]


def shortest(texts: tuple[str, ...]) -> int:
    return min(map(len, texts), default=0)


def _repeats(tokens: list[str], at: int) -> tuple[int | None, int]:
    """Return the least count of the quantifier at `at` (None without one), and what follows it."""
    token = tokens[at] if at < len(tokens) else ""
    if token not in _REPEATS and not (token[:1] == "{" and len(token) > 1):
        return None, at
    at += 1
    if at < len(tokens) and tokens[at] == "?":  # lazy
        at += 1
    lowest = {"*": "0", "?": "0", "+": "1"}.get(token) or token.strip("{}").partition(",")[0]
    return int(lowest or 0), at


def _is_literal(token: str) -> bool:
    if token[0] == "\\":
        return not token[1:].isalnum()
    return len(token) == 1 and token not in ".^$()"
