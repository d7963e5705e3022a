# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read files named by the user, replace files atomically, and read the shared volume safely.

The training container can write to the shared volume, and data read from it may leave the pod.
Therefore no link is followed, only regular files are opened, and every read is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mwatch.errors import InputError
from mwatch.runtime.compressed import MAGICS, unpack

CHUNK = 1 << 19  # bytes; fits in a core's cache, because it is scanned several times
STDIN = "-"
_BINARY_SHARE = 0.3
_REPLACEMENT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_peeked = bytearray()
"""Data that `peek` has read from standard input, which can be read only once."""
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(0x20, 0x7F), *range(0x80, 0x100)})


class Chunk(NamedTuple):
    data: bytes
    done: int
    size: int  # bytes of the file when it was opened; 0 for a pipe


def shown(file: str) -> str:
    """The file name as valid text for JSON; on disk it may be any bytes."""
    return os.fsencode(file).decode("utf-8", "replace")


def read_chunks(file: str, command: str = "parse") -> Iterator[Chunk]:
    """The file in chunks. Raises InputError, possibly after some chunks. `command` is the mwatch
    command to suggest in the message."""
    done = 0
    with _open(file) as stream:
        status = os.fstat(stream.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0

        def pieces() -> Iterator[bytes]:
            nonlocal done
            if file == STDIN and _peeked:
                done += len(_peeked)
                yield bytes(_peeked)
                _peeked.clear()
            while data := _read(stream, file):
                done += len(data)
                yield data

        is_first = True
        for data in _content(pieces(), file, command):
            if is_first and looks_binary(data):
                raise InputError(f"{file}: not a text file; give the log that the trainer printed")
            is_first = False
            yield Chunk(data, done, size)
    if not done:
        raise InputError(f"{file}: is empty; name a file that the trainer has written to")
    if done < size:
        raise InputError(
            f"{file}: shrank while it was read ({size} bytes, then {done}); what was there was "
            "read; use --follow for a file that is rotated"
        )


def peek(file: str) -> bytes:
    """The beginning of a file, with at least one whole line if possible; empty if unreadable."""
    try:
        if file != STDIN:
            return next(read_chunks(file), Chunk(b"", 0, 0)).data
        with _open(file) as stream:
            while b"\n" not in _peeked and len(_peeked) < CHUNK and (data := _read(stream, file)):
                _peeked.extend(data)
    except InputError:
        pass  # the error is reported when the file is read
    return bytes(_peeked)


def looks_binary(data: bytes) -> bool:
    sample = data[:8192].replace(b"\0", b"")  # zeros come from a truncated log, not a binary
    return len(sample.translate(None, _TEXT)) > _BINARY_SHARE * max(1, len(sample)) or (
        data.startswith((b"\x7fELF", b"PK\x03\x04", b"\x80\x02", b"\x89PNG"))
    )


def _open(file: str) -> BinaryIO:
    if file == STDIN:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return open(file, "rb", buffering=0)
    except IsADirectoryError:
        problem = "is a folder; name the log files in it"
    except FileNotFoundError:
        problem = "no such file; check the path, or use - for standard input"
    except PermissionError:
        problem = "may not be read; check its mode and owner"
    except (OSError, ValueError) as error:
        problem = f"cannot be opened ({error}); check the path"
    raise InputError(f"{file}: {problem}")


def _read(stream: BinaryIO, file: str) -> bytes:
    try:
        return stream.read(CHUNK)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; check the disk or the mount") from error


def _content(pieces: Iterator[bytes], file: str, command: str) -> Iterator[bytes]:
    first = next(pieces, None)
    if first is None:
        return iter(())
    whole = chain((first,), pieces)
    return unpack(whole, file, command) if first.startswith(MAGICS) else whole


def unpacked_pieces(file: str, command: str = "replay") -> Iterator[bytes]:
    """The unpacked content of a compressed file of any kind. Raises InputError."""
    with _open(file) as stream:
        yield from unpack(iter(lambda: _read(stream, file), b""), file, command)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end, so a reader sees either the old or the
    new file, never a partial one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, _REPLACEMENT, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(descriptor, mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Raises OSError."""
    with replacing(path, mode=mode) as file:
        file.write(data)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file; only its owner can read it. Raises OSError."""
    replace_file(path, data, mode=0o600)


def make_private_folder(path: Path) -> None:
    """Create a folder for its owner only; missing parents get the default mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


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
        """Names in a folder below the root, sorted. Raises OSError."""
        with self._folder(folder) as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for _, entry in zip(range(MAX_NAMES), entries, strict=False))

    def head(self, *path: str, most: int) -> Part:
        """Raises OSError."""
        return self._read(path, most, from_end=False)

    def tail(self, *path: str, most: int) -> Part:
        """The last `most` bytes, from the beginning of a line. Raises OSError."""
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
            raise OSError(errno.EINVAL, "it is not a regular file")
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
        raise OSError(errno.EINVAL, f"{name!a} is not a name")
    return name
