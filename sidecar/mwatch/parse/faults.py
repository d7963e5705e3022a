# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that match an entry of the fault catalogue.

Benign entries beat all others, else the longest match wins: a specific entry says more of the
line than a general one. An Xid is found by its number, whether the catalogue knows it or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.parse.context import MAX_TEXT, Context
from mwatch.parse.line import Line, stamp
from mwatch.parse.literals import literals

XID_TRIGGER = r"NVRM: Xid \("
_XID = re.compile(
    r"(?:(?P<node>[\w.-]{1,80}) (?:kernel|nvidia-\w+): [^\n]{0,60}?)?NVRM: Xid "
    r"\((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{4,20})[^)\n]{0,80}\)[^\n]{0,40}?: (?P<xid>\d{1,5})\b"
)
UNKNOWN_XID = "xid-unknown"
_WINDOW = 1000
"""How far from its fixed text a pattern may reach: no line is long enough to stop the reader."""


class FaultMatcher:
    """`triggers` is what the block scanner looks for; an index into it comes back as a hit."""

    def __init__(self, catalogue: Sequence[CatalogueEntry]) -> None:
        self._xids = {entry.xid: entry for entry in catalogue if entry.xid is not None}
        candidates: dict[str, list[tuple[CatalogueEntry, str]]] = {}
        for entry in catalogue:
            for pattern in entry.patterns:
                for text in literals(pattern):
                    candidates.setdefault(text, []).append((entry, pattern))
        self._texts = list(candidates)
        self._candidates = list(candidates.values())
        self.triggers = (*map(re.escape, candidates), XID_TRIGGER)

    def may_match(self, hits: Iterable[int], block: bytes, start: int, end: int) -> bool:
        """Whether one of the patterns behind the hits fits these bytes."""
        for hit in hits:
            if hit == len(self._candidates):
                return True
            near = block.find(self._texts[hit].encode(), start, end)
            low, high = max(start, near - _WINDOW), min(end, near + _WINDOW)
            for _, pattern in self._candidates[hit]:
                in_bytes = _as_bytes(pattern)
                if in_bytes is None or in_bytes.search(block, low, high):
                    return True
        return False

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


@lru_cache(maxsize=1024)
def _as_bytes(pattern: str) -> re.Pattern[bytes] | None:
    """None for an anchored one: it may fit behind a prefix, which is not known in a block."""
    anchored = "^" in pattern.replace("[^", "")
    return None if anchored else re.compile(pattern.encode(), re.MULTILINE)


def _fault(id: str, role: Role, line: Line, context: Context) -> Fault:
    text = line.body.strip()[:MAX_TEXT]
    return Fault(
        id, None, None, text, role.value, stamp(line.text), line.rank, context.file, line.number
    )
