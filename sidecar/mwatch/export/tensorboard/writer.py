# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes notes into an event file, in a thread of its own.

A file system may be full, or hang for hours. Whoever has a note only puts it into a short queue:
when that is full the oldest is dropped, and counted. The file is made with the first note, in the
thread, which is also the only one to import `tensorboard`.

An event file of our own, beside those that the trainer writes.

It has a folder of its own, so that TensorBoard shows it as a run of its own and never takes it for
the trainer's newest file, and a name that ends in `.mwatch`, so that nobody takes it for a sign of
progress. The trainer's folder is never made here: whoever makes it owns it. A record that cannot be
written whole is taken back, for a reader would wait at half a record for ever.

One note for TensorBoard: a number or a text at an iteration.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mwatch_trainer.scrub.scrubber import scrub_text

SUFFIX = ".mwatch"
_NUMBERS = itertools.count()


class Room(NamedTuple):
    """How much may be written, and by whom it may be read."""

    max_bytes: int = 16 * 2**20
    """Of one file: more than half a year of notes."""
    max_files: int = 32
    """Of one host name: there is one more with each start of a watcher."""
    mode: int = 0o600


class EventFile:
    """Calls may hang with the file system: for a thread of its own. All raise OSError."""

    def __init__(self, folder: Path, name: str, head: bytes, room: Room) -> None:
        mode = room.mode
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not there yet")
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
        """False: the file has grown as large as it may."""
        if self._size + len(record) > self._max_bytes:
            return False
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was taken away")
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
    """Leaves room for one more. Other hosts may still be writing theirs."""
    found = sorted(own.glob(f"events.out.tfevents.*.{host}.*{SUFFIX}"))
    for path in found[: max(0, len(found) - max_files + 1)]:
        path.unlink(missing_ok=True)


class TextNote(NamedTuple):
    tag: str
    step: int
    """The iteration."""
    at: float
    value: float | str


RETRY_SECONDS = 30.0
MAX_QUEUED = 256
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MEND = "pip install tensorboard"


class NoteWriter:
    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        patterns: Sequence[str] = (),
        room: Room | None = None,
        retry_seconds: float = RETRY_SECONDS,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._folder = folder
        self._name = name
        self._room = room or Room()
        self._patterns = tuple(patterns)
        self._retry = retry_seconds
        self._max_queued = max_queued
        self._queue: deque[TextNote] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: EventFile | None = None
        self._problem: str | None = None
        self.written = 0
        self.failures = 0
        self.dropped = 0

    @property
    def problem(self) -> str | None:
        return None if self._problem is None else scrub_text(self._problem, self._patterns)

    def put(self, note: TextNote) -> None:
        """At once, whatever the file system does."""
        with self._changed:
            if self._closing.is_set():
                self.dropped += 1
                return
            if len(self._queue) >= self._max_queued:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(note)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mwatch-notes", daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        with self._changed:
            self.dropped += len(self._queue)
            self._queue.clear()

    def _run(self) -> None:
        try:
            from mwatch.export.tensorboard import records
        except ImportError as error:
            self._problem = f"{error}; {_MEND}"
            self._closing.set()
            return
        while (note := self._take()) is not None:
            try:
                self._write(records.head(note.at), records.record(self._scrubbed(note)))
            except OSError as error:
                self._failed(error, note)
                if self._closing.wait(self._retry):
                    break
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _take(self) -> TextNote | None:
        """Waits for one; None: none will come any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            return self._queue.popleft() if self._queue else None

    def _write(self, head: bytes, record: bytes) -> None:
        if self._file is None:
            self._file = EventFile(self._folder, self._name, head, self._room)
        if self._file.write(record):
            self.written += 1
            self._problem = None
        else:
            self.dropped += 1
            self._problem = f"{self._file.path} is as large as it may be"

    def _failed(self, error: OSError, note: TextNote) -> None:
        self.failures += 1
        if self._file is not None and error.errno not in _FULL:
            with suppress(OSError):
                self._file.close()
            self._file = None  # what is wrong with this one need not be with the next
        self._problem = f"notes cannot be written: {error.strerror or error}"
        with self._changed:
            if len(self._queue) >= self._max_queued:
                self.dropped += 1  # it is the oldest
            else:
                self._queue.appendleft(note)

    def _scrubbed(self, note: TextNote) -> TextNote:
        value = note.value
        if isinstance(value, str):
            value = scrub_text(value, self._patterns)
        return note._replace(tag=scrub_text(note.tag, self._patterns), value=value)
