# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shows incidents and findings in TensorBoard, as a separate run next to the trainer's.

`mwatch/incident` counts incidents at the iteration where each happened; the text `mwatch/incidents`
has the details. The loss at that iteration is repeated under its own name, so that TensorBoard
draws a point on the loss curve. After a restart training goes back, so an iteration may have
several values.

The event file has a folder of its own, so that TensorBoard never mistakes it for the trainer's
newest file, and a name that ends in `.mwatch`. Storage may be full or hang for hours, so a thread
writes the file, from a short queue that drops and counts its oldest notes.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.export.drop_queue import DropQueue
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from mwatch.model.incident import IncidentRecord
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.runtime.event_records import framed
from mwatch_trainer.scrub.scrubber import scrub_text

SUFFIX = ".mwatch"
_NUMBERS = itertools.count()


class Room(NamedTuple):
    max_bytes: int = 16 * 2**20
    """Maximum size of one file; enough for more than half a year of notes."""
    max_files: int = 32
    """Maximum number of files per host; each start of mwatch adds one."""
    mode: int = 0o600


class EventFile:
    """An event file; calls may block and raise OSError.

    A partially written record is removed, because a reader would wait for the rest of it.
    """

    def __init__(self, folder: Path, name: str, head: bytes, room: Room) -> None:
        mode = room.mode
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} does not exist yet")
        own = folder / name
        own.mkdir(mode=mode | (mode & 0o444) >> 2, exist_ok=True)
        host = re.sub(r"[^\w-]", "-", socket.gethostname()) or "host"
        _prune(own, host, room.max_files)
        unique = f"{host}.{os.getpid()}.{next(_NUMBERS)}"
        self.path = own / f"events.out.tfevents.{time.time():010.0f}.{unique}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, mode)
        self._size = 0
        self._max_bytes = room.max_bytes
        try:
            self.write(head)
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)
            raise

    def write(self, record: bytes) -> bool:
        """Return False if the file has reached its maximal size."""
        if self._size + len(record) > self._max_bytes:
            return False
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was removed")
        try:
            written = os.write(self._descriptor, record)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        if written < len(record):
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise OSError(f"only {written} of {len(record)} bytes could be written")
        self._size += written
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _prune(own: Path, host: str, max_files: int) -> None:
    """Remove the oldest files of this host, to leave room for one more."""
    found = sorted(own.glob(f"events.out.tfevents.*.{host}.*{SUFFIX}"))
    for path in found[: max(0, len(found) - max_files + 1)]:
        path.unlink(missing_ok=True)


class TextNote(NamedTuple):
    tag: str
    step: int
    at: float
    value: float | str


def _file_head(at: float) -> bytes:
    from tensorboard.compat.proto import event_pb2

    return framed(event_pb2.Event(wall_time=at, file_version="brain.Event:2").SerializeToString())


def _record(note: TextNote) -> bytes:
    """Encode a note; imports `tensorboard`, so only the writing thread may call it."""
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

    tag = scrub_text(note.tag).encode("utf-8", "replace").decode()
    if isinstance(note.value, str):
        kind = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
        value = summary_pb2.Summary.Value(
            tag=tag,
            metadata=summary_pb2.SummaryMetadata(plugin_data=kind),
            tensor=tensor_pb2.TensorProto(
                dtype=types_pb2.DT_STRING,
                string_val=[scrub_text(note.value).encode("utf-8", "replace")],
            ),
        )
    else:
        value = summary_pb2.Summary.Value(tag=tag, simple_value=note.value)
    summary = summary_pb2.Summary(value=[value])
    event = event_pb2.Event(wall_time=note.at, step=note.step, summary=summary)
    return framed(event.SerializeToString())


RETRY_SECONDS = 30.0
MAX_QUEUED = 256
_FULL = (errno.ENOSPC, errno.EDQUOT)
_INSTALL = "pip install tensorboard"


