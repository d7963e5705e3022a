# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was observed, numbered, for readers that come by every few seconds and want each once.

Holds the newest few thousand, fewer where they are long; whoever was away for longer is told that
something is missing. A cursor names this life of the sidecar and a number, so that one of another
life is not mistaken; whoever comes with one of another life is told all but the lines of the log
that it has. The loop adds; readers read from threads of their own.

What a reader of a sidecar gives back at its next question: how much it was told.

It also names the place in the log, so that a sidecar that was started again and has lost all that
it knew (a full disk, a new volume) learns from the reader itself which lines that one knows. It
does not know which files were rotated away meanwhile: another file is new from its first line.

How far a sidecar has told, kept on the volume over its own restarts.

A sidecar that is started again reads the log from its beginning, to know the run; whoever polls
it must not hear those lines twice, for a run that goes back is a run that was restarted. A block
of lines (a traceback) that was still open when the last life ended is not told again either.
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
    """How far a log was told."""

    file: int
    """Its inode; 0: nothing was printed yet."""
    line: int

    def holds(self, other: LogPlace) -> bool:
        return 0 < other.line <= self.line and other.file == self.file

    def is_past(self, other: LogPlace) -> bool:
        """It knows something that `other` does not, as far as one can tell."""
        return self.file != 0 and (self.file != other.file or self.line > other.line)

    def then(self, other: LogPlace) -> LogPlace:
        """Both were told, `other` last."""
        if other.file == self.file:
            return max(self, other)
        return other if other.file else self


NOWHERE = LogPlace(0, 0)


class Cursor(NamedTuple):
    life: str
    """Empty: whichever."""
    number: int
    start: str = ""
    """Which process of that life has given it."""
    place: LogPlace = NOWHERE

    def __str__(self) -> str:
        if not self.place.file:
            return f"{self.life}.{self.number}"
        place = f"{self.start}-{self.place.file}-{self.place.line}"
        return f"{self.life}.{place}.{self.number}"


def read_cursor(text: str) -> Cursor | None:
    """None: it is none."""
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


MAX_ENTRIES = 4096
MAX_CHARACTERS = 4 << 20
"""Of all texts in them: a flood of tracebacks is no reason for more memory."""
MAX_ANSWER_BYTES = 1 << 20
_STATES = (Beat, Sign, StoredCheckpoints)
"""Of these only the newest matters, and that is sent anyway."""
_BLOCKS = (Arguments, Error)
"""Known when their last line is, and told by the number of their first."""


class _Entry:
    __slots__ = ("body", "characters", "number", "observed", "place")

    def __init__(self, number: int, observed: Observed, place: LogPlace) -> None:
        self.characters = sum(len(each) for each in observed.what if isinstance(each, str))
        self.number = number
        self.observed = observed
        self.place = place
        """How far the log was told with it."""
        self.body: bytes | None = None
        """Made when somebody first asks for it: a flood that nobody reads costs nothing."""

    def is_known_at(self, place: LogPlace) -> bool:
        return place.holds(LogPlace(self.place.file, getattr(self.observed.what, "line", 0)))


class News(NamedTuple):
    bodies: list[bytes]
    cursor: str
    gap: bool
    after: int
    """From where on the reader does not know; 0: nothing is known to it."""


class EventBuffer:
    def __init__(
        self,
        life: str,
        encode: Callable[[Observed], bytes],
        *,
        newest: int = 0,
        place: LogPlace = NOWHERE,
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

    def _place_with(self, observed: Observed, file: int) -> LogPlace:
        what, before = observed.what, self._place
        line = getattr(what, "line", 0)
        if not line or not file:
            return before
        if file == before.file and isinstance(what, _BLOCKS):
            return LogPlace(file, max(line, before.line))
        return LogPlace(file, line)

    def _later(self, after: int) -> tuple[list[_Entry], LogPlace]:
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


NAME = "sidecar-cursor.json"
_MAX_LIFE = 32


class BufferCursor(NamedTuple):
    life: str
    newest: int
    """The number of the last that was told."""
    file: int
    """The inode of the log that was read last; 0: none was."""
    line: int
    """In that log."""


class CursorFile:
    def __init__(self, volume: Path) -> None:
        self._path = str(volume / NAME)
        self._last = self._load() or BufferCursor(secrets.token_hex(6), 0, 0, 0)
        self.began = self._last
        """Where the life before this one ended."""
        self._line = self._last.line
        self._is_old = self._last.file != 0

    def is_old(self, observed: Observed, file: int) -> bool:
        """Whether an earlier life has told it; `file` is the log that is read now."""
        line = getattr(observed.what, "line", 0)
        if not line:
            return False
        is_old = self._is_old and file == self.began.file and line <= self.began.line
        if not is_old:
            self._is_old = False
            self._line = line
        return is_old

    def keep(self, newest: int, file: int) -> None:
        """After each look; a disk that is full keeps the last one, and lines are told twice."""
        if self._is_old or newest == self._last.newest:
            return
        told = BufferCursor(self.began.life, newest, file, self._line)
        try:
            body = json_codec.encode({"version": VERSION, **told._asdict()})
            replace_file(Path(self._path), body)
        except OSError:
            return
        self._last = told

    def _load(self) -> BufferCursor | None:
        body = read_json(self._path) or {}
        life = body.get("life")
        if not isinstance(life, str) or not life.isalnum() or len(life) > _MAX_LIFE:
            return None
        numbers = [body.get(name) for name in BufferCursor._fields[1:]]
        known = [each for each in numbers if type(each) is int and each >= 0]
        return BufferCursor(life, *known) if len(known) == len(numbers) else None
