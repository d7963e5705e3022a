# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's TensorBoard files: a second witness of progress, and the only one without a log.

Megatron writes them on its last rank, so the folder must be one that this pod sees. What lay
there before the first look is of an earlier run, or of before a restart of ours, and tells
nothing; nor do charts over samples instead of steps, nor what mwatch writes itself.
A writer holds its records back, for two minutes by default. So a record counts by the moment that
stands in it, and nothing is called still before the writer's own pauses allow it.

Where the log cannot be read, each step is also an `Iteration` with its losses, learning rate and
gradient norm: iteration and loss are then known, but no verdict about a hang rests on them (the
detectors still lack the log), for the writer's pauses are no stall.

The step, moment, first tag and value of each record are read; the message is protobuf, whose first
fields are all that is needed. The checksum of the length is checked, for a wrong length would lead
astray; that of the bytes is not.
"""

from __future__ import annotations

import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

from mwatch.model.event import Iteration
from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.runtime.event_records import FOOT, HEAD, masked_crc
from mwatch.sources.base.worker import Periodic

MAX_RECORDS = 20_000
"""Of one look; the rest is read at the next."""
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_NEEDED = 512
"""Bytes of a message that are looked at: an image or a histogram comes after its tag."""
_MAX_LENGTH = 1 << 32
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EventRecord(NamedTuple):
    offset: int
    wall_time: float
    step: int
    tag: str
    value: float | None


class BrokenRecord(ValueError):
    """The file is no row of records from here on."""


def records(path: str, offset: int) -> Iterator[tuple[int, EventRecord | None]]:
    """Each whole record from `offset` on, after the offset behind it; None: not of a value.

    One that is not yet written to its end is left for the next time.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(MAX_RECORDS):
            file.seek(offset)
            head = file.read(HEAD.size)
            if len(head) < HEAD.size:
                return
            length, check = HEAD.unpack(head)
            if check != masked_crc(head[:8]) or length > _MAX_LENGTH:
                raise BrokenRecord(f"{os.path.basename(path)}: broken at byte {offset}")
            end = offset + HEAD.size + length + FOOT.size
            if end > size:
                return
            yield end, _record(offset, file, length)
            offset = end


