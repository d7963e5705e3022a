# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was observed, numbered, for readers that come by every few seconds and want each once.

Holds the newest few thousand, fewer where they are long; whoever was away for longer is told that
something is missing. A cursor names this life of the sidecar and a number, so that one of another
life is not mistaken; whoever comes with one of another life is told all but the lines of the log
that it has. The loop adds; readers read from threads of their own.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mwatch.app.ring_cursor import NOWHERE, Cursor, Place, read_cursor
from mwatch.model.event import Arguments, Error
from mwatch.model.observation import Beat, Observed, Sign, Stored

MAX_ENTRIES = 4096
MAX_CHARACTERS = 4 << 20
"""Of all texts in them: a flood of tracebacks is no reason for more memory."""
MAX_ANSWER_BYTES = 1 << 20
_STATES = (Beat, Sign, Stored)
"""Of these only the newest matters, and that is sent anyway."""
_BLOCKS = (Arguments, Error)
"""Known when their last line is, and told by the number of their first."""


class _Entry:
    __slots__ = ("body", "characters", "number", "observed", "place")

    def __init__(self, number: int, observed: Observed, place: Place) -> None:
        self.characters = sum(len(each) for each in observed.what if isinstance(each, str))
        self.number = number
        self.observed = observed
        self.place = place
        """How far the log was told with it."""
        self.body: bytes | None = None
        """Made when somebody first asks for it: a flood that nobody reads costs nothing."""

    def is_known_at(self, place: Place) -> bool:
        return place.holds(Place(self.place.file, getattr(self.observed.what, "line", 0)))


class News(NamedTuple):
    bodies: list[bytes]
    cursor: str
    gap: bool
    after: int
    """From where on the reader does not know; 0: nothing is known to it."""


class ObservedRing:
    def __init__(
        self,
        life: str,
        encode: Callable[[Observed], bytes],
        *,
        newest: int = 0,
        place: Place = NOWHERE,
    ) -> None:
        """`life` names the sidecar, in letters and digits; `newest` is the last number that it
        has given before it was started again, and `place` how far it had told then."""
        self._life = life
        self._start = secrets.token_hex(3)
        self._before = newest
        self._encode = encode
        self._entries: deque[_Entry] = deque()
        self._characters = 0
        self._lock = threading.Lock()
        self._newest = newest
        """Also counts changes of parts that are sent as a whole."""
        self._place = place
        self._lost = newest
        """Number of the newest that is no longer here."""
        self._lost_place = place

    def add(self, observed: Observed, file: int = 0) -> None:
        """`file`: the log that a line is of."""
        if isinstance(observed.what, _STATES):
            return
        with self._lock:
            self._newest += 1
            self._place = self._place_with(observed, file)
            entry = _Entry(self._newest, observed, self._place)
            self._entries.append(entry)
            self._characters += entry.characters
            while len(self._entries) > MAX_ENTRIES or self._characters > MAX_CHARACTERS:
                lost = self._entries.popleft()
                self._lost, self._lost_place = lost.number, lost.place
                self._characters -= lost.characters

    @property
    def newest(self) -> int:
        return self._newest

    def mark(self) -> int:
        """The number of a change that is sent otherwise."""
        with self._lock:
            self._newest += 1
            return self._newest

    def after(self, cursor: str) -> News:
        """The oldest first, as much as an answer may hold; the cursor goes as far as that."""
        known = read_cursor(cursor)
        with self._lock:
            is_known = not cursor or (known is not None and self._is_ours(known))
            after = known.number if known is not None and is_known else 0
            chosen, told = self._later(after)
            newest, place = self._newest, self._place
            gap = after < self._lost or not is_known
        # A reader that was told more of this log than we have read again.
        ahead = known.place if known is not None and known.place.is_past(told) else NOWHERE
        unknown = (each for each in reversed(chosen) if not each.is_known_at(ahead))
        bodies, last = self._bodies(unknown)
        if last is not None:
            newest, place = last.number, last.place
        reached = Cursor(self._life, newest, self._start, ahead.then(place))
        return News(bodies, str(reached), gap, after)

    def _place_with(self, observed: Observed, file: int) -> Place:
        what, before = observed.what, self._place
        line = getattr(what, "line", 0)
        if not line or not file:
            return before
        if file == before.file and isinstance(what, _BLOCKS):
            return Place(file, max(line, before.line))
        return Place(file, line)

    def _later(self, after: int) -> tuple[list[_Entry], Place]:
        """The newest first; and how far the log was told before them."""
        chosen: list[_Entry] = []
        for entry in reversed(self._entries):
            if entry.number <= after:
                return chosen, entry.place
            chosen.append(entry)
        return chosen, self._lost_place

    def _bodies(self, chosen: Iterable[_Entry]) -> tuple[list[bytes], _Entry | None]:
        """With the last of them, where there are more than an answer may hold."""
        bodies: list[bytes] = []
        size, last = 0, None
        for entry in chosen:
            if entry.body is None:
                entry.body = self._encode(entry.observed)
            size += len(entry.body)
            if size > MAX_ANSWER_BYTES and bodies:
                return bodies, last
            bodies.append(entry.body)
            last = entry
        return bodies, None

    def _is_ours(self, cursor: Cursor) -> bool:
        """Else that reader gets all. A process of ours that was killed may have given numbers
        that it could not keep, and that mean something else now."""
        is_ours = not cursor.start or cursor.start == self._start
        limit = self._newest if is_ours else self._before
        return cursor.life in ("", self._life) and cursor.number <= limit
