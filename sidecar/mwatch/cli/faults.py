# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch faults`: list the fault catalogue, explain one entry, or search the entries.

Exit codes: 0 done, 2 nothing found, bad catalogue file or bad usage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import AsJson, Catalogue, argument, option
from mwatch.cli.shared.terminal import table, write
from mwatch.errors import InputError
from mwatch.model.fault import AvoidNode, Blame, CatalogueEntry, RestartHelps, Role

WIDTH = 100

_ROLES = {
    Role.ROOT: "the cause, when nothing earlier explains it",
    Role.CASCADE: "a consequence, look for an earlier or another rank's error",
    Role.CONFIRMATION: "evidence that supports or narrows down another finding",
    Role.BENIGN: "looks like a fault but is harmless",
}
_RESTARTS = {
    RestartHelps.YES: "on the same nodes",
    RestartHelps.NO: "it fails again until it is fixed",
    RestartHelps.MAYBE: "worth one try",
    RestartHelps.ELSEWHERE: "only without this node",
}
_AVOIDANCE = {
    AvoidNode.YES: "immediately",
    AvoidNode.NO: "the node is not the cause",
    AvoidNode.REPEAT: "when it recurs on the same GPU or node within a day",
}


def faults(
    text: Annotated[
        str | None,
        argument("FAULT", "Explain an id (xid-79 or 79), a pasted log line, or find a word."),
    ] = None,
    *,
    as_json: AsJson = False,
    role: Annotated[
        Role | None, option("ROLE", "List this role only: root, cascade, confirmation or benign.")
    ] = None,
    blame: Annotated[
        Blame | None,
        option("PART", "List what blames this part only: gpu, node, fabric, storage, job or user."),
    ] = None,
    catalogue: Catalogue = None,
) -> None:
    """List the faults that mwatch knows, or explain one.

    A log line shows the entry that matches it best, and the others that match. A word shows the
    entries with that word in their id, title, patterns or fix. The column RESTART shows whether a
    restart helps: yes, no, maybe, or elsewhere (on other nodes).

    Example: mwatch faults xid-79

    Example: mwatch faults "NCCL WARN Call to connect failed : Connection timed out"

    Example: mwatch faults nccl --role root

    Example: mwatch faults --role root --blame gpu
    """
    entries = _load(catalogue or ())
    entry = None if text is None else _by_id(text, entries)
    if entry is not None:
        if role is not None or blame is not None:
            _fail("give an ID or a filter, not both")
        if as_json:
            write_json("fault", _plain(entry))
        else:
            write(_explanation(entry))
        return
    chosen: Sequence[CatalogueEntry] = [
        e for e in entries if role in (None, e.role) and blame in (None, e.blame)
    ]
    if text is None:
        shown, is_line = chosen, False
    else:
        shown, is_line = _search(text, chosen)
    if as_json:
        write_json("faults", {"faults": [_plain(each) for each in shown]})
    elif is_line or (text is not None and len(shown) == 1):
        write(_best_first(shown))
    else:
        write(_table(shown))


def _load(extra: Sequence[Path]) -> tuple[CatalogueEntry, ...]:
    from mwatch.config.catalogue import load

    try:
        return load(extra)
    except InputError as problem:
        _fail(str(problem))


def _by_id(asked: str, entries: Sequence[CatalogueEntry]) -> CatalogueEntry | None:
    name = asked.strip().lower()
    if number := re.fullmatch(r"(?:xid)?[ _-]?0*([0-9]{1,4})", name):
        name = f"xid-{number[1]}"
    return next((entry for entry in entries if entry.id == name), None)


def _search(text: str, entries: Sequence[CatalogueEntry]) -> tuple[Sequence[CatalogueEntry], bool]:
    """The entries found, and whether the text is a log line that they match."""
    from mwatch.parse.formats.failures import matching

    matches = matching(text, entries)
    if matches:
        return matches, True
    words = text.lower().split()
    named = [entry for entry in entries if words and all(map(_all_text(entry).__contains__, words))]
    if not named:
        from difflib import get_close_matches

        near = get_close_matches(text.strip().lower(), [e.id for e in entries], n=4, cutoff=0.5)
        hint = f"; similar: {', '.join(near)}" if near else ""
        _fail(f"no entry for {text[:60]!r} in the catalogue{hint}; 'mwatch faults' lists all")
    return named, False


def _all_text(entry: CatalogueEntry) -> str:
    return " ".join((entry.id, entry.title, *entry.patterns, entry.fix)).lower()


def _best_first(entries: Sequence[CatalogueEntry]) -> str:
    best, *others = entries
    more = f"\n\nIt also matches:\n\n{_table(others)}" if others else ""
    return _explanation(best) + more


def _plain(entry: CatalogueEntry) -> dict[str, object]:
    from dataclasses import asdict

    # "mend" is deprecated, until 0.3
    return {**asdict(entry), "cause": _cause(entry), "mend": entry.fix}


def _cause(entry: CatalogueEntry) -> str | None:
    """The verdict on a run that ends with it; None: it is harmless."""
    from mwatch.detect.shared.causes import cause_of

    return None if entry.role is Role.BENIGN else cause_of(entry)


def _table(entries: Sequence[CatalogueEntry]) -> str:
    head = ("ID", "ROLE", "BLAME", "RESTART", "TITLE")
    rows = [(e.id, e.role, e.blame, e.restart_helps, e.title) for e in entries]
    lines = table([head, *rows])
    return "\n".join(each if len(each) <= WIDTH else each[: WIDTH - 3] + "..." for each in lines)


def _explanation(entry: CatalogueEntry) -> str:
    what = [f"Xid {entry.xid} in the kernel log"] if entry.xid is not None else entry.patterns
    fields: list[tuple[str, Sequence[str]]] = [
        ("role", [f"{entry.role}: {_ROLES[entry.role]}"]),
        ("cause", [_cause(entry) or "none"]),
        ("blame", [entry.blame]),
        ("restart helps", [f"{entry.restart_helps}: {_RESTARTS[entry.restart_helps]}"]),
        ("avoid node", [f"{entry.avoid_node}: {_AVOIDANCE[entry.avoid_node]}"]),
        ("fix", [entry.fix]),
        ("matches", what),
        ("example", entry.examples[:1]),
        ("runbook", [f"mwatch runbook {entry.runbook}"]),
        ("source", [entry.source]),
        ("defined in", [entry.origin]),
    ]
    lines = [f"{entry.id}: {entry.title}", ""]
    for name, values in fields:
        for index, value in enumerate(values):
            lines.append(f"{name if index == 0 else '':<15}{value}")
    return "\n".join(lines)


def _fail(message: str) -> NoReturn:
    line = " ".join(f"mwatch faults: {message}".split())
    typer.echo(line.encode("ascii", "backslashreplace").decode("ascii"), err=True)
    raise typer.Exit(2)