def _record(offset: int, file: BinaryIO, length: int) -> EventRecord | None:
    data = file.read(min(length, _NEEDED))
    found: dict[int, bytes | int] = {}
    for number, value in _fields(data):
        found.setdefault(number, value)
    wall, step, summary = found.get(_WALL_TIME), found.get(_STEP, 0), found.get(_SUMMARY)
    if not isinstance(wall, bytes) or not isinstance(step, int) or not isinstance(summary, bytes):
        return None
    first = next((each for number, each in _fields(summary) if number == _VALUE), None)
    inside = dict(_fields(first)) if isinstance(first, bytes) else {}
    tag, scalar = inside.get(_TAG), inside.get(_SIMPLE_VALUE)
    if not isinstance(tag, bytes) or len(wall) != _DOUBLE.size:
        return None
    amount = None
    if isinstance(scalar, bytes) and len(scalar) == _FLOAT.size:
        amount = _FLOAT.unpack(scalar)[0]
    return EventRecord(
        offset, _DOUBLE.unpack(wall)[0], step, tag.decode("utf-8", "replace"), amount
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Of a message that may be cut off: a field that reaches over its end is given as far as it
    goes, and nothing after it."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None:
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    return value, at


PERIOD_SECONDS = 10.0
LIMIT_SECONDS = 30.0
FRESH_SECONDS = 30.0
"""A step that is older says nothing of now, however late its record came to the disk."""
FLUSH_SECONDS = 120.0
"""What a writer holds back by default."""
_FLAT_PAUSES = 3
_FLAT_FACTOR = 3.0
_PAUSES = 16
_MAX_ENTRIES = 4096
_MAX_FILES = 4
_SKEW_SECONDS = 120.0
_NAME = "tfevents"
_OURS = ".mwatch"
_OVER_SAMPLES = " vs "
"""`lm loss vs samples`: Megatron's second chart of a value, whose steps are samples."""
_MAX_STEP = 1 << 62
_MAX_TAGS = 64


class _File(NamedTuple):
    path: str
    size: int
    mtime: float
    before: int
    """Bytes that were there at the first look."""


class _Newest(NamedTuple):
    path: str
    step: int
    wall_time: float


class _Step:
    """What one step has written so far."""

    def __init__(self, path: str, number: int, wall_time: float) -> None:
        self.path, self.number, self.wall_time = path, number, wall_time
        self.values: dict[str, float] = {}

    def event(self) -> Iteration:
        """With line 0, as nothing of it stands in a log."""
        values = self.values
        return Iteration(
            iteration=self.number,
            total_iterations=None,
            timestamp=None,
            consumed_samples=None,
            elapsed_ms=None,
            learning_rate=values.get("learning-rate"),
            global_batch_size=None,
            losses={tag: value for tag, value in values.items() if tag.endswith("loss")},
            loss_scale=values.get("loss-scale"),
            grad_norm=values.get("grad-norm"),
            num_zeros=values.get("num-zeros"),
            params_norm=values.get("params-norm"),
            throughput_tflops=None,
            skipped=None,
            nan=None,
            covers=None,
            first_of_process=False,
            extra={},
            rank=None,
            file=os.path.basename(self.path),
            line=0,
            flavour="megatron",
        )


class TensorboardEvents:
    def __init__(
        self,
        folder: str,
        stream: str,
        *,
        has_log: Callable[[], bool] = lambda: True,
        period_seconds: float = PERIOD_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`has_log`: whether the log is read; as long as it is, steps are its business."""
        self._folder = folder
        self._has_log = has_log
        self._step: _Step | None = None
        """The newest, whose records may not all be there yet."""
        self._steps: deque[_Step] = deque(maxlen=MAX_RECORDS)
        self._stream = stream
        self._clock = clock
        self._wall = wall
        self._before: dict[str, int] | None = None
        self._since = self._now = wall()
        self._offsets: dict[str, int] = {}
        self._broken: set[str] = set()
        self._newest: _Newest | None = None
        self._came_at: float | None = None
        self._pauses: deque[float] = deque(maxlen=_PAUSES)
        self._looks: Periodic[tuple[Observed, ...]] = Periodic(
            "mwatch-tensorboard",
            self._look,
            period=lambda: period_seconds,
            limit_seconds=limit_seconds,
            clock=clock,
        )

    @property
    def iteration(self) -> int | None:
        """The newest step of this run; None: nothing was written since we look."""
        return None if self._newest is None else self._newest.step

    def read(self) -> Reading[tuple[Observed, ...]]:
        """Never waits: tells what the last look found, once, and begins the next when it is due."""
        return self._told(self._looks.news())

    def read_now(self, seconds: float) -> Reading[tuple[Observed, ...]]:
        """A fresh look; waits for it, for at most so long."""
        return self._told(self._looks.news_now(seconds))

    def _told(self, news: Reading[tuple[Observed, ...]] | None) -> Reading[tuple[Observed, ...]]:
        last = self._looks.last
        return Ok(()) if news is None and isinstance(last, Ok) else last

    def _look(self) -> Reading[tuple[Observed, ...]]:
        at, wall = self._clock(), self._wall()
        self._now = wall
        moved, broken = self._follow(self._files())
        if self._newest is None:
            return Failed(broken) if broken else Absent("no step was written since we look")
        if moved:
            if self._came_at is not None:
                self._pauses.append(at - self._came_at)
            self._came_at = at
        sign = self._said(at, self._newest, moved)
        steps = [] if self._has_log() else self._complete(moved)
        self._steps.clear()
        return Ok((*steps, *([] if sign is None else [sign])))

    def _complete(self, moved: bool) -> list[Observed]:
        """Steps that no record can add to any more: a newer one came, or nothing for a look."""
        complete = [*self._steps]
        if not moved and self._step is not None:
            complete.append(self._step)
            self._step = None
        return [
            Observed(min(each.wall_time, self._now), self._stream, each.event())
            for each in complete
        ]

    def _said(self, at: float, newest: _Newest, moved: bool) -> Observed | None:
        """Between two flushes nothing: the last word grows old by itself."""
        if moved:
            if self._now - newest.wall_time > FRESH_SECONDS:
                return None
            sign = Sign(SignSource.TENSORBOARD, SignState.MOVING, None, f"step {newest.step}")
            return Observed(min(newest.wall_time, self._now), self._stream, sign)
        quiet = 0.0 if self._came_at is None else at - self._came_at
        usual = max(self._pauses, default=0.0)
        is_known = len(self._pauses) >= _FLAT_PAUSES
        if not is_known or quiet <= max(_FLAT_FACTOR * usual, 2 * FLUSH_SECONDS):
            return None
        words = f"step {newest.step} for {quiet:.0f} s"
        return Observed(
            self._now, self._stream, Sign(SignSource.TENSORBOARD, SignState.FLAT, None, words)
        )

    def _files(self) -> list[_File]:
        """Those that have grown since the first look, the newest first."""
        found: dict[str, tuple[int, float]] = {}
        with os.scandir(self._folder) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                if _NAME in entry.name and not entry.name.endswith(_OURS) and entry.is_file():
                    status = entry.stat()
                    found[entry.path] = (status.st_size, status.st_mtime)
        if self._before is None:
            self._before = {path: size for path, (size, _) in found.items()}
            self._since = self._now
        before = self._before
        grown = [
            _File(path, size, mtime, before.get(path, 0))
            for path, (size, mtime) in found.items()
            if size > before.get(path, 0)
        ]
        return sorted(grown, key=lambda file: file.mtime, reverse=True)[:_MAX_FILES]

    def _follow(self, files: list[_File]) -> tuple[bool, str]:
        """Whether there is a newer step, and what cannot be read."""
        before, broken = self._newest, ""
        self._offsets = {file.path: self._offsets.get(file.path, 0) for file in files}
        for file in files:
            if file.size < self._offsets[file.path]:
                self._offsets[file.path] = 0  # written anew under its old name
                self._broken.discard(file.path)
            if file.path in self._broken:
                continue
            try:
                self._advance(file)
            except BrokenRecord as error:
                self._broken.add(file.path)
                broken = str(error)
        self._broken &= self._offsets.keys()
        return self._newest is not None and self._newest != before, broken

    def _advance(self, file: _File) -> None:
        for end, record in records(file.path, self._offsets[file.path]):
            self._offsets[file.path] = end
            if record is not None and self._is_of_this_run(record, file):
                self._take(file.path, record)
                if self._newest is not None and self._newest[:2] == (file.path, record.step):
                    self._collect(file.path, record)

    def _is_of_this_run(self, record: EventRecord, file: _File) -> bool:
        is_step = 0 < record.step < _MAX_STEP and _OVER_SAMPLES not in record.tag
        return (
            is_step
            and record.offset >= file.before
            and self._since - _SKEW_SECONDS <= record.wall_time <= self._now + _SKEW_SECONDS
        )

    def _take(self, path: str, record: EventRecord) -> None:
        """In one file steps only rise; a later file may begin lower, as after a resume."""
        newest = self._newest
        if newest is not None and record.wall_time < newest.wall_time:
            return
        if newest is not None and path == newest.path and record.step <= newest.step:
            return
        self._newest = _Newest(path, record.step, record.wall_time)

    def _collect(self, path: str, record: EventRecord) -> None:
        step = self._step
        if step is None or step.number != record.step:
            if step is not None:
                self._steps.append(step)
            step = self._step = _Step(path, record.step, record.wall_time)
        if record.value is not None and len(step.values) < _MAX_TAGS:
            step.values[record.tag] = record.value
