# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's log as it grows: what was said, at the moment at which it was read.

A live reader knows better than a printed time when a line came. A block (a traceback) that
nobody continues for two seconds is taken as ended. Of a flood each look reads a part; who prints
more than is read for so long that the log is rotated away twice loses what lay between. Who comes
in the middle begins with the attempt that runs: its wrapper has noted where that begins, and what
earlier ones printed would be taken for attempts that follow it.
"""

from __future__ import annotations

import time
from pathlib import Path

from mwatch.app.clock import Clock
from mwatch.model.event import Event
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.sources.log_tail import LogTail
from mwatch_trainer import contract

_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
"""Of one look: a flood of output must not keep us from looking at anything else."""
_REST_SECONDS = 20.0
"""For all that is left at the end: the last words say why it ended."""


class LiveLog:
    def __init__(self, path: Path, grammar: Grammar, stream: str, clock: Clock) -> None:
        self._tail = LogTail(path)
        self._reader = Reader(grammar, path.name)
        self._stream = stream
        self._clock = clock
        self._grew_at: float | None = None
        self._is_settled = True
        self.bytes = 0
        self.lines = 0
        self._has_begun = False

    @property
    def file(self) -> int:
        """Which file is read: another number, another file."""
        return self._tail.file

    def read(self) -> Reading[tuple[Observed, ...]]:
        now = self._clock.now()
        events, error = self._read(now, _LOOK_SECONDS)
        is_quiet = self._grew_at is not None and now - self._grew_at > _SETTLE_SECONDS
        if is_quiet and not self._is_settled:
            events += self._settle()
        if error is not None and not events:
            return Failed(f"{self._tail.path.name}: {error.strerror or error}")
        if self._grew_at is None:
            return Absent("nothing has been printed yet")
        return Ok(self._at(now, events))

    def rest(self) -> tuple[Observed, ...]:
        """The command has ended: what is open is as long as it will be."""
        now = self._clock.now()
        events, _ = self._read(now, _REST_SECONDS)
        return self._at(now, events + self._settle())

    def close(self) -> None:
        self._tail.close()

    def _at(self, now: float, events: list[Event]) -> tuple[Observed, ...]:
        return tuple(Observed(now, self._stream, event) for event in events)

    def _read(self, now: float, seconds: float) -> tuple[list[Event], OSError | None]:
        """Until there is no more, or for so long; with what came before an error."""
        events: list[Event] = []
        until = time.monotonic() + seconds
        if not self._has_begun:
            self._begin()
        try:
            while True:
                poll = self._tail.poll()
                if self._tail.file and not self._has_begun:
                    self._has_begun, self._reader.lines = True, self._tail.skipped_lines
                if poll.restarted:
                    events += in_order(self._reader.restart())
                if not poll.data:
                    return events, None
                self._grew_at = now
                self._is_settled = False
                self.bytes += len(poll.data)
                self.lines += poll.data.count(b"\n")
                events += in_order(self._reader.feed(poll.data))
                if time.monotonic() > until:
                    return events, None
        except OSError as error:
            return events, error

    def _begin(self) -> None:
        """Each time until there is a log: the attempt may begin after us."""
        said = contract.read_json(str(self._tail.path.with_name(contract.ATTEMPT))) or {}
        place = said.get("log")
        place = place if isinstance(place, dict) else {}
        inode, offset = place.get("inode"), place.get("bytes")
        if type(inode) is int and type(offset) is int and offset > 0:
            self._tail.begin_at(inode, offset)

    def _settle(self) -> list[Event]:
        self._is_settled = True
        return in_order(self._reader.settle())
