# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes notes into a TensorBoard event file, in a thread of its own.

A file system may be full or hang for hours: a note is only put into a short queue, and if that is
full the oldest note is dropped and counted. The event file has a folder of its own, so that
TensorBoard never takes it for the trainer's newest file, and a name that ends in `.mwatch`. The
trainer's folder is never created here.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mwatch.export.drop_queue import DropQueue
from mwatch.runtime.event_records import framed
from mwatch_trainer.scrub.scrubber import scrub_text

SUFFIX = ".mwatch"
_NUMBERS = itertools.count()


class Room(NamedTuple):
    max_bytes: int = 16 * 2**20
    """Of one file; enough for more than half a year of notes."""
    max_files: int = 32
    """Of one host; each start of mwatch adds a file."""
    mode: int = 0o600


class EventFile:
    """An event file; calls may block and raise OSError.

    A record that cannot be written completely is removed: a reader would wait for its rest.
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
        """Why nothing is written now, in one line and without secrets."""
        return None if self._problem is None else scrub_text(self._problem)

    def put(self, note: TextNote) -> None:
        self._queue.put(note)
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="mwatch-notes", daemon=True)
            self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Write the queue, for at most so long; count the rest as dropped."""
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
