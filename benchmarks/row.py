# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One measurement as a row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    ours: str
    theirs: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    """None: a figure for information."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return {None: "", True: "ok", False: "MISS"}[self.met]


_TITLES = ("measurement", "mwatch", "other", "ratio", "target", "", "remark")


def table(rows: Sequence[Row]) -> str:
    cells = [_TITLES, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_TITLES))]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.1f}x"
    return (row.name, row.ours, row.theirs, ratio, row.target, row.verdict, row.note)


def as_record(row: Row) -> dict[str, object]:
    return {**asdict(row), "verdict": row.verdict}
