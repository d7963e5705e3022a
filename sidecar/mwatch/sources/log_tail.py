# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one path as an endless stream, through rotation, truncation, deletion and re-creation.

- Rotation (the path names another file): the old file is read to its end, then the new one from
  its start.
- Truncation (the file is shorter than what was read, or starts with other bytes): it is read again
  from the start. What was written and truncated between two polls is lost.
- Deletion: the open file is read on until the path comes back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_CHUNK = 1 << 17
_FINGERPRINT = 256


class Poll(NamedTuple):
    """New bytes; `restarted` if they are the start of another file or of a rewritten one."""

    data: bytes
    restarted: bool = False


class LogTail:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._inode: tuple[int, int] | None = None
        self._offset = 0
        self._head = b""
        self._opens = 0
        self._begin: tuple[int, int] | None = None
        self.skipped_lines = 0
        """Number of lines skipped at the start of the first file."""

    @property
    def file(self) -> int:
        """Inode of the file being read; 0 if there was none yet."""
        return 0 if self._inode is None else self._inode[1]

    def begin_at(self, inode: int, offset: int) -> None:
        """Skip `offset` bytes if the first file has this inode; call before the first poll."""
        self._begin = inode, offset

    def poll(self) -> Poll:
        if self._fd is None:
            if not self._open():
                return Poll(b"")
            return Poll(self._read(), restarted=self._opens > 1)
        if self._was_rewritten():
            self._offset, self._head = 0, b""
            return Poll(self._read(), restarted=True)
        data = self._read()
        if not data and self._was_replaced():
            data = self._read()  # written between the first read and the rotation
            if not data:
                self.close()
                return self.poll()
        return Poll(data)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        status = os.fstat(self._fd)
        self._inode = (status.st_dev, status.st_ino)
        self._offset, self._head = 0, b""
        self._opens += 1
        begin, self._begin = self._begin, None
        if begin is not None and begin[0] == status.st_ino and begin[1] <= status.st_size:
            self._skip(begin[1])
        return True

    def _skip(self, size: int) -> None:
        while self._offset < size:
            data = self._read(size - self._offset)
            if not data:
                return
            self.skipped_lines += data.count(b"\n")

    def _read(self, most: int = _CHUNK) -> bytes:
        assert self._fd is not None
        data = os.pread(self._fd, min(most, _CHUNK), self._offset)
        if len(self._head) < _FINGERPRINT and self._offset == len(self._head):
            self._head += data[: _FINGERPRINT - len(self._head)]
        self._offset += len(data)
        return data

    def _was_rewritten(self) -> bool:
        assert self._fd is not None
        if os.fstat(self._fd).st_size < self._offset:
            return True
        return os.pread(self._fd, len(self._head), 0) != self._head

    def _was_replaced(self) -> bool:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False  # deleted: wait until it comes back
        return (status.st_dev, status.st_ino) != self._inode
