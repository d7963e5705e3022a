# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads files of the shared volume without being led astray.

The training container can write there, and what is read may leave the pod: so no link is followed
on the way, nothing but regular files is opened, and every read is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_NAMES = 100_000


class Part(NamedTuple):
    data: bytes
    is_cut: bool


class VolumeReader:
    def __init__(self, root: str) -> None:
        self._root = root

    def names(self, *folder: str) -> list[str]:
        """In a folder below the root, sorted. Raises OSError."""
        with self._folder(folder) as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for _, entry in zip(range(MAX_NAMES), entries, strict=False))

    def head(self, *path: str, most: int) -> Part:
        """Raises OSError."""
        return self._read(path, most, from_end=False)

    def tail(self, *path: str, most: int) -> Part:
        """From the beginning of a line. Raises OSError."""
        part = self._read(path, most, from_end=True)
        if not part.is_cut:
            return part
        return Part(part.data.partition(b"\n")[2] or part.data, True)

    def _read(self, path: tuple[str, ...], most: int, *, from_end: bool) -> Part:
        with self._folder(path[:-1]) as above:
            descriptor = os.open(_plain(path[-1]), _FILE, dir_fd=above)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
        with os.fdopen(descriptor, "rb") as file:
            if from_end and status.st_size > most:
                file.seek(status.st_size - most)
            data = file.read(most + 1)
        is_cut = len(data) > most or (from_end and status.st_size > most)
        return Part(data[:most], is_cut)

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                below = os.open(_plain(part), _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


def _plain(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, f"{name!a} is no name")
    return name
