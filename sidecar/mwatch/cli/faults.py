# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch faults`: lists the fault catalogue, or explains one entry of it.

Exit codes: 0 done, 2 unknown id, bad catalogue file or bad usage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mwatch.cli.options import AsJson, Catalogue, argument, option
from mwatch.cli.terminal import table, write
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
    fault_id: Annotated[
        str | None, argument("ID", "Explain this entry: xid-79, xid79 or 79.")
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

    The column RESTART shows whether a restart helps: yes, no, maybe, or elsewhere (on other nodes).

    Example: mwatch faults xid-79

    Example: mwatch faults --role root --blame gpu
    """
    entries = _load(catalogue or ())
    if fault_id is None:
        shown = [
            entry
            for entry in entries
            if role in (None, entry.role) and blame in (None, entry.blame)
        ]
        write(json.dumps([_plain(each) for each in shown], indent=2) if as_json else _table(shown))
        return
    if role is not None or blame is not None:
        _fail("give an ID or a filter, not both")
    entry = _find(fault_id, entries)
    write(json.dumps(_plain(entry), indent=2) if as_json else _explanation(entry))


def _load(extra: Sequence[Path]) -> tuple[CatalogueEntry, ...]:
    from mwatch.config.catalogue import load

    try:
        return load(extra)
    except InputError as problem:
        _fail(str(problem))


def _find(asked: str, entries: Sequence[CatalogueEntry]) -> CatalogueEntry:
    by_id = {entry.id: entry for entry in entries}
    name = asked.strip().lower()
    if number := re.fullmatch(r"(?:xid)?[ _-]?0*([0-9]{1,4})", name):
        name = f"xid-{number[1]}"
    if name not in by_id:
        from difflib import get_close_matches

        near = get_close_matches(name, by_id, n=4, cutoff=0.5)
        hint = f"; similar: {', '.join(near)}" if near else ""
        _fail(f"no entry {asked[:60]!r} in the catalogue{hint}; 'mwatch faults' lists all")
    return by_id[name]


def _plain(entry: CatalogueEntry) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(entry), "mend": entry.fix}  # "mend" is deprecated, until 0.3


def _table(entries: Sequence[CatalogueEntry]) -> str:
    head = ("ID", "ROLE", "BLAME", "RESTART", "TITLE")
    rows = [(e.id, e.role, e.blame, e.restart_helps, e.title) for e in entries]
    lines = table([head, *rows])
    return "\n".join(each if len(each) <= WIDTH else each[: WIDTH - 3] + "..." for each in lines)


def _explanation(entry: CatalogueEntry) -> str:
    what = [f"Xid {entry.xid} in the kernel log"] if entry.xid is not None else entry.patterns
    fields: list[tuple[str, Sequence[str]]] = [
        ("role", [f"{entry.role}: {_ROLES[entry.role]}"]),
        ("blame", [entry.blame]),
        ("restart helps", [f"{entry.restart_helps}: {_RESTARTS[entry.restart_helps]}"]),
        ("avoid node", [f"{entry.avoid_node}: {_AVOIDANCE[entry.avoid_node]}"]),
        ("fix", [entry.fix]),
        ("matches", what),
        ("example", entry.examples[:1]),
        ("runbook", [f"runbooks/{entry.runbook}.md"]),
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
