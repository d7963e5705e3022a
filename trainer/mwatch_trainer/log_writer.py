# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the copy of the trainer's output from a thread, so that nobody waits for the disk.

A disk that is slow or hangs: what has no room in the queue is dropped, the oldest first. A disk
that is full: what cannot be written is dropped. Both are counted, and the log says so itself in
one line as soon as it can be written again.
"""

from __future__ import annotations

import threading
from collections import deque

from mwatch_trainer.rotation import RotatedFile

QUEUE_BYTES = 8 << 20
_MAX_WRITE = 1 << 20
_MISSING = b"mwatch-run: %d bytes are missing here: the disk was slow or full\n"


class LogWriter:
    def __init__(self, path: str, total_bytes: int) -> None:
        self.written = 0
        self.dropped = 0
        self.error = ""
        """Why the last write failed; empty where it did not."""
        self._told = 0
        self._file = RotatedFile(path, total_bytes)
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        self._in_hand = 0
        self._is_closing = False
        self._is_stuck = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mwatch-log", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Whole lines. Never waits for the disk."""
        if not data:
            return
        with self._changed:
            self._queue.append(data)
            self._waiting += len(data)
            while self._waiting > QUEUE_BYTES and self._queue:
                lost = len(self._queue.popleft())
                self._waiting -= lost
                self.dropped += lost
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Whether all that was put is written or dropped within that time; a disk that was not
        done once is not waited for again."""
        with self._changed:
            limit = 0.0 if self._is_stuck else seconds
            is_done = self._changed.wait_for(lambda: not self._waiting + self._in_hand, limit)
            self._is_stuck = not is_done
        return is_done

    def close(self, seconds: float) -> bool:
        is_drained = self.drain(seconds)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        return is_drained

    def _run(self) -> None:
        while True:
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    break
                data = self._take()
            self._write(data)
        self._file.close()

    def _take(self) -> bytes:
        taken = [self._queue.popleft()]
        size = len(taken[0])
        while self._queue and size + len(self._queue[0]) <= _MAX_WRITE:
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._waiting -= size
        self._in_hand = size
        return b"".join(taken)

    def _write(self, data: bytes) -> None:
        missing = self.dropped - self._told
        if missing and self._file.write(_MISSING % missing):
            self._told += missing
        written = self._file.write(data)
        self.error = self._file.error
        self.written += written
        with self._changed:
            self.dropped += len(data) - written
