# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was observed, numbered, for readers that come by every few seconds and want each once.

Holds the newest few thousand, fewer where they are long; whoever was away for longer is told that
something is missing. A cursor names this life of the sidecar and a number, so that one of another
life is not mistaken. The loop adds; readers read from threads of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import NamedTuple

from mwatch.model.observation import Beat, Observed, Sign, Stored

MAX_ENTRIES = 4096
MAX_CHARACTERS = 4 << 20
"""Of all texts in them: a flood of tracebacks is no reason for more memory."""
MAX_ANSWER_BYTES = 1 << 20
_STATES = (Beat, Sign, Stored)
"""Of these only the newest matters, and that is sent anyway."""


class _Entry:
    __slots__ = ("body", "characters", "number", "observed")

    def __init__(self, number: int, observed: Observed) -> None:
        self.characters = sum(len(each) for each in observed.what if isinstance(each, str))
        self.number = number
        self.observed = observed
        self.body: bytes | None = None
        """Made when somebody first asks for it: a flood that nobody reads costs nothing."""


class News(NamedTuple):
    bodies: list[bytes]
    cursor: str
    gap: bool
    after: int
    """From where on the reader does not know; 0: nothing is known to it."""


class ObservedRing:
    def __init__(self, life: str, encode: Callable[[Observed], bytes], *, newest: int = 0) -> None:
        """`life` names the sidecar, in letters and digits; `newest` is the last number that it
        has given before it was started again."""
        self._life = life
        self._encode = encode
        self._entries: deque[_Entry] = deque()
        self._characters = 0
        self._lock = threading.Lock()
        self._newest = newest
        """Also counts changes of parts that are sent as a whole."""
        self._lost = newest
        """Number of the newest that is no longer here."""

    def add(self, observed: Observed) -> None:
        if isinstance(observed.what, _STATES):
            return
        with self._lock:
            self._newest += 1
            entry = _Entry(self._newest, observed)
            self._entries.append(entry)
            self._characters += entry.characters
            while len(self._entries) > MAX_ENTRIES or self._characters > MAX_CHARACTERS:
                lost = self._entries.popleft()
                self._lost = lost.number
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
        with self._lock:
            after, is_known = self._place(cursor)
            chosen = list(takewhile(lambda each: each.number > after, reversed(self._entries)))
            newest = self._newest
            gap = after < self._lost or not is_known
        bodies, reached = self._bodies(reversed(chosen), newest)
        return News(bodies, f"{self._life}.{reached}", gap, after)

    def _bodies(self, chosen: Iterable[_Entry], newest: int) -> tuple[list[bytes], int]:
        bodies: list[bytes] = []
        size, last = 0, 0
        for entry in chosen:
            if entry.body is None:
                entry.body = self._encode(entry.observed)
            size += len(entry.body)
            if size > MAX_ANSWER_BYTES and bodies:
                return bodies, last
            bodies.append(entry.body)
            last = entry.number
        return bodies, newest

    def _place(self, cursor: str) -> tuple[int, bool]:
        """From where on is new, and whether that reader is known: one that is not gets all."""
        if not cursor:
            return 0, True
        life, dot, number = cursor.rpartition(".")
        is_number = number.isascii() and number.isdecimal() and len(number) < 20
        if not is_number or (dot and life != self._life) or int(number) > self._newest:
            return 0, False
        return int(number), True
