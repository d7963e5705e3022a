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

from mwatch.parse.literals import GROUPS, TOKEN, literals, shortest

LEAST_LITERAL = 6  # shorter literals turn up all over an ordinary log

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
    if shortest(literals(pattern)) < LEAST_LITERAL:
        raise ValueError(
            f"pattern {shortened(pattern)} has no literal of {LEAST_LITERAL} characters that "
            "every match contains; add fixed words of the message"
        )
    return compiled


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_constructs(pattern: str) -> None:
    for token in TOKEN.findall(pattern):
        if token.startswith("(?") and not token.startswith(GROUPS):
            kind = _KINDS.get(token[:3], "a special group")
        elif re.fullmatch(r"\\[1-9]", token):
            kind = "a backreference"
        else:
            continue
        raise ValueError(
            f"pattern {shortened(pattern)} has {kind} ({token}), which the block scanner cannot "
            "do; write the variants out"
        )
