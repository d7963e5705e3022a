# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the trainer's TensorBoard event files: a second source of progress.

Megatron writes them on its last rank, so the folder must be visible in this pod. Records written
before the first poll (an earlier run, or before a restart of mwatch), charts over samples instead
of steps, and mwatch's own files are ignored. A writer buffers its records, for two minutes by
default, so a record counts at the time stored in it, and no stall is reported within the writer's
usual pauses.

If the log cannot be read, each step is also an `Iteration` with its losses, learning rate and
gradient norm. No hang verdict is based on it.

The protobuf messages are decoded here, and only their first fields: the `tensorboard` package would
double the memory of the sidecar.
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
from mwatch.sources.background import BackgroundSource, Observations

MAX_RECORDS = 20_000
"""Limit of one poll; the rest is read by the next one."""
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_NEEDED = 512
"""Bytes of a message that are decoded: an image or histogram comes after its tag."""
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
    """The rest of the file is not a sequence of records."""


def records(path: str, offset: int) -> Iterator[tuple[int, EventRecord | None]]:
    """Yield the end offset of each complete record from `offset` on, and the record or None if it
    holds no value. The checksum of the length is verified, that of the data is not."""
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
    """Decode a message that may be cut off; the last field may be incomplete."""
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
"""An older step is not evidence of progress, even if its record was only just written."""
FLUSH_SECONDS = 120.0
"""How long a writer buffers records by default."""
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


class _Newest(NamedTuple):
    path: str
    step: int
    wall_time: float


class _Step:
    def __init__(self, path: str, number: int, wall_time: float) -> None:
        self.path, self.number, self.wall_time = path, number, wall_time
        self.values: dict[str, float] = {}

    def event(self) -> Iteration:
        """Return the step as an event; line 0, because it does not come from a log."""
        values = self.values
        known = {
            "iteration": self.number,
            "learning_rate": values.get("learning-rate"),
            "losses": {tag: value for tag, value in values.items() if tag.endswith("loss")},
            "loss_scale": values.get("loss-scale"),
            "grad_norm": values.get("grad-norm"),
            "num_zeros": values.get("num-zeros"),
            "params_norm": values.get("params-norm"),
            "first_of_process": False,
            "extra": {},
            "file": os.path.basename(self.path),
            "line": 0,
            "flavour": "megatron",
        }
        return Iteration(**{**dict.fromkeys(Iteration._fields), **known})  # type: ignore[arg-type]


class TensorboardEvents(BackgroundSource):
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
        """`has_log`: returns whether the log is readable; steps are then taken from the log."""
        super().__init__(
            "mwatch-tensorboard",
            self._poll,
            period=lambda: period_seconds,
            limit_seconds=limit_seconds,
            clock=clock,
        )
        self._folder = folder
        self._has_log = has_log
        self._step: _Step | None = None
        self._steps: deque[_Step] = deque(maxlen=MAX_RECORDS)
        self._stream = stream
        self._wall = wall
        self._before: dict[str, int] | None = None
        self._since = self._now = wall()
        self._offsets: dict[str, int] = {}
        self._broken: set[str] = set()
        self._newest: _Newest | None = None
        self._came_at: float | None = None
        self._pauses: deque[float] = deque(maxlen=_PAUSES)

    @property
    def iteration(self) -> int | None:
        """The newest step of this run; None if none was written since the first poll."""
        return None if self._newest is None else self._newest.step

    def _poll(self) -> Reading[Observations]:
        at, wall = self._clock(), self._wall()
        self._now = wall
        moved, broken = self._follow(self._files())
        if self._newest is None:
            return Failed(broken) if broken else Absent("no step was written since mwatch started")
        if moved:
            if self._came_at is not None:
                self._pauses.append(at - self._came_at)
            self._came_at = at
        sign = self._sign(at, self._newest, moved)
        steps = [] if self._has_log() else self._complete(moved)
        self._steps.clear()
        return Ok((*steps, *([] if sign is None else [sign])))

    def _complete(self, moved: bool) -> list[Observed]:
        """Return the complete steps: a newer one was written, or nothing since the last poll."""
        complete = [*self._steps]
        if not moved and self._step is not None:
            complete.append(self._step)
            self._step = None
        return [
            Observed(min(each.wall_time, self._now), self._stream, each.event())
            for each in complete
        ]

    def _sign(self, at: float, newest: _Newest, moved: bool) -> Observed | None:
        """Return whether steps advance; None if unknown, as between two flushes of the writer."""
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
        text = f"step {newest.step} for {quiet:.0f} s"
        sign = Sign(SignSource.TENSORBOARD, SignState.FLAT, None, text)
        return Observed(self._now, self._stream, sign)

    def _files(self) -> list[_File]:
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
        """Return whether there is a newer step, and which record is broken."""
        before, broken = self._newest, ""
        self._offsets = {file.path: self._offsets.get(file.path, 0) for file in files}
        for file in files:
            if file.size < self._offsets[file.path]:
                self._offsets[file.path] = 0  # rewritten under its old name
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
                self._advance_newest(file.path, record)
                if self._newest is not None and self._newest[:2] == (file.path, record.step):
                    self._collect(file.path, record)

    def _is_of_this_run(self, record: EventRecord, file: _File) -> bool:
        is_step = 0 < record.step < _MAX_STEP and _OVER_SAMPLES not in record.tag
        return (
            is_step
            and record.offset >= file.before
            and self._since - _SKEW_SECONDS <= record.wall_time <= self._now + _SKEW_SECONDS
        )

    def _advance_newest(self, path: str, record: EventRecord) -> None:
        """Within one file steps only increase; a newer file may start lower, after a resume."""
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
