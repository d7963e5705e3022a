# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A source with the word on whether it can be seen: its readings, as observations.

A sight that is lost or found is told once, at the change. A source that fails keeps its last
words: they grow old by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mwatch.model.observation import Observed, Source, SourceStatusChange
from mwatch.model.reading import Absent, Failed, Ok, Reading

Read = Callable[[], Reading[Sequence[Observed]]]


class MonitoredSource:
    def __init__(self, name: str, stream: str, read: Read, sight: Source | None = None) -> None:
        """`sight` None: it shows nothing that a detector needs (the wrapper's own state)."""
        self.name = name
        self._stream = stream
        self._read = read
        self._sight = sight
        self.reading: Reading[Sequence[Observed]] = Absent("not read yet")
        self.read_at: float | None = None
        """When it was last read well."""
        self._told: bool | None = None

    @property
    def is_up(self) -> bool:
        return isinstance(self.reading, Ok)

    @property
    def reason(self) -> str:
        match self.reading:
            case Ok():
                return "read"
            case Absent(reason):
                return reason
            case Failed(error):
                return error

    def look(self, now: float) -> list[Observed]:
        """What is new; `now` is wall time."""
        self.reading = self._read()
        said: list[Observed] = []
        is_first = self._told is None and isinstance(self.reading, Absent)  # nothing was lost
        if self._sight is not None and self._told is not self.is_up and not is_first:
            self._told = self.is_up
            change = SourceStatusChange(self._sight, self.is_up, self.reason)
            said.append(Observed(now, self._stream, change))
        if isinstance(self.reading, Ok):
            self.read_at = now
            said.extend(self.reading.value)
        return said
