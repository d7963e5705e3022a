# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Buffers observations for clients that poll every few seconds, and sends each of them once.

The buffer holds the newest few thousand observations; an answer to a client that was away for
longer has a gap, and says so. A cursor holds the identity ("life") of the sidecar, a number, and a
place in the log. A sidecar that restarted and lost its state learns from the cursor which lines the
client already has.

How far the log was sent is also saved on the volume: a restarted sidecar reads the log from the
start to rebuild its state, but must not send those lines again, because iterations that go back
look like a restart of the training.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mwatch import json_codec
from mwatch.model.event import Arguments, Error
from mwatch.model.observation import Beat, Observed, Sign, StoredCheckpoints
from mwatch.runtime.files import replace_file
from mwatch_trainer.contract import VERSION, read_json

_MAX_DIGITS = 19


class LogPlace(NamedTuple):
    """How far a log was sent."""

    file: int
    """Inode of the log; 0 if nothing was printed yet."""
    line: int

    def holds(self, other: LogPlace) -> bool:
        return 0 < other.line <= self.line and other.file == self.file

    def is_past(self, other: LogPlace) -> bool:
        """Return whether it is further than `other`; another file counts as further."""
        return self.file != 0 and (self.file != other.file or self.line > other.line)

    def then(self, other: LogPlace) -> LogPlace:
        """Return the place after both were sent, `other` last."""
        if other.file == self.file:
            return max(self, other)
        return other if other.file else self


NOWHERE = LogPlace(0, 0)


class Cursor(NamedTuple):
    life: str
    """Identity of the sidecar, kept over restarts; empty matches any."""
    number: int
    start: str = ""
    """The process of that sidecar that issued the cursor."""
    place: LogPlace = NOWHERE

    def __str__(self) -> str:
        if not self.place.file:
            return f"{self.life}.{self.number}"
        place = f"{self.start}-{self.place.file}-{self.place.line}"
        return f"{self.life}.{place}.{self.number}"


def read_cursor(text: str) -> Cursor | None:
    rest, _, last = text.rpartition(".")
    number = _whole(last)
    if number is None:
        return None
    life, dot, place = rest.partition(".")
    if not dot:
        return Cursor(life, number)
    start, *numbers = place.split("-")
    known = [each for each in map(_whole, numbers) if each is not None]
    return (
        Cursor(life, number, start, LogPlace(*known)) if len(known) == len(numbers) == 2 else None
    )


