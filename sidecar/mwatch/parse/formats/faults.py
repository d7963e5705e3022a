# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that match an entry of the fault catalogue.

Benign entries win, then the longest match. An Xid is found by its number, in the catalogue or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.parse.lines.context import MAX_TEXT, Context
from mwatch.parse.lines.line import Line, stamp
from mwatch.parse.lines.literals import literals, with_rare_end

XID_TRIGGER = r"NVRM: Xid \("
_XID = re.compile(
    r"(?:(?P<node>[\w.-]{1,80}) (?:kernel|nvidia-\w+): [^\n]{0,60}?)?NVRM: Xid "
    r"\((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{4,20})[^)\n]{0,80}\)[^\n]{0,40}?: (?P<xid>\d{1,5})\b"
)
UNKNOWN_XID = "xid-unknown"
Search = Callable[[bytes, int, int], re.Match[bytes] | None]
_WINDOW = 1000
"""How far from its literal a pattern may reach, so that no line is too long for the reader."""


class FaultMatcher:
    """`triggers` is what the block scanner looks for; a hit is an index into it."""

    def __init__(self, catalogue: Sequence[CatalogueEntry]) -> None:
        self._xids = {entry.xid: entry for entry in catalogue if entry.xid is not None}
        candidates: dict[str, list[tuple[CatalogueEntry, str]]] = {}
        for entry in catalogue:
            for pattern in entry.patterns:
                for text in map(with_rare_end, literals(pattern)):
                    candidates.setdefault(text, []).append((entry, pattern))
        self._texts = list(candidates)
        self._candidates = list(candidates.values())
        self._in_bytes: dict[int, tuple[bytes, Sequence[Search | None]]] = {}
        self.triggers = (*map(re.escape, candidates), XID_TRIGGER)

    def may_match(self, hits: Iterable[int], block: bytes, start: int, end: int) -> bool:
        """Whether a pattern behind the hits matches these bytes."""
        for hit in hits:
            text, searches = self._in_bytes.get(hit) or self._to_bytes(hit)
            low, high = start, end
            if end - start > _WINDOW:
                near = block.find(text, start, end)
                low, high = max(start, near - _WINDOW), min(end, near + _WINDOW)
            for search in searches:
                if search is None or search(block, low, high):
                    return True
        return False

    def _to_bytes(self, hit: int) -> tuple[bytes, Sequence[Search | None]]:
        """Return the literal of the hit and its patterns as bytes; None: read the line in full."""
        if hit == len(self._candidates):
            made: tuple[bytes, Sequence[Search | None]] = (b"", (None,))
        else:
            patterns = [_as_bytes(pattern) for _, pattern in self._candidates[hit]]
            made = (self._texts[hit].encode(), patterns)
        self._in_bytes[hit] = made
        return made

    def read(self, line: Line, context: Context, hits: Iterable[int]) -> Iterable[Fault]:
        """`hits`: indices into `triggers` that the scanner saw in this line."""
        found: list[tuple[tuple[bool, int], CatalogueEntry, re.Match[str]]] = []
        for hit in hits:
            if hit == len(self._candidates):
                yield from self._xid_faults(line, context)
                continue
            near = line.text.find(self._texts[hit])
            text = line.text[max(0, near - _WINDOW) : near + _WINDOW]
            for entry, pattern in self._candidates[hit]:
                # `re` keeps the few patterns that occur compiled
                match = re.search(pattern, text) or re.search(pattern, line.body[:_WINDOW])
                if match:
                    weight = (entry.role is Role.BENIGN, match.end() - match.start())
                    found.append((weight, entry, match))
        if found:
            _, entry, match = max(found, key=itemgetter(0))
            groups = match.groupdict()
            rank = groups.get("rank")
            fault = _fault(entry.id, entry.role, line, context)
            yield fault._replace(
                node=groups.get("node"),
                gpu=groups.get("gpu"),
                rank=int(rank) if rank else line.rank,
            )

    def _xid_faults(self, line: Line, context: Context) -> Iterable[Fault]:
        for found in _XID.finditer(line.text):
            known = self._xids.get(int(found["xid"]))
            id, role = (known.id, known.role) if known else (UNKNOWN_XID, Role.ROOT)
            fault = _fault(id, role, line, context)
            yield fault._replace(node=found["node"], gpu=found["gpu"])


def _as_bytes(pattern: str) -> Search | None:
    """None for an anchored pattern: it may match after a prefix, which a block does not show."""
    anchored = "^" in pattern.replace("[^", "")
    return None if anchored else re.compile(pattern.encode(), re.MULTILINE).search


def _fault(id: str, role: Role, line: Line, context: Context) -> Fault:
    text = line.body.strip()[:MAX_TEXT]
    return Fault(
        id, None, None, text, role.value, stamp(line.text), line.rank, context.file, line.number
    )
