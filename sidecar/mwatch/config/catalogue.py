# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the fault catalogue: the packaged TOML files, then the user's own.

A user's entry replaces the packaged one of the same id. A bad entry is refused with one line,
`FILE:LINE: entry 'id': what is wrong; the fix`.

The packaged files get every check except that of their regular expressions: compiling some 300
of them costs more than all the rest of the start of `mwatch parse`, and
`tests/contract/test_catalogue_data.py` reads them with `patterns_too` once per change.

What a regular expression of the fault catalogue must be.

Each one is compiled twice: by `re` on one line, and by a block scanner over whole buffers, which
knows no lookaround and no backreference and needs a literal to keep its speed. What this cannot
see is whether a pattern is too broad: the examples and the list of ordinary lines are for that.

From the text of a catalogue file to its tables and the line of each one.

The packaged files keep to a plain layout, one key or list member per line, which is read with one
expression in a third of the time of `tomllib`; it matters since each `mwatch parse` does it.
Anything else in a file sends the whole file to `tomllib`, so the result is always TOML's.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path

from mwatch.model.fault import AvoidNode, Blame, CatalogueEntry, RestartHelps, Role
from mwatch.parse.lines.literals import GROUPS, TOKEN, literals, shortest

LEAST_LITERAL = 6  # shorter literals turn up all over an ordinary log

_KINDS = {
    "(?=": "a lookaround",
    "(?!": "a lookaround",
    "(?<": "a lookaround",
    "(?i": "a case-insensitive flag",
    "(?P": "a backreference",
}


def check_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern, or raises `ValueError` with what is wrong and the fix."""
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


MAX_FILE_BYTES = 1 << 20
MAX_MEMBERS = 32

_TEXT_LIMIT = {"id": 40, "title": 80, "fix": 300, "runbook": 80, "source": 200}
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
    if "mend" in table and "fix" not in table:
        warnings.warn(f"{origin}: key 'mend' is now called 'fix'", FutureWarning, stacklevel=2)
        table["fix"] = table.pop("mend")  # until 0.3
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