def _whole(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


MAX_ENTRIES = 2048
MAX_CHARACTERS = 4 << 20
"""Limit for the texts of all entries, which bounds memory in a flood of tracebacks."""
MAX_ANSWER_BYTES = 1 << 20
_STATES = (Beat, Sign, StoredCheckpoints)
"""Not buffered: only the newest of each matters, and every snapshot includes it."""
_BLOCKS = (Arguments, Error)
"""Events of several lines: complete at the last line, and numbered by the first."""


class _Entry:
    __slots__ = ("_body", "_observed", "characters", "line", "number", "place")

    def __init__(self, number: int, observed: Observed, place: LogPlace) -> None:
        self.characters = sum(len(each) for each in observed.what if isinstance(each, str))
        self.number = number
        self.place = place
        self.line = getattr(observed.what, "line", 0)
        self._observed: Observed | None = observed
        self._body = b""

    def body(self, encode: Callable[[Observed], bytes]) -> bytes:
        """Encode at the first request, and drop the object, which is larger."""
        observed = self._observed
        if observed is not None:  # else already encoded; two threads may both do it
            self._body = encode(observed)
            self._observed = None
        return self._body

    def is_known_at(self, place: LogPlace) -> bool:
        return place.holds(LogPlace(self.place.file, self.line))


class EventPage(NamedTuple):
    bodies: list[bytes]
    cursor: str
    gap: bool
    after: int
    """The last number that the client already has; 0 if none."""
    reached: int = 0
    """The last number that the client has after this page."""


class EventBuffer:
    def __init__(
        self,
        life: str,
        encode: Callable[[Observed], bytes],
        *,
        newest: int = 0,
        place: LogPlace = NOWHERE,
    ) -> None:
        """`life`: identity of the sidecar, in letters and digits. `newest`: the last number issued
        before a restart. `place`: how far the log was sent by then."""
        self._life = life
        self._start = secrets.token_hex(3)
        self._before = newest
        self._encode = encode
        self._entries: deque[_Entry] = deque()
        self._characters = 0
        self._lock = threading.Lock()
        self._newest = newest
        """Also counts changes of parts, which are sent whole."""
        self._place = place
        self._lost = newest
        self._lost_place = place

    def add(self, observed: Observed, file: int = 0) -> None:
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
        """Assign a number to a change of a part, which is sent whole."""
        with self._lock:
            self._newest += 1
            return self._newest

    def after(self, cursor: str) -> EventPage:
        """Return the events after a cursor, oldest first, up to the size limit of an answer."""
        known = read_cursor(cursor)
        with self._lock:
            is_known = not cursor or (known is not None and self._is_ours(known))
            after = known.number if known is not None and is_known else 0
            chosen, known_place = self._later(after)
            newest, place = self._newest, self._place
            gap = after < self._lost or not is_known
        # After a restart, the client may have more of this log than this process has read again.
        ahead = known.place if known is not None and known.place.is_past(known_place) else NOWHERE
        unknown = (each for each in reversed(chosen) if not each.is_known_at(ahead))
        bodies, last = self._bodies(unknown)
        if last is not None:
            newest, place = last.number, last.place
        reached = Cursor(self._life, newest, self._start, ahead.then(place))
        return EventPage(bodies, str(reached), gap, after, newest)

    def _place_with(self, observed: Observed, file: int) -> LogPlace:
        what, before = observed.what, self._place
        line = getattr(what, "line", 0)
        if not line or not file:
            return before
        if file == before.file and isinstance(what, _BLOCKS):
            return LogPlace(file, max(line, before.line))
        return LogPlace(file, line)

    def _later(self, after: int) -> tuple[list[_Entry], LogPlace]:
        """Return the entries after a number, newest first, and the place before them."""
        chosen: list[_Entry] = []
        for entry in reversed(self._entries):
            if entry.number <= after:
                return chosen, entry.place
            chosen.append(entry)
        return chosen, self._lost_place

    def _bodies(self, chosen: Iterable[_Entry]) -> tuple[list[bytes], _Entry | None]:
        """Encode entries; also return the last one that fits, if some do not."""
        bodies: list[bytes] = []
        size, last = 0, None
        for entry in chosen:
            body = entry.body(self._encode)
            size += len(body)
            if size > MAX_ANSWER_BYTES and bodies:
                return bodies, last
            bodies.append(body)
            last = entry
        return bodies, None

    def _is_ours(self, cursor: Cursor) -> bool:
        """Return whether this buffer issued the cursor. A process that was killed may have issued
        numbers that it did not save, and that have been assigned again since."""
        is_ours = not cursor.start or cursor.start == self._start
        limit = self._newest if is_ours else self._before
        return cursor.life in ("", self._life) and cursor.number <= limit


NAME = "sidecar-cursor.json"
_MAX_LIFE = 32


class BufferCursor(NamedTuple):
    life: str
    newest: int
    file: int
    """Inode of the log; 0 if there was none."""
    line: int


class CursorFile:
    def __init__(self, volume: Path) -> None:
        self._path = str(volume / NAME)
        self._last = self._load() or BufferCursor(secrets.token_hex(6), 0, 0, 0)
        self.began = self._last
        """The last cursor that the previous process saved."""
        self._line = self._last.line
        self._is_old = self._last.file != 0

    def is_old(self, observed: Observed, file: int) -> bool:
        """Return whether an earlier process sent `observed`; `file` is the inode of the log."""
        line = getattr(observed.what, "line", 0)
        if not line:
            return False
        is_old = self._is_old and file == self.began.file and line <= self.began.line
        if not is_old:
            self._is_old = False
            self._line = line
        return is_old

    def keep(self, newest: int, file: int) -> None:
        """Save the cursor. If the disk is full the last one stays, and lines may be sent twice."""
        if self._is_old or newest == self._last.newest:
            return
        cursor = BufferCursor(self.began.life, newest, file, self._line)
        try:
            body = json_codec.encode({"version": VERSION, **cursor._asdict()})
            replace_file(Path(self._path), body)
        except OSError:
            return
        self._last = cursor

    def _load(self) -> BufferCursor | None:
        body = read_json(self._path) or {}
        life = body.get("life")
        if not isinstance(life, str) or not life.isalnum() or len(life) > _MAX_LIFE:
            return None
        numbers = [body.get(name) for name in BufferCursor._fields[1:]]
        known = [each for each in numbers if type(each) is int and each >= 0]
        return BufferCursor(life, *known) if len(known) == len(numbers) else None
