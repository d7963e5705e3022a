# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One line of output: its transport prefixes, its lane and the rank that it names.

Prefixes stack (`0: [default7]:[rank7]: …`). The lane is what keeps the lines of interleaved
writers apart; only a prefix known to carry the global rank sets `rank`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PREFIX = re.compile(
    r"""(?:
      (?P<clock>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)\s
        (?:std(?:out|err)\ [FP]\ )?
        | \d\d:\d\d:\d\d\.\d+\ | std(?:out|err):\ )
      | \[rank(?P<rank>\d{1,6})\]:\ ?
      | (?P<lane>\[pod/[^\]\s]{1,200}\]\ | \[[a-z_]{1,30}\d{1,6}\]: | \[[\w.-]{1,80}:\d{1,6}\]:\ ?
        | \d{1,6}:\ | [\w.-]{1,80}-\d{1,6}:\ | \([\w.-]{1,80},?\ [^()]{0,80}pid=\d+[^()]{0,80}\)\ ?
        | [a-z]\.[\w.-]{1,80}/\d{1,6}\ | \[\d{1,9}\]\ )
    )""",
    re.X,
)
_MAX_PREFIXES = 4
_OTHER_RANK = re.compile(r"\[rank-(\d{1,6})/\d|: rank(\d{1,6})\[\d+\]\[")
_STAMP = re.compile(
    r"(?<!\d)(?:(\d{4})-(\d\d)-(\d\d)[ T_](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"|\[(\d{4})(\d\d)(\d\d) (\d\d:\d\d:\d\d)"
    r"|(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d))"
)
_STAMP_WINDOW = 120


class Line(NamedTuple):
    text: str
    """The whole line, cleaned."""
    body: str
    """The line without its transport prefixes."""
    number: int
    lane: str
    rank: int | None


def split_prefix(text: str, number: int) -> Line:
    position, lane, rank = 0, "", None
    for _ in range(_MAX_PREFIXES):
        found = _PREFIX.match(text, position)
        if not found:
            break
        position = found.end()
        if found["rank"]:
            rank = int(found["rank"])
            lane += f"[rank{rank}]"
        elif found["lane"]:
            lane += found["lane"].strip()
    if rank is None and "rank" in text and (other := _OTHER_RANK.search(text, 0, 200)):
        rank = int(other[1] or other[2])
    return Line(text, text[position:], number, lane, rank)


def stamp(text: str) -> str | None:
    """The first date and time near the start of `text`, as ISO 8601 without a zone."""
    found = _STAMP.search(text, 0, _STAMP_WINDOW)
    if not found:
        return None
    if found[1]:
        fraction = f".{found[5]}" if found[5] else ""
        return f"{found[1]}-{found[2]}-{found[3]}T{found[4]}{fraction}"
    if found[6]:
        return f"{found[6]}-{found[7]}-{found[8]}T{found[9]}"
    return f"{found[12]}-{found[10]}-{found[11]}T{found[13]}"
