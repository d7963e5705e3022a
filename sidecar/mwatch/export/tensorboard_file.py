# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An event file of our own, beside those that the trainer writes.

It has a folder of its own, so that TensorBoard shows it as a run of its own and never takes it for
the trainer's newest file, and a name that ends in `.mwatch`, so that nobody takes it for a sign of
progress. The trainer's folder is never made here: whoever makes it owns it. A record that cannot be
written whole is taken back, for a reader would wait at half a record for ever.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from pathlib import Path
from typing import NamedTuple

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
