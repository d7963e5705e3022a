# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Examine both ends of a log file: when it was written, what it prints, how far the run got."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from mwatch.errors import InputError
from mwatch.model.event import Arguments, Checkpoint, Iteration, Phase
from mwatch.model.observation import Observed
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch.replay.event_times import EventTimestamper
from mwatch.replay.log_files import LogFile
from mwatch.replay.timestamps import Stamps
from mwatch.runtime.compressed import is_packed
from mwatch.runtime.files import CHUNK, STDIN, read_chunks

_MAX_HEAD = 1 << 20
_TAIL = 1 << 18
STEPS = "steps"
_MARKS = "marks"
_GLOG = re.compile(rb"(?<![A-Za-z0-9])[IWEF]\d{4} \d\d:\d\d:\d\d(?:\.\d{1,9})?\b")


class FileSpan(NamedTuple):
    """Times and roles, from both ends of a file."""

    first: float | None
    """First time in the file; None: it prints no times."""
    last: float | None
    roles: frozenset[str]
    total: int | None = None
    """Total iterations of the run, as its lines print it."""
    begins: int | None = None
    """First iteration in the file."""
    is_done: bool = False
    """The file prints a normal end."""
    world: int | None = None
    is_of_rank_0: bool = False
    """The file prints the arguments, as only rank 0 does."""
    written: tuple[float, float] | None = None
    """Earliest and latest time, including those of launchers' lines, which are used only here."""


_NOTHING = FileSpan(None, None, frozenset())


def examine(file: LogFile, grammar: Grammar) -> FileSpan:
    """Read both ends of a file; one that cannot be opened is reported when it is played."""
    try:
        if file.path == STDIN or not stat.S_ISREG(os.stat(file.path).st_mode):
            return _NOTHING
        if is_packed(file.path):
            return _examine_packed(file, grammar)
        with open(file.path, "rb", buffering=0) as opened:
            status = os.fstat(opened.fileno())
            head = _End(file, grammar, status.st_mtime)
            done = 0
            while done < _MAX_HEAD and not head.is_enough and (data := opened.read(CHUNK)):
                head.feed(data)
                done += len(data)
            opened.seek(max(0, status.st_size - _TAIL))
            data = opened.read(_TAIL)
    except OSError:
        return _NOTHING
    return _span(head, data, status.st_size > _TAIL, _End(file, grammar, status.st_mtime))


def _examine_packed(file: LogFile, grammar: Grammar) -> FileSpan:
    """Examine a compressed file by reading it once, because its end cannot be sought."""
    written = os.stat(file.path).st_mtime
    head, done, end = _End(file, grammar, written), 0, b""
    try:
        for chunk in read_chunks(file.path, "replay"):
            if done < _MAX_HEAD and not head.is_enough:
                head.feed(chunk.data)
            done += len(chunk.data)
            end = (end + chunk.data)[-_TAIL:]
    except InputError:
        if not done:
            return _NOTHING  # reported when it is played
    return _span(head, end, done > _TAIL, _End(file, grammar, written))


def _span(head: _End, end: bytes, is_cut: bool, tail: _End) -> FileSpan:
    head.close()
    tail.feed(end[end.find(b"\n") + 1 :] if is_cut else end)
    tail.close()
    last = head.last if tail.last is None else tail.last
    times = [at for at in (head.first, last) if at is not None]
    times += [*head.by_launcher(head.first), *tail.by_launcher(last)]
    return FileSpan(
        head.first,
        last,
        frozenset(head.roles | tail.roles),
        head.total or tail.total,
        tail.begins if head.begins is None else head.begins,
        tail.is_done,
        head.world or tail.world,
        head.is_of_rank_0 or tail.is_of_rank_0,
        (min(times), max(times)) if times else None,
    )


class _End:
    """One end of a file: its times and what it prints."""

    def __init__(self, file: LogFile, grammar: Grammar, near: float) -> None:
        self._reader = Reader(grammar, file.shown)
        self._moments = EventTimestamper("", near=near)
        self._near = near
        self._glog: list[bytes] = []
        """The first and the last glog timestamp."""
        self.first: float | None = None
        self.last: float | None = None
        self.roles: set[str] = set()
        self.total: int | None = None
        self.begins: int | None = None
        self.is_done = False
        self.world: int | None = None
        self.is_of_rank_0 = False

    @property
    def is_enough(self) -> bool:
        return self.first is not None and STEPS in self.roles

    def by_launcher(self, near: float | None) -> list[float]:
        """Return the times of launchers' lines, which lack the year."""
        stamps = Stamps(self._near if near is None else near)
        times = (stamps.of_glog(each.decode()) for each in self._glog)
        return [at for at in times if at is not None]

    def feed(self, data: bytes) -> None:
        found = _GLOG.findall(data.replace(b"\0", b""))
        self._glog = [*self._glog[:1], *found[:1], *found[-1:]]
        self._take(self._moments.observe(self._reader.feed(data)))

    def close(self) -> None:
        self._take(self._moments.observe(self._reader.close()))
        self._take(self._moments.rest())

    def _take(self, seen: Sequence[Observed]) -> None:
        for _, _, what in seen:
            if isinstance(what, Iteration):
                self.roles.add(STEPS)
                self.total = what.total_iterations or self.total
                self.begins = what.iteration if self.begins is None else self.begins
                self.is_done = what.iteration == self.total
            elif isinstance(what, Phase | Arguments | Checkpoint):
                self.roles.add(_MARKS)
                if isinstance(what, Arguments):
                    self.is_of_rank_0 = True
                    self.world = what.world_size or self.world
                if isinstance(what, Phase):
                    self.is_done = (what.name, what.edge) == ("training", "end")
        if seen and not self._moments.is_relative:
            self.first = seen[0].at if self.first is None else self.first
            self.last = seen[-1].at
