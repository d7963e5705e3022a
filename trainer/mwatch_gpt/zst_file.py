# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A `.zst` file, read frame by frame: a file that is cut must not look like one that has ended.

The package's own reader takes the one for the other. A file may hold several frames, as
`cat a.zst b.zst` makes it.
"""

from __future__ import annotations

import io
from typing import IO, Any

from mwatch_gpt.optional_package import package

_PACKED_BYTES = 1 << 13
"""Read at once. Four bytes may unpack to 128 KiB, so a file made to do harm takes 256 MiB."""


class ZstFile(io.RawIOBase):
    def __init__(self, path: str) -> None:
        self._zstandard: Any = package("zstandard", path)
        self._packed: IO[bytes] = open(path, "rb")  # noqa: SIM115 - closed with this one
        self._frame: Any = None
        self._ready = b""
        self._rest = b""
        """Packed bytes behind the end of a frame."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """EOFError where the file ends inside a frame."""
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
