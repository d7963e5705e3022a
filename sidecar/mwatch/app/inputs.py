# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Opens what a person named, and says in one line why it cannot be read and what mends it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from mwatch.errors import InputError

CHUNK = 1 << 19  # what stays in a core's cache while it is looked at several times
STDIN = "-"
COMPRESSED = {
    b"\x1f\x8b": "zcat",
    b"(\xb5/\xfd": "zstdcat",
    b"BZh": "bzcat",
    b"\xfd7zXZ": "xzcat",
}
"""How a packed file begins, and what unpacks it."""
_BINARY_SHARE = 0.3
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27, *range(0x20, 0x7F), *range(0x80, 0x100)})


class Chunk(NamedTuple):
    data: bytes
    done: int
    size: int
    """Bytes of the file when it was opened; 0 for a pipe."""


def shown(file: str) -> str:
    """A file name may be any bytes; JSON needs text."""
    return os.fsencode(file).decode("utf-8", "replace")


def read_chunks(file: str, command: str = "parse") -> Iterator[Chunk]:
    """The file in pieces. InputError, possibly after some pieces, where it is not whole.

    `command` is who reads, for advice.
    """
    with _open(file) as stream:
        status = os.fstat(stream.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        done = 0
        while data := _read(stream, file):
            if not done:
                _refuse_compressed(data, file, command)
            done += len(data)
            yield Chunk(data, done, size)
    if not done:
        raise InputError(f"{file}: is empty; name a file that the trainer has written to")
    if done < size:
        raise InputError(
            f"{file}: shrank while it was read ({size} bytes, then {done}); what was there was "
            "read; use --follow for a file that is rotated"
        )


def looks_binary(data: bytes) -> bool:
    sample = data[:8192].replace(b"\0", b"")  # a hole of zeros is a truncated log, not a binary
    return len(sample.translate(None, _TEXT)) > _BINARY_SHARE * max(1, len(sample)) or (
        data.startswith((b"\x7fELF", b"PK\x03\x04", b"\x80\x02", b"\x89PNG"))
    )


def _open(file: str) -> BinaryIO:
    if file == STDIN:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return open(file, "rb", buffering=0)
    except IsADirectoryError:
        mend = "is a folder; name the log files in it"
    except FileNotFoundError:
        mend = "no such file; check the path, or use - for standard input"
    except PermissionError:
        mend = "may not be read; check its mode and owner"
    except (OSError, ValueError) as error:
        mend = f"cannot be opened ({error}); check the path"
    raise InputError(f"{file}: {mend}")


def _read(stream: BinaryIO, file: str) -> bytes:
    try:
        return stream.read(CHUNK)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; check the disk or the mount") from error


def _refuse_compressed(data: bytes, file: str, command: str) -> None:
    for magic, tool in COMPRESSED.items():
        if data.startswith(magic):
            raise InputError(f"{file}: is compressed; try: {tool} {file} | mwatch {command} -")
    if looks_binary(data):
        raise InputError(f"{file}: is no text; name the log that the trainer printed")
