# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a regular expression of the fault catalogue must be.

Each one is compiled twice: by `re` on one line, and by a block scanner over whole buffers, which
knows no lookaround and no backreference and needs a literal to keep its speed. What this cannot
see is whether a pattern is too broad: the examples and the list of ordinary lines are for that.
"""

from __future__ import annotations

import re
import warnings

LEAST_LITERAL = 6  # shorter literals turn up all over an ordinary log

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?P=\w+\)|\(\?.|[*+?]|\{\d*,?\d*\}|.", re.DOTALL
)
_GROUPS = ("(?:", "(?P<")
_KINDS = {
    "(?=": "a lookaround",
    "(?!": "a lookaround",
    "(?<": "a lookaround",
    "(?i": "a case-insensitive flag",
    "(?P": "a backreference",
}


def check_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern, or raises `ValueError` with what is wrong and the mend."""
    _refuse_constructs(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as problem:
        raise ValueError(
            f"pattern {shortened(pattern)} is no regular expression ({problem}); correct it"
        ) from None
    if compiled.search("") is not None:
        raise ValueError(
            f"pattern {shortened(pattern)} matches the empty text; give it a fixed part"
        )
    if _shortest(literals(pattern)) < LEAST_LITERAL:
        raise ValueError(
            f"pattern {shortened(pattern)} has no literal of {LEAST_LITERAL} characters that "
            "every match contains; add fixed words of the message"
        )
    return compiled


def literals(pattern: str) -> tuple[str, ...]:
    """Fixed texts of which every match contains at least one; empty when there are none.

    A scanner for these texts alone finds every candidate line, and is made in a few
    milliseconds where one for the expressions takes half a second.
    """
    return _required(_TOKEN.findall(pattern), 0)[0]


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_constructs(pattern: str) -> None:
    for token in _TOKEN.findall(pattern):
        if token.startswith("(?") and not token.startswith(_GROUPS):
            kind = _KINDS.get(token[:3], "a special group")
        elif re.fullmatch(r"\\[1-9]", token):
            kind = "a backreference"
        else:
            continue
        raise ValueError(
            f"pattern {shortened(pattern)} has {kind} ({token}), which the block scanner cannot "
            "do; write the variants out"
        )


def _required(tokens: list[str], at: int) -> tuple[tuple[str, ...], int]:
    """Of the alternation that begins at `at`: its literals, and where it ends."""
    branches: list[tuple[str, ...]] = []
    best: tuple[str, ...] = ()
    run = ""
    while at < len(tokens) and tokens[at] != ")":
        token = tokens[at]
        at += 1
        if token == "|":
            branches.append(best)
            best, run = (), ""
            continue
        inside: tuple[str, ...] = ()
        if token == "(" or token.startswith(_GROUPS):
            inside, at = _required(tokens, at)
            at += 1
        least, at = _repeats(tokens, at)
        own = run + token[-1] if _is_literal(token) and least != 0 else ""
        best = max(best, (own,) if own else (), inside if least != 0 else (), key=_shortest)
        run = own if least is None else ""
    branches.append(best)
    return (tuple(dict.fromkeys(sum(branches, ()))) if all(branches) else ()), at


def _shortest(texts: tuple[str, ...]) -> int:
    return min(map(len, texts), default=0)


def _repeats(tokens: list[str], at: int) -> tuple[int | None, int]:
    """The least count of the quantifier at `at`, None without one, and what follows it."""
    token = tokens[at] if at < len(tokens) else ""
    if token not in ("*", "+", "?") and not re.fullmatch(r"\{\d*,?\d*\}", token):
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