class NoteWriter:
    def __init__(
        self,
        folder: Path,
        name: str = "mwatch",
        *,
        room: Room | None = None,
        retry_seconds: float = RETRY_SECONDS,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._folder = folder
        self._name = name
        self._room = room or Room()
        self._retry = retry_seconds
        self._queue: DropQueue[TextNote] = DropQueue(max_queued)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: EventFile | None = None
        self._problem: str | None = None
        self.written = 0
        self.failures = 0

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def problem(self) -> str | None:
        """Why notes cannot be written at the moment, in one line and without secrets."""
        return None if self._problem is None else scrub_text(self._problem)

    def put(self, note: TextNote) -> None:
        self._queue.put(note)
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="mwatch-notes", daemon=True)
            self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Write the queue, for up to `seconds`; count the rest as dropped."""
        self._stop()
        if self._thread is not None:
            self._thread.join(seconds)
        self._queue.drop_all()

    def _stop(self) -> None:
        self._closing.set()
        self._queue.close()

    def _run(self) -> None:
        try:
            import tensorboard.compat.proto.event_pb2  # noqa: F401
        except ImportError as error:
            self._problem = f"{error}; {_INSTALL}"
            self._stop()
            return
        while (note := self._queue.take()) is not None:
            try:
                self._write(_file_head(note.at), _record(note))
            except OSError as error:
                self._failed(error, note)
                if self._closing.wait(self._retry):
                    break
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _write(self, head: bytes, record: bytes) -> None:
        if self._file is None:
            self._file = EventFile(self._folder, self._name, head, self._room)
        if self._file.write(record):
            self.written += 1
            self._problem = None
        else:
            self._queue.dropped += 1
            self._problem = f"{self._file.path} has reached its maximal size"

    def _failed(self, error: OSError, note: TextNote) -> None:
        self.failures += 1
        if self._file is not None and error.errno not in _FULL:
            with suppress(OSError):
                self._file.close()
            self._file = None  # a new file may work
        self._problem = f"cannot write notes: {error.strerror or error}"
        self._queue.put_back(note)


MAX_CELL = 400
MAX_EARLIER = 20
"""Earlier incidents listed in the newest text: TensorBoard shows only a few texts of a tag."""


def incident_markdown(
    record: IncidentRecord, step: int, earlier: Iterable[tuple[int, IncidentRecord]] = ()
) -> str:
    lines = [f"### {record.cause.value}: {_cell(record.summary)}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in _facts(record, step) if value]
    others = list(earlier)[-MAX_EARLIER:]
    if others:
        lines += ["", "Earlier:", "", "| iteration | when | cause | action |"]
        lines += ["| --- | --- | --- | --- |"]
        for number, each in reversed(others):
            when = _moment(each.times.detected) or ""
            lines.append(f"| {number} | {when} | {each.cause.value} | {each.action.value} |")
    return "\n".join(lines)


def finding_markdown(finding: Finding) -> str:
    culprit = None if finding.culprit is None else finding.culprit.label(" ")
    who = "" if culprit is None else f" ({_cell(culprit)})"
    return f"**{finding.detector}**, {finding.severity.value}: {_cell(finding.summary)}{who}"


def _facts(record: IncidentRecord, step: int) -> Iterable[tuple[str, str | None]]:
    times = record.times
    yield "incident", record.id
    yield "iteration", str(step)
    yield "attempt", str(record.attempt)
    yield "found", _moment(times.detected)
    yield "confidence", f"{record.confidence:.0%}"
    yield "culprit", None if record.culprit is None else record.culprit.label(" ")
    yield "action", _action(record)
    yield "resumed from", _resumed(record)
    yield "training again", _moment(times.first_new_iteration)
    yield "lost", _lost(record)
    yield "evidence", None if record.evidence is None else record.evidence.folder


def _action(record: IncidentRecord) -> str:
    if record.action is Action.NONE:
        return f"none: {record.reason}" if record.reason else "none"
    done = "" if record.is_carried_out else " (only observed: not carried out)"
    return f"{record.action.value}{done}: {record.reason}"


def _resumed(record: IncidentRecord) -> str | None:
    if record.action is not Action.RESTART:
        return None
    if record.resume_from is None:
        return "the beginning"
    why = f" ({record.resume_reason})" if record.resume_reason else ""
    return f"iteration {record.resume_from}{why}"


def _lost(record: IncidentRecord) -> str | None:
    parts = []
    if record.lost_iterations is not None:
        parts.append(f"{record.lost_iterations} iterations")
    if record.gpu_seconds is not None:
        parts.append(f"{record.gpu_seconds:.0f} GPU-seconds")
    return ", ".join(parts) or None


def _moment(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cell(text: str) -> str:
    """Return one line that is safe in a table cell."""
    flat = " ".join(text.split())
    return flat[:MAX_CELL].replace("\\", "\\\\").replace("|", "\\|")


GOODPUT_SECONDS = 60.0
FINDING_SECONDS = 30.0
"""Minimum interval between notes of a finding that comes and goes."""
MAX_TEXTS = 8
"""Maximum texts of one incident: found, decided, acted, evidence, over."""
_MAX_KEPT = 256
_LEVELS = {Severity.INFO: 0.0, Severity.WARNING: 1.0, Severity.CRITICAL: 2.0}
_USUAL_LOSS = "lm loss"


class _Written(NamedTuple):
    step: int
    record: IncidentRecord
    text: str
    texts: int


class _Level(NamedTuple):
    level: float
    at: float


class TensorboardNotes(NoteWriter):
    def __init__(self, folder: Path, **options: Any) -> None:
        """`folder` is the trainer's --tensorboard-dir; `options`: see NoteWriter."""
        super().__init__(folder, **options)
        self._at = 0.0
        self._step = 0
        self._losses: deque[tuple[int, str, float]] = deque(maxlen=_MAX_KEPT)
        self._goodput_at = -math.inf
        self._attempt: int | None = None
        self._levels: dict[str, _Level] = {}
        self._incidents: OrderedDict[str, _Written] = OrderedDict()
        self._count = 0

    def update(self, snapshot: Snapshot) -> None:
        self._at = snapshot.at
        iteration = snapshot.iteration
        if iteration is not None and iteration != self._step:
            self._step = iteration
            self._moved(snapshot)
        if snapshot.phase is not None and snapshot.attempt != self._attempt:
            self._attempt = snapshot.attempt
            self._note("mwatch/restarts", float(max(0, snapshot.attempt - 1)))
        self._write_findings(snapshot)

    def incident(self, record: IncidentRecord, iteration: int | None = None) -> None:
        """Write a note about a new or changed incident. `iteration`: where it happened, if the
        record does not contain it; defaults to the newest one."""
        known = self._incidents.get(record.id) or self._first_note(record, iteration)
        others = [
            (each.step, each.record) for id, each in self._incidents.items() if id != record.id
        ]
        text = incident_markdown(record, known.step, others[-MAX_EARLIER:])
        is_new = text != known.text and known.texts < MAX_TEXTS
        if is_new:
            self._note("mwatch/incidents", text, known.step)
        last = text if is_new else known.text
        self._incidents[record.id] = _Written(known.step, record, last, known.texts + is_new)
        while len(self._incidents) > _MAX_KEPT:
            self._incidents.popitem(last=False)

    def _moved(self, snapshot: Snapshot) -> None:
        losses = snapshot.numbers.losses
        name = _USUAL_LOSS if _USUAL_LOSS in losses else next(iter(losses), None)
        if name is not None and math.isfinite(losses[name]):
            self._losses.append((self._step, name, losses[name]))
        is_due = snapshot.at - self._goodput_at >= GOODPUT_SECONDS
        if is_due and snapshot.goodput is not None:
            self._goodput_at = snapshot.at
            self._note("mwatch/goodput", snapshot.goodput)

    def _first_note(self, record: IncidentRecord, iteration: int | None) -> _Written:
        chosen = (record.first_bad_iteration, iteration, self._step)
        step = next(each for each in chosen if each is not None)
        self._count += 1
        self._note("mwatch/incident", float(self._count), step)
        before = [each for each in self._losses if each[0] <= step]
        if before:
            _, name, loss = before[-1]
            self._note(name, loss, step)
        return _Written(step, record, "", 0)

    def _write_findings(self, snapshot: Snapshot) -> None:
        worst: dict[str, Finding] = {}
        for each in snapshot.findings:
            known = worst.get(each.detector, each)
            worst[each.detector] = max(known, each, key=lambda one: _LEVELS[one.severity])
        for detector in sorted(worst.keys() | self._levels.keys()):
            finding, last = worst.get(detector), self._levels.get(detector, _Level(0.0, -math.inf))
            level = 0.0 if finding is None else _LEVELS[finding.severity]
            if level == last.level or snapshot.at - last.at < FINDING_SECONDS:
                continue
            self._levels[detector] = _Level(level, snapshot.at)
            self._note(f"mwatch/finding/{detector}", level)
            if finding is not None and level > last.level:
                self._note("mwatch/findings", finding_markdown(finding))

    def _note(self, tag: str, value: float | str, step: int | None = None) -> None:
        self.put(TextNote(tag, self._step if step is None else step, self._at, value))
