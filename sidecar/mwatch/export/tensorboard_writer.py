# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes notes into an event file, in a thread of its own.

A file system may be full, or hang for hours. Whoever has a note only puts it into a short queue:
when that is full the oldest is dropped, and counted. The file is made with the first note, in the
thread, which is also the only one to import `tensorboard`.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mwatch.export.tensorboard_file import EventFile, Room
from mwatch.export.tensorboard_note import Note
from mwatch_trainer.scrub import scrub_text

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
        self._queue: deque[Note] = deque()
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

    def put(self, note: Note) -> None:
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
            from mwatch.export import tensorboard_records as records
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

    def _take(self) -> Note | None:
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

    def _failed(self, error: OSError, note: Note) -> None:
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

    def _scrubbed(self, note: Note) -> Note:
        value = note.value
        if isinstance(value, str):
            value = scrub_text(value, self._patterns)
        return note._replace(tag=scrub_text(note.tag, self._patterns), value=value)
