# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's log as it grows: what was said, at the moment at which it was read.

A live reader knows better than a printed time when a line came. A block (a traceback) that
nobody continues for two seconds is taken as ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from mwatch.app.clock import Clock
from mwatch.model.event import Event
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch.sources.log_tail import LogTail

_SETTLE_SECONDS = 2.0
_MAX_CHUNKS = 64
"""Of one look: a flood of output must not keep us from looking at anything else."""
_LINE = attrgetter("line")


class LiveLog:
    def __init__(self, path: Path, grammar: Grammar, stream: str, clock: Clock) -> None:
        self._tail = LogTail(path)
        self._reader = Reader(grammar, path.name)
        self._stream = stream
        self._clock = clock
        self._grew_at: float | None = None
        self._is_settled = True

    def read(self) -> Reading[tuple[Observed, ...]]:
        now = self._clock.now()
        try:
            events = list(self._read(now))
        except OSError as error:
            return Failed(f"{self._tail.path.name}: {error.strerror or error}")
        if self._grew_at is None:
            return Absent("nothing has been printed yet")
        return Ok(self._at(now, events))

    def rest(self) -> tuple[Observed, ...]:
        """The command has ended: what is open is as long as it will be."""
        reading = self.read()
        said = reading.value if isinstance(reading, Ok) else ()
        self._is_settled = True
        return (*said, *self._at(self._clock.now(), _in_order(self._reader.settle())))

    def close(self) -> None:
        self._tail.close()

    def _at(self, now: float, events: list[Event]) -> tuple[Observed, ...]:
        return tuple(Observed(now, self._stream, event) for event in events)

    def _read(self, now: float) -> Iterator[Event]:
        for _ in range(_MAX_CHUNKS):
            poll = self._tail.poll()
            if poll.restarted:
                yield from _in_order(self._reader.restart())
            if not poll.data:
                break
            self._grew_at = now
            self._is_settled = False
            yield from _in_order(self._reader.feed(poll.data))
        is_quiet = self._grew_at is not None and now - self._grew_at > _SETTLE_SECONDS
        if is_quiet and not self._is_settled:
            self._is_settled = True
            yield from _in_order(self._reader.settle())


def _in_order(events: list[Event]) -> list[Event]:
    """A block is known when it ends, but was there before."""
    events.sort(key=_LINE)
    return events
