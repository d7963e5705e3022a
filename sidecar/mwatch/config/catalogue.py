# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Load the fault catalogue: the packaged TOML files, then the user's own.

A user's entry replaces the packaged one of the same id. The error for an invalid entry is one line:
`FILE: line LINE: entry 'id': what is wrong; the fix`.

The regular expressions of the packaged files are not compiled here: compiling some 300 of them
takes longer than the rest of the start of `mwatch parse`. `tests/contract/test_catalogue_data.py`
checks them with `patterns_too`.

A pattern is compiled twice: by `re` for single lines, and by a block scanner for whole buffers. The
scanner supports neither lookaround nor backreferences and needs a literal to be fast. This module
does not detect patterns that are too broad; the examples and the list of ordinary lines do.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mwatch.config import loader
from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.model.fault import AvoidNode, Blame, CatalogueEntry, RestartHelps, Role
from mwatch.parse.grammar import Grammar
from mwatch.parse.lines.literals import GROUPS, TOKEN, literals, shortest

MAX_ENTRIES = 1000
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*fault[ \t]*\]\]", re.MULTILINE)
_LINE = r"\A(?=.*\S)[^\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]+\Z"


def _line(limit: int) -> Any:
    words = f"a line of 1 to {limit} printable characters"
    return Annotated[str, Meta(max_length=limit, pattern=_LINE, description=words)]


def _lines(limit: int, what: str) -> Any:
    words = f"a list of 1 to 32 {what}, each a line of 1 to {limit} printable characters"
    member = Annotated[str, Meta(max_length=limit, pattern=_LINE)]
    return Annotated[tuple[member, ...], Meta(min_length=1, max_length=32, description=words)]


_TYPES: dict[str, Any] = {
    "id": Annotated[
        str,
        Meta(
            max_length=40,
            pattern=r"\A[a-z0-9]+(?:-[a-z0-9]+)*\Z",
            description="at most 40 characters in kebab-case: a-z, 0-9 and single hyphens",
        ),
    ],
    "title": _line(80),
    "role": Role,
    "blame": Blame,
    "restart_helps": RestartHelps,
    "avoid_node": AvoidNode,
    "fix": _line(300),
    "runbook": _line(80),
    "source": _line(200),
    "examples": _lines(2000, "examples"),
}
_CHOICE: dict[str, Any] = {
    "patterns": _lines(400, "regular expressions"),
    "xid": Annotated[int, Meta(ge=1, le=9999, description="a whole number from 1 to 9999")] | None,
    "cause": Cause | None,
}
_ALL = _TYPES | _CHOICE
_Table = msgspec.defstruct(
    "_Table",
    [
        *_TYPES.items(),
        ("patterns", _CHOICE["patterns"], ()),
        ("xid", _CHOICE["xid"], None),
        ("cause", _CHOICE["cause"], None),
    ],
    forbid_unknown_fields=True,
)

_NO_FAULT = (Cause.HEALTHY, Cause.FINISHED, Cause.UNKNOWN, Cause.BLIND)

LEAST_LITERAL = 6  # in characters; shorter literals are common in ordinary logs

_KINDS = {
    "(?=": "a lookaround",
    "(?!": "a lookaround",
    "(?<": "a lookaround",
    "(?i": "a case-insensitive flag",
    "(?P": "a backreference",
}


