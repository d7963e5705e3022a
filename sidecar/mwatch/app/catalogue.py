# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the fault catalogue: the packaged TOML files, then the user's own.

A user's entry replaces the packaged one of the same id. A bad entry is refused with one line,
`FILE:LINE: entry 'id': what is wrong; the mend`.

The packaged files get every check except that of their regular expressions: compiling some 300
of them costs more than all the rest of the start of `mwatch parse`, and
`tests/contract/test_catalogue_data.py` reads them with `patterns_too` once per change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path

from mwatch.app.catalogue_patterns import check_pattern, shortened
from mwatch.app.catalogue_text import header_lines, tables
from mwatch.model.fault import AvoidNode, Blame, CatalogueEntry, RestartHelps, Role

MAX_FILE_BYTES = 1 << 20
MAX_MEMBERS = 32

_TEXT_LIMIT = {"id": 40, "title": 80, "mend": 300, "runbook": 80, "source": 200}
_MEMBER_LIMIT = {"patterns": 400, "examples": 2000}
_ENUMS: dict[str, type[StrEnum]] = {
    "role": Role,
    "blame": Blame,
    "restart_helps": RestartHelps,
    "avoid_node": AvoidNode,
}
_REQUIRED = sorted([*_TEXT_LIMIT, *_ENUMS, "examples"])
_KNOWN = sorted([*_REQUIRED, "patterns", "xid"])
_MEMBERS = {key: frozenset(member.value for member in enum) for key, enum in _ENUMS.items()}

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def load(extra: Sequence[Path] = ()) -> tuple[CatalogueEntry, ...]:
    """The packaged catalogue with the entries of `extra` put over it; `ValueError` when bad."""
    entries: dict[str, CatalogueEntry] = {}
    for file, text in packaged_files():
        _add(entries, read(text, file))
    for path in extra:
        theirs = read(_user_text(path), str(path), patterns_too=True)
        entries.update({entry.id: entry for entry in theirs})
    return tuple(entries.values())


def packaged_files() -> Iterator[tuple[str, str]]:
    """Name and text of each TOML file that comes with mwatch."""
    folder = resources.files("mwatch.catalogue")
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".toml"):
            yield f"catalogue/{item.name}", item.read_text("utf-8")


def read(text: str, file: str, *, patterns_too: bool = False) -> list[CatalogueEntry]:
    """The entries of one file's text."""
    found: dict[str, CatalogueEntry] = {}
    for table, line in zip(tables(text, file), header_lines(text), strict=False):
        origin = f"{file}:{line}"
        try:
            entry = _entry(table, origin)
            if patterns_too:
                _check_patterns(entry)
        except ValueError as problem:
            name = table.get("id") if isinstance(table, dict) else None
            raise ValueError(f"{origin}: entry {shortened(name)}: {problem}") from None
        _add(found, [entry])
    return list(found.values())


def _add(entries: dict[str, CatalogueEntry], new: Iterable[CatalogueEntry]) -> None:
    for entry in new:
        if entry.id in entries:
            taken_by = entries[entry.id].origin
            raise ValueError(
                f"{entry.origin}: entry {entry.id!r}: the id is taken by {taken_by}; rename one"
            )
        entries[entry.id] = entry


def _user_text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise ValueError(
            f"{path}: cannot be read ({problem.strerror or problem}); "
            "give the path of a readable TOML file"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: is larger than 1 MiB; split it into several files")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise ValueError(f"{path}:{line}: is not UTF-8 text; save the file as UTF-8") from None


def _entry(table: object, origin: str) -> CatalogueEntry:
    if not isinstance(table, dict):
        raise ValueError("is no table; write it as a [[fault]] table")
    _check_keys(table)
    texts = {key: _text(key, table[key], limit) for key, limit in _TEXT_LIMIT.items()}
    choices = {key: _choice(key, table[key]) for key in _ENUMS}
    xid = _xid(table.get("xid"), texts["id"])
    return CatalogueEntry(
        **texts,
        patterns=_members("patterns", table["patterns"]) if xid is None else (),
        role=Role(choices["role"]),
        blame=Blame(choices["blame"]),
        restart_helps=RestartHelps(choices["restart_helps"]),
        avoid_node=AvoidNode(choices["avoid_node"]),
        examples=_members("examples", table["examples"]),
        xid=xid,
        origin=origin,
    )


def _check_keys(table: Mapping[str, object]) -> None:
    for key in table:
        if key not in _KNOWN:
            raise ValueError(f"unknown key {shortened(key)}; known are {', '.join(_KNOWN)}")
    for key in _REQUIRED:
        if key not in table:
            raise ValueError(f"key '{key}' is missing; add it")
    if ("xid" in table) == ("patterns" in table):
        raise ValueError("needs one of 'xid' and 'patterns'; keep exactly one")


def _xid(value: object, name: str) -> int | None:
    if not _ID.fullmatch(name):
        raise ValueError("the id is not in kebab-case; use a-z, 0-9 and single hyphens")
    if value is None:
        if name.startswith("xid-"):
            raise ValueError("an id that begins with 'xid-' is for an Xid; rename the entry")
        return None
    if type(value) is not int or not 1 <= value <= 9999:
        raise ValueError("xid is no whole number from 1 to 9999; write it as xid = 79")
    if name != f"xid-{value}":
        raise ValueError(f"the id of this Xid must be 'xid-{value}'; rename the entry")
    return value


def _choice(key: str, value: object) -> str:
    if not isinstance(value, str) or value not in _MEMBERS[key]:
        names = ", ".join(_ENUMS[key])
        raise ValueError(f"{key} is {shortened(value)}; use one of {names}")
    return value


def _text(key: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text; put it in quotes")
    if not value or value.isspace():
        raise ValueError(f"{key} is empty; fill it in")
    if len(value) > limit:
        raise ValueError(f"{key} has {len(value)} characters, over {limit}; shorten it")
    if not value.isprintable() and not value.replace("\t", " ").isprintable():
        raise ValueError(f"{key} holds a line break or control character; remove it")
    return value


def _members(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is no list; write {key} = ['...']")
    if not 1 <= len(value) <= MAX_MEMBERS:
        raise ValueError(f"{key} has {len(value)} members; give 1 to {MAX_MEMBERS}")
    return tuple(_text(f"a member of {key}", item, _MEMBER_LIMIT[key]) for item in value)


def _check_patterns(entry: CatalogueEntry) -> None:
    for pattern in entry.patterns:
        compiled = check_pattern(pattern)
        if not any(compiled.search(example) for example in entry.examples):
            raise ValueError(
                f"pattern {shortened(pattern)} matches no example; add a line that it matches"
            )
