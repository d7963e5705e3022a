# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the records of the probes (`probe/rank-N`): what each rank of this pod is doing.

The age of a record is taken from the monotonic clock, which the containers of a pod share. A record
that is ahead of it (from before a reboot, or from a sandbox with its own clock) is aged from when
it was last seen to change, and counts only after it has changed.

Only records of the newest start of the ranks count: records of an older attempt, or from before
torchrun restarted its workers, remain until their rank writes again. A record that does not change
yields no Beat: the rank may be stopped, hold the GIL or have exited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from mwatch.model.observation import Beat, Observed
from mwatch.model.phase import JobPhase
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch_trainer.contract import PROBE_FOLDER, PROBE_PREFIX
from mwatch_trainer.probe.record_file import SIZE, ProbeRecord, unpack

GAP_SECONDS = 5.0
_KNOWN = frozenset({"collective", "data", "compute", *(phase.value for phase in JobPhase)})
_UNKNOWN = "unknown"
"""Also for phases of another release, because label values must be bounded."""


class RankSeconds:
    """Seconds that the main thread of each rank spent in each phase.

    The time since the previous record is attributed to the phase of the new one. A gap of more than
    `GAP_SECONDS` is attributed to no phase: the process was stopped or held the GIL.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._spent: dict[int, dict[str, float]] = {}

    def add(self, beats: Iterable[tuple[Beat, float]]) -> None:
        """Add new records, each with the time at which it was written."""
        for beat, at in beats:
            before = self._last.get(beat.rank)
            self._last[beat.rank] = at
            if before is None or not 0 < at - before <= GAP_SECONDS:
                continue
            phase = beat.phase if beat.phase in _KNOWN else _UNKNOWN
            spent = self._spent.setdefault(beat.rank, {})
            spent[phase] = spent.get(phase, 0.0) + at - before

    def of(self, rank: int) -> Mapping[str, float]:
        return dict(self._spent.get(rank, {}))


MAX_RECORDS = 4096
"""Limit for one pod, which has at most 16 GPUs; tests on CPU have more ranks."""
_TRIES = 3
_AHEAD_SECONDS = 1.0


class RankReading(NamedTuple):
    beat: Beat
    age_seconds: float
    is_new: bool


class _Seen(NamedTuple):
    key: tuple[int, int, int]
    """Pid, start time of the process, and ticks, which change with every record."""
    at: float


class ProbeSource:
    def __init__(
        self,
        folder: str,
        stream: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.join(folder, PROBE_FOLDER)
        self._stream = stream
        self._clock = clock
        self._wall = wall
        self._seen: dict[int, _Seen] = {}
        self._start: tuple[int, int] | None = None
        self.ranks: tuple[RankReading, ...] = ()
        self.seconds = RankSeconds()

    def read(self, attempt: int | None = None) -> Reading[tuple[Observed, ...]]:
        """Return a Beat for each new record, of `attempt` or of the newest one found."""
        match self.read_ranks(self._clock(), attempt):
            case Ok(ranks):
                self.ranks = ranks
                now = self._wall()
                new = [(each.beat, now - each.age_seconds) for each in ranks if each.is_new]
                self.seconds.add(new)
                return Ok(tuple(Observed(at, self._stream, beat) for beat, at in new))
            case other:
                self.ranks = ()
                return other

    def read_ranks(
        self, now: float, attempt: int | None = None
    ) -> Reading[tuple[RankReading, ...]]:
        """Return the records of all ranks, in order; `now` is monotonic."""
        try:
            records = list(read_records(self._path))
        except FileNotFoundError:
            return Absent("no rank has written a record")
        except OSError as error:
            return Failed(f"{PROBE_FOLDER}: {error.strerror or error}")
        if attempt is not None:
            records = [record for record in records if record.attempt == attempt]
        if not records:
            return Absent("no rank of this attempt has written a record")
        newest = max(map(_start, records))
        if newest != self._start:
            self._start = newest
            self._seen.clear()
        found = [self._reading(each, now) for each in records if _start(each) == newest]
        return Ok(tuple(sorted(found, key=lambda each: each.beat.rank)))

    def _reading(self, record: ProbeRecord, now: float) -> RankReading:
        key = (record.pid, record.started, record.ticks)
        seen = self._seen.get(record.rank)
        age = now - record.monotonic
        is_ahead = age < -_AHEAD_SECONDS
        is_new = not is_ahead if seen is None else seen.key != key
        if seen is None or seen.key != key:
            seen = self._seen[record.rank] = _Seen(key, now)
        if is_ahead:
            age = now - seen.at
        return RankReading(_beat(record), max(age, 0.0), is_new)


def read_records(path: str) -> Iterator[ProbeRecord]:
    """Yield the readable records; raise OSError if the folder cannot be listed."""
    with os.scandir(path) as entries:
        names = [entry.name for _, entry in zip(range(MAX_RECORDS), entries, strict=False)]
    for name in names:
        number = name.removeprefix(PROBE_PREFIX)
        if number == name or not number.isdecimal():
            continue
        record = _whole_record(os.path.join(path, name))
        if record is not None and record.rank == int(number):
            yield record


def _whole_record(path: str) -> ProbeRecord | None:
    for _ in range(_TRIES):  # a record read during a write is torn
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            record = unpack(os.read(descriptor, SIZE))
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if record is not None:
            return record
    return None


def _start(record: ProbeRecord) -> tuple[int, int]:
    """Return the start it belongs to: attempt of the wrapper, and restart of torchrun within it."""
    return record.attempt, record.restart_count


def _beat(record: ProbeRecord) -> Beat:
    return Beat(
        rank=record.rank,
        world_size=_known(record.world_size),
        iteration=_known(record.iteration),
        phase=record.phase,
        stack=record.stack,
        pid=record.pid,
        attempt=_known(record.attempt),
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
