# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which arguments Megatron's own parsers have, and what they would say of a command line.

The table was made from the releases themselves: megatron_chart/make_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RELEASES = ("core_v0.12.1", "core_v0.14.0", "core_v0.16.1", "core_v0.19.0")
_TABLE = Path(__file__).parents[2] / "megatron_chart" / "flags.tsv"


class Flag(NamedTuple):
    words: str
    """That follow: a number, `*` or `+`."""
    kind: str
    choices: frozenset[str]


def _known(release: str) -> dict[str, Flag]:
    found = {}
    for line in _TABLE.read_text("utf-8").splitlines()[1:]:
        flag, words, kind, choices, releases = line.split("\t")
        if release in releases.split(","):
            found[flag] = Flag(words, kind, frozenset(filter(None, choices.split(","))))
    return found


FLAGS = {release: _known(release) for release in RELEASES}


def pairs(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags with the words behind them; the script itself stands before the first."""
    flag = ""
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            yield flag, values
            flag, values = word, []
        else:
            values.append(word)
    yield flag, values


def complaints(words: list[str], release: str) -> list[str]:
    found = []
    for flag, values in list(pairs(words))[1:]:
        row = FLAGS[release].get(flag)
        if row is None:
            found.append(f"{flag} is unknown to {release}")
        elif not _fits(row, values):
            found.append(f"{flag} {' '.join(values)} does not fit {row}")
    return found


def _fits(row: Flag, values: list[str]) -> bool:
    enough = {"*": True, "+": len(values) >= 1}.get(row.words)
    if not (len(values) == int(row.words) if enough is None else enough):
        return False
    if row.choices and not set(values) <= row.choices:
        return False
    try:
        for each in values:
            {"int": int, "float": float}.get(row.kind, str)(each)
    except ValueError:
        return False
    return True
