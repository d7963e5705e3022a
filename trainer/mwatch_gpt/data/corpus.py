# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads input files as blocks of whole lines: plain, `.gz` or `.zst`, from any position.

A position is a file and an offset in its uncompressed bytes; to reach it, a compressed file is
decompressed again from its start.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, cast


class BadInput(ValueError):
    pass


class Disturbed(RuntimeError):
    """A fault of the machine, not of the input: once it is fixed, the same command continues."""


def package(name: str, reason: str) -> Any:
    """Import an optional package. Raises BadInput with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{reason} needs the package {name}: pip install 'mwatch[data]'") from None


_PACKED_BYTES = 1 << 13
"""Compressed bytes per read. Four bytes may expand to 128 KiB, so a malicious file takes at most
256 MiB of memory."""


class ZstFile(io.RawIOBase):
    """A `.zst` file, read frame by frame, so that a truncated file is an error.

    The package's own reader treats a truncated file as complete. A file may contain several frames,
    such as the output of `cat a.zst b.zst`.
    """

    def __init__(self, path: str) -> None:
        self._zstandard: Any = package("zstandard", path)
        self._packed: IO[bytes] = open(path, "rb")  # noqa: SIM115 - closed with this one
        self._frame: Any = None
        self._ready = b""
        self._rest = b""  # compressed bytes after the end of a frame

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read decompressed bytes. Raises EOFError if the file ends inside a frame."""
        while not self._ready:
            packed = self._rest or self._packed.read(_PACKED_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it is cut: its last frame has no end")
                return 0
            self._unpack(packed)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._packed.close()
        super().close()

    def _unpack(self, packed: bytes) -> None:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        self._ready = self._frame.decompress(packed)
        self._rest = self._frame.unused_data if self._frame.eof else b""
        self._frame = None if self._frame.eof else self._frame


BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 30
_PACKED = {".gz", ".zst"}
# Errors of the input. Any other OSError is a fault of the machine: a retry may succeed.
_UNREADABLE = (
    FileNotFoundError, IsADirectoryError, PermissionError, gzip.BadGzipFile, zlib.error, EOFError,
)  # fmt: skip
_JSON = {".json", ".jsonl"}


class LineStart(NamedTuple):
    file: int = 0
    offset: int = 0
    line: int = 1


class TextBlock(NamedTuple):
    path: str
    data: bytes  # whole lines
    start: LineStart
    end: LineStart


def is_json(path: str) -> bool:
    """Whether the file's lines are JSON; otherwise each line is a document."""
    inner = Path(path)
    inner = inner.with_suffix("") if inner.suffix in _PACKED else inner
    return inner.suffix in _JSON


def blocks(paths: Sequence[str], start: LineStart, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """Yield the blocks of all files in order. Raises BadInput."""
    for number in range(start.file, len(paths)):
        place = start if number == start.file else LineStart(number)
        yield from _of_file(paths[number], place, size)


def _of_file(path: str, place: LineStart, size: int) -> Iterator[TextBlock]:
    rest: list[bytes] = []
    try:
        with _opened(path) as file:
            _skip(file, path, place.offset)
            while piece := file.read(size):
                whole, newline, tail = piece.rpartition(b"\n")
                if newline:
                    yield (block := _block(path, b"".join((*rest, whole, newline)), place))
                    place, rest = block.end, []
                rest.append(tail)
                if len(rest) * size > MAX_LINE_BYTES:
                    raise BadInput(f"{path}:{place.line}: a line of more than 1 GiB")
    except _UNREADABLE as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # its package may not be installed
            raise
        raise BadInput(f"{path}:{place.line}: cannot be unpacked ({error})") from None
    if any(rest):
        yield _block(path, b"".join(rest), place)


def _block(path: str, data: bytes, start: LineStart) -> TextBlock:
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    end = LineStart(start.file, start.offset + len(data), start.line + lines)
    return TextBlock(path, data, start, end)


def _opened(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if path.endswith(".zst"):
        return io.BufferedReader(ZstFile(path), BLOCK_BYTES)
    return open(path, "rb")


def _skip(file: IO[bytes], path: str, offset: int) -> None:
    if os.path.splitext(path)[1] not in _PACKED:
        file.seek(offset)
        return
    while offset:
        piece = file.read(min(offset, BLOCK_BYTES))
        if not piece:
            raise BadInput(f"{path}: ends before the place where the last run stopped")
        offset -= len(piece)
