# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The file of one rank's record: one writer at a time, and no way to harm the writer.

The record is laid out to be mapped, but the probe writes it with one `pwrite`. Through a mapping
a file that somebody cuts short, or a full disk, is a SIGBUS that kills the trainer; and a page
that the disk is busy with makes the store wait while it holds the GIL, so training would wait
too. `pwrite` gives an error for the one and waits without the GIL for the other.

The lock is of the process: a forked child does not have it, and it ends with the process. So a
second process that takes itself for the same rank writes nothing while the first lives.
"""

from __future__ import annotations

import errno
import fcntl
import os

from mwatch_trainer.contract import PROBE_FOLDER, PROBE_PREFIX
from mwatch_trainer.probe_record import Record, pack

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HELD = (errno.EACCES, errno.EAGAIN)


class RecordFile:
    def __init__(self, folder: str, rank: int) -> None:
        self.path = os.path.join(folder, PROBE_FOLDER, f"{PROBE_PREFIX}{rank}")
        self._fd = -1
        self._sequence = 0

    def claim(self) -> bool:
        """Whether this process is the writer now. Raises OSError where nothing can be written."""
        if self._fd >= 0:
            return True
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o755)  # the volume itself is the wrapper's to make
        fd = os.open(self.path, _FLAGS, 0o644)
        try:
            if not _lock(fd):
                os.close(fd)
                return False
            os.fchmod(fd, 0o644)  # the reader may be another user; the umask is the trainer's
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def write(self, record: Record) -> None:
        """Raises OSError."""
        self._sequence += 2
        os.pwrite(self._fd, pack(record, self._sequence), 0)

    def is_in_place(self) -> bool:
        """False where the path no longer names the file that is written."""
        try:
            there, mine = os.stat(self.path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD  # a file system without locks: go without
    return True
