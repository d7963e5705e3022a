# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The newest iteration lines of a log as they were printed, for evidence.

Events hold numbers, not text, and most lines are never needed as evidence. A bounded number of them
is kept, so that a finding can quote its lines; an older line is shown as a summary of its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from mwatch.model.event import Event, Iteration

MAX_LINES = 512
MAX_BYTES = 2000
"""Longest part of a line that is kept."""


class PrintedLines:
    def __init__(self, file: str) -> None:
        self._file = file
        self._ended = 0
        self._rest = b""
        self._kept: dict[int, bytes] = {}

    def restart(self, ended: int = 0) -> None:
        """Start again with another or a rewritten file, from the line after line `ended`."""
        self._ended, self._rest = ended, b""
        self._kept.clear()

    def note(self, data: bytes, events: Iterable[Event]) -> None:
        """Keep the iteration lines in `data`. `events`: those that the reader found in it."""
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MAX_BYTES]
        first = self._ended + 1
        for event in events:
            if isinstance(event, Iteration) and first <= event.line < first + len(whole):
                self._kept[event.line] = whole[event.line - first][:MAX_BYTES]
        self._ended += len(whole)
        while len(self._kept) > MAX_LINES:
            del self._kept[next(iter(self._kept))]

    def text(self, file: str, line: int) -> str | None:
        """Return a line; None if it is no longer kept, or is not an iteration line."""
        found = self._kept.get(line) if file == self._file else None
        if found is None:
            return None
        from mwatch.report.log_ends import quotation  # large, and rarely needed

        return quotation(found)
