# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From the text of a catalogue file to its tables and the line of each one.

The packaged files keep to a plain layout, one key or list member per line, which is read with one
expression in a third of the time of `tomllib`; it matters since each `mwatch parse` does it.
Anything else in a file sends the whole file to `tomllib`, so the result is always TOML's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

MAX_ENTRIES = 1000

_CONTROL = r"\x00-\x08\x0a-\x1f\x7f"  # TOML allows none of these, in comments neither
_STRING = (
    rf"(?:'[^'{_CONTROL}]*'(?!')|\"[^\"\\{_CONTROL}]*\"(?!\")|"
    rf"'''(?:[^'{_CONTROL}]|'(?!''))+''')"
)
_PLAIN = re.compile(
    rf"(?:#[^{_CONTROL}]*)?$"
    rf"|(?P<key>[a-z_]+) = (?:(?P<number>[1-9][0-9]{{0,8}})|(?P<text>{_STRING})|(?P<open>\[)"
    rf"(?:(?P<only>{_STRING})\])?)$"
    rf"|    (?P<member>{_STRING}),$"
    r"|(?P<header>\[\[fault\]\])$"
    r"|(?P<close>\])$"
)
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*fault[ \t]*\]\]", re.MULTILINE)
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def tables(text: str, file: str) -> list[object]:
    """The `[[fault]]` tables of a file; `ValueError` with `file:line` when it has none."""
    document = _plain_document(text)
    if document is None:
        document = _toml_document(text, file)
    found = document.pop("fault", [])
    if document:
        stray = repr(next(iter(document)))[:60]
        raise ValueError(f"{file}:1: unknown key {stray}; keep to [[fault]] tables")
    if not isinstance(found, list) or not found:
        raise ValueError(f"{file}:1: holds no entry; write each one as a [[fault]] table")
    if len(found) > MAX_ENTRIES:
        raise ValueError(f"{file}:1: has {len(found)} entries, over {MAX_ENTRIES}; split the file")
    return found


def header_lines(text: str) -> Iterator[int]:
    """The line of each `[[fault]]`; then 1 without end, for tables that are written inline."""
    line, position = 1, 0
    for header in _HEADER.finditer(text):
        line += text.count("\n", position, header.start())
        position = header.start()
        yield line
    while True:
        yield 1


def _toml_document(text: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        said = " ".join(str(problem).split())[:200]
        place = _TOML_LINE.search(said)
        line = int(place[1]) if place else text.count("\n") + 1
        raise ValueError(f"{file}:{line}: is not TOML: {said}; correct that line") from None


def _plain_document(text: str) -> dict[str, object] | None:
    """What `tomllib` would give, or None when the text is not in the plain layout."""
    found: list[dict[str, object]] = []
    members: list[str] | None = None
    for line in text.split("\n"):
        match = _PLAIN.match(line)
        if match is None or (members is not None) != (match.lastgroup in ("member", "close")):
            return None
        if match["header"]:
            found.append({})
        elif match["member"] and members is not None:
            members.append(_unquoted(match["member"]))
        elif match["close"]:
            members = None
        elif key := match["key"]:
            if not found or key in found[-1]:
                return None
            value, members = _value(match)
            found[-1][key] = value
    return {"fault": found} if found and members is None else None


def _value(match: re.Match[str]) -> tuple[object, list[str] | None]:
    """The value of a key, and the same list again when its members are still to come."""
    if match["number"]:
        return int(match["number"]), None
    if match["text"]:
        return _unquoted(match["text"]), None
    if match["only"]:
        return [_unquoted(match["only"])], None
    begun: list[str] = []
    return begun, begun


def _unquoted(quoted: str) -> str:
    return quoted[3:-3] if quoted.startswith("'''") else quoted[1:-1]
