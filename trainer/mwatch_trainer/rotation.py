# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A log file that is rotated by rename and never grows beyond its bound.

`trainer.log` is the newest, `trainer.log.1` the one before. Every file begins at the start of a
line. A call may block as the disk does: whoever must not wait calls from a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat

KEPT_FILES = 4


class RotatedFile:
    def __init__(self, path: str, total_bytes: int) -> None:
        self.error = ""
        self._path = path
        self._limit = max(total_bytes // KEPT_FILES, 1)
        self._fd = -1
        self._size = 0
        self._is_at_line_start = True

    def write(self, data: bytes) -> int:
        """Whole lines; how many bytes of them were written. What stopped it is in `error`."""
        written = 0
        self.error = ""
        while written < len(data) and not self.error:
            try:
                written += self._write_some(data[written : written + self._limit])
            except OSError as error:
                self.error = error.strerror or type(error).__name__
        return written

    def _write_some(self, data: bytes) -> int:
        """As many whole lines as fit into the file, or into the next one; or a part of one."""
        self._open_where_needed()
        end = data.rfind(b"\n", 0, max(self._limit - self._size, 0)) + 1
        if not end and self._size:
            self._rotate()
        if not end:
            end = data.rfind(b"\n") + 1 or len(data)
        if not self._is_at_line_start:
            self._size += os.write(self._fd, b"\n")
            self._is_at_line_start = True
        sent = os.write(self._fd, data[:end])
        self._size += sent
        self._is_at_line_start = data[sent - 1 : sent] == b"\n"
        return sent

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _open_where_needed(self) -> None:
        if self._fd >= 0 and not self._is_in_place():
            self.close()
        if self._fd < 0:
            self._open()

    def _is_in_place(self) -> bool:
        """Somebody may have moved or removed it: what follows would be seen by nobody."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        status = os.fstat(self._fd)
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._is_at_line_start = not self._size or _last_byte(self._path) == b"\n"

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT_FILES - 1, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        self._open()


def _last_byte(path: str) -> bytes:
    """Of a file whose writer was killed in the middle of a line."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError:
        return b"\n"