def check_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; raises InputError with the problem and the fix."""
    _refuse_constructs(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as problem:
        raise InputError(
            f"pattern {shortened(pattern)} is not a valid regular expression ({problem})"
        ) from None
    if compiled.search("") is not None:
        raise InputError(
            f"pattern {shortened(pattern)} matches the empty text; give it a fixed part"
        )
    if shortest(literals(pattern)) < LEAST_LITERAL:
        raise InputError(
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
        raise InputError(
            f"pattern {shortened(pattern)} has {kind} ({token}), which the block scanner cannot "
            "do; write the variants out"
        )


def tables(text: str, file: str) -> list[Any]:
    """The `[[fault]]` tables of a file; raises InputError with the line."""
    document = loader.parse_toml(text, file)
    found = document.pop("fault", [])
    if document:
        stray = repr(next(iter(document)))[:60]
        raise InputError(f"{file}: line 1: unknown key {stray}; keep to [[fault]] tables")
    if not isinstance(found, list) or not found:
        raise InputError(f"{file}: line 1: holds no entry; write each one as a [[fault]] table")
    if len(found) > MAX_ENTRIES:
        raise InputError(
            f"{file}: line 1: has {len(found)} entries, over {MAX_ENTRIES}; split the file"
        )
    return found


def header_lines(text: str) -> Iterator[int]:
    """The line number of each `[[fault]]` header, then 1 forever, for inline tables."""
    line, position = 1, 0
    for header in _HEADER.finditer(text):
        line += text.count("\n", position, header.start())
        position = header.start()
        yield line
    while True:
        yield 1


def load(extra: Sequence[Path] = ()) -> tuple[CatalogueEntry, ...]:
    """The packaged catalogue, with the entries of the files `extra` on top. Raises InputError."""
    entries: dict[str, CatalogueEntry] = {}
    for file, text in packaged_files():
        _add(entries, read(text, file))
    for path in extra:
        theirs = read(loader.read_text(path), str(path), patterns_too=True)
        entries.update({entry.id: entry for entry in theirs})
    return tuple(entries.values())


def with_grammar(extra: Sequence[Path] = ()) -> tuple[dict[str, CatalogueEntry], Grammar]:
    """The entries by id, and the grammar that finds them in a log. Raises InputError."""
    return _built(extra) if extra else _packaged()


@contextmanager
def compiled_meanwhile() -> Iterator[None]:
    """Load the packaged catalogue, and compile its grammar in a thread while the body runs.

    Compiling releases the GIL, so with a second core the imports of a command run in parallel and
    do not delay its start. Garbage collection is off meanwhile, because imported objects stay.
    """
    gc.disable()
    try:
        _, grammar = _packaged()
        thread = Thread(target=grammar.compile, name="grammar")
        thread.start()
        try:
            yield
        finally:
            thread.join()
    finally:
        gc.freeze()
        gc.enable()


@cache
def _packaged() -> tuple[dict[str, CatalogueEntry], Grammar]:
    """Cached: loading takes a tenth of a second, and the result is the same for every run."""
    return _built(())


def _built(extra: Sequence[Path]) -> tuple[dict[str, CatalogueEntry], Grammar]:
    entries = load(extra)
    return {entry.id: entry for entry in entries}, Grammar(entries, None)


def packaged_files() -> Iterator[tuple[str, str]]:
    """Name and text of each packaged TOML file."""
    folder = resources.files("mwatch.catalogue")
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".toml"):
            yield f"catalogue/{item.name}", item.read_text("utf-8")


def read(text: str, file: str, *, patterns_too: bool = False) -> list[CatalogueEntry]:
    found: dict[str, CatalogueEntry] = {}
    for table, line in zip(tables(text, file), header_lines(text), strict=False):
        origin = f"{file}:{line}"
        try:
            entry = _entry(table, origin)
            if patterns_too:
                _check_patterns(entry)
        except InputError as problem:
            name = table.get("id") if isinstance(table, dict) else None
            raise InputError(f"{file}: line {line}: entry {shortened(name)}: {problem}") from None
        _add(found, [entry])
    return list(found.values())


def _add(entries: dict[str, CatalogueEntry], new: Iterable[CatalogueEntry]) -> None:
    for entry in new:
        if entry.id in entries:
            taken_by = entries[entry.id].origin
            file, _, line = entry.origin.rpartition(":")
            where = f"{file}: line {line}: entry {entry.id!r}"
            raise InputError(f"{where}: the id is taken by {taken_by}; rename one")
        entries[entry.id] = entry


def _entry(table: Any, origin: str) -> CatalogueEntry:
    if not isinstance(table, dict):
        raise InputError("is not a table; write it as a [[fault]] table")
    old = "mend"  # until 0.3
    if old in table and "fix" not in table:
        warnings.warn(f"{origin}: key {old!r} is now called 'fix'", FutureWarning, stacklevel=2)
        table["fix"] = table.pop(old)
    if ("xid" in table) == ("patterns" in table):
        raise InputError("needs one of 'xid' and 'patterns'; keep exactly one")
    try:
        checked = msgspec.convert(table, _Table)
    except ValueError as error:
        _explain(table)
        raise InputError(str(error)) from None
    entry = CatalogueEntry(**msgspec.structs.asdict(checked), origin=origin)
    _check_id(entry)
    if entry.cause in _NO_FAULT:
        raise InputError(
            f"cause {entry.cause.value!r} belongs to runs without a fault; name another, or none"
        )
    return entry


def _explain(table: dict[str, Any]) -> None:
    """Raise InputError for the first invalid value, with what was expected."""
    for key, value in table.items():
        loader.checked(value, _ALL.get(key) or loader.unknown(key, _ALL), key)
    for key in sorted(_TYPES.keys() - table.keys()):
        raise InputError(f"key {key!r} is missing; add it")


def _check_id(entry: CatalogueEntry) -> None:
    if entry.xid is None and entry.id.startswith("xid-"):
        raise InputError("an id that begins with 'xid-' is for an Xid; rename the entry")
    if entry.xid is not None and entry.id != f"xid-{entry.xid}":
        raise InputError(f"the id of this Xid must be 'xid-{entry.xid}'; rename the entry")


def _check_patterns(entry: CatalogueEntry) -> None:
    for pattern in entry.patterns:
        compiled = check_pattern(pattern)
        if not any(compiled.search(example) for example in entry.examples):
            raise InputError(
                f"pattern {shortened(pattern)} matches no example; add a line that it matches"
            )
