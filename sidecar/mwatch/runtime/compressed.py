# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read compressed logs directly, and unpack the archives of `mwatch diagnose --bundle`.

The unpacked size is bounded, in total and relative to the packed size, because a small file may
unpack to any size. Logs are repetitive, so the ratio is not checked for the first 256 MiB and is
generous after that.
"""

from __future__ import annotations

import bz2
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any, cast

from mwatch.errors import InputError

GZIP, ZSTD, BZIP2, XZ = b"\x1f\x8b", b"(\xb5/\xfd", b"BZh", b"\xfd7zXZ"
MAGICS = (GZIP, ZSTD, BZIP2, XZ)
"""First bytes of a compressed file."""
_PIECE = 1 << 19
_FREE = 256 << 20
"""Unpacked bytes that are allowed whatever the ratio."""
_RATIO = 300
_MOST = 64 << 30
_BUNDLE_BYTES = 1 << 30
_BUNDLE_FILES = 10_000
_TAR = b"ustar"
_TAR_AT = 257


class _Gzip:
    """zlib's decoder with the interface of the bz2 and lzma decoders, which bound the output."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


def _new_decoder(magic: bytes) -> Any:
    if magic == GZIP:
        return _Gzip()
    return bz2.BZ2Decompressor() if magic == BZIP2 else lzma.LZMADecompressor(memlimit=1 << 30)


def unpack(data: Iterator[bytes], file: str, command: str) -> Iterator[bytes]:
    """Unpacked content, in pieces; `data` begins with one of `MAGICS`. Raises InputError, possibly
    after some pieces, if the file is damaged or unpacks to too much."""
    first = next(data)
    magic = next(each for each in MAGICS if first.startswith(each))
    fed = 0

    def counted() -> Iterator[bytes]:
        nonlocal fed
        for piece in chain((first,), data):
            fed += len(piece)
            yield piece

    pieces = _zstd(counted(), file, command) if magic == ZSTD else _standard(counted(), magic)
    done = 0
    try:
        for piece in pieces:
            done += len(piece)
            if done > _MOST or (done > _FREE and done > _RATIO * fed):
                raise InputError(
                    f"{file}: {fed} bytes unpack to more than {done >> 20} MiB; unpack it yourself "
                    "and give the part that you need"
                )
            yield piece
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise InputError(f"{file}: damaged ({error}); what could be unpacked was read") from error


def _standard(data: Iterator[bytes], magic: bytes) -> Iterator[bytes]:
    """Decode gzip, bzip2 or xz; a file may consist of several compressed parts in a row."""
    decoder = _new_decoder(magic)
    rest = b""
    for piece in data:
        piece = rest + piece
        rest = b""
        while piece or not decoder.needs_input:
            if decoder.eof:
                if not piece.startswith(magic):
                    if len(piece) < len(magic) and magic.startswith(piece):
                        rest = piece  # the magic of the next part continues in the next piece
                    break  # padding
                decoder = _new_decoder(magic)
            out = decoder.decompress(piece, _PIECE)
            piece = decoder.unused_data if decoder.eof else b""
            if out:
                yield out
            if decoder.eof and not piece:
                break
    if not decoder.eof:
        raise EOFError("it ends too early")


def _zstd(data: Iterator[bytes], file: str, command: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            f"{file}: compressed with zstd, and the package zstandard is not installed; try: "
            f"zstdcat {file} | mwatch {command} -"
        ) from None
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with reader.stream_reader(
            cast(IO[bytes], _Pieces(data)), read_across_frames=True
        ) as opened:
            while out := opened.read(_PIECE):
                yield out
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error


class _Pieces:
    """A readable file object over an iterator of bytes."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = next(self._data, b"")
        out, self._rest = self._rest[:size], self._rest[size:]
        return out


def is_packed(file: str) -> bool:
    """Whether the first bytes are those of a compressed file. Raises OSError."""
    with open(file, "rb") as opened:
        return opened.read(8).startswith(MAGICS)


def is_bundle(file: str, read: Callable[[str], Iterator[bytes]]) -> bool:
    """Whether a compressed file holds a tar archive; `read` unpacks it."""
    try:
        if not os.path.isfile(file) or not is_packed(file):
            return False
        head = next(read(file), b"")
    except (OSError, ValueError, InputError):
        return False  # the error is reported when it is opened as a log
    return head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


@contextmanager
def unpacked(names: Sequence[str], read: Callable[[str], Iterator[bytes]]) -> Iterator[list[str]]:
    """The names, with each archive replaced by a temporary folder of its files."""
    with tempfile.TemporaryDirectory(prefix="mwatch-") as top:
        given = []
        for number, name in enumerate(names):
            if name == "-" or os.path.isdir(name) or not is_bundle(name, read):
                given.append(name)
                continue
            folder = os.path.join(top, str(number))
            os.mkdir(folder)
            _extract(name, read, folder)
            given.append(folder)
        yield given


def _extract(file: str, read: Callable[[str], Iterator[bytes]], folder: str) -> None:
    """Unpack an archive; one that is too large is refused before anything is written."""
    try:
        left = _BUNDLE_BYTES
        for count, (_, member) in enumerate(_members(file, read)):
            left -= member.size
            if left < 0 or count >= _BUNDLE_FILES:
                raise InputError(f"{file}: the archive is too large; unpack it yourself")
        for archive, member in _members(file, read):
            if member.isreg():
                archive.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{file}: damaged archive ({error}); write the bundle again") from error


def _members(
    file: str, read: Callable[[str], Iterator[bytes]]
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    with tarfile.open(fileobj=cast(IO[bytes], _Pieces(read(file))), mode="r|") as archive:
        for member in archive:
            yield archive, member
