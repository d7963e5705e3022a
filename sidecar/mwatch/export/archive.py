# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A folder as a `.tgz`, sent while it is read: nothing of it is held in memory or written again.

Only regular files that lie in it directly; no link is followed. A file that shrinks meanwhile
breaks the archive off, which its reader sees.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from mwatch.export.request import Send

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE_BYTES = 1 << 16
_LEVEL = 5
MAX_FILES = 8192


def send_tgz(folder: Path, name: str, send: Send) -> None:
    """All under one folder `name`. Raises OSError."""
    pieces = _Pieces(send)
    descriptor = os.open(folder, _FOLDER)
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=pieces) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for member in _members(descriptor):
                with member.file:
                    archive.addfile(_info(member, name), member.file)
    finally:
        os.close(descriptor)
    pieces.flush()


class _Member(NamedTuple):
    name: str
    status: os.stat_result
    file: IO[bytes]


class _Pieces:
    """Hands on what was written in pieces that are worth a packet. It is as much of a file as
    gzip needs."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) >= _PIECE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._held:
            self._send(bytes(self._held))
            self._held.clear()


def _members(folder: int) -> Iterator[_Member]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for _, entry in zip(range(MAX_FILES), entries, strict=False))
    for name in names:
        if name.startswith("."):
            continue  # being written
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError:
            continue  # a link, or just gone
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            yield _Member(name, status, os.fdopen(descriptor, "rb"))
        else:
            os.close(descriptor)


def _info(member: _Member, folder: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"{folder}/{member.name}")
    info.size = member.status.st_size
    info.mtime = int(member.status.st_mtime)
    info.mode = 0o600
    return info
