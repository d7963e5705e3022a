# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the trainer prints, for a view that draws around it: read at once, shown when there is time.

Bounded: who prints faster than a terminal can show loses the middle, and is told so. The log
file has it all.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from contextlib import suppress
from typing import IO

_CHUNK = 1 << 18
_MAX_BYTES = 1 << 20


class Printed:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._lost = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="printed", daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        with self._lock:
            data, lost = b"".join(self._chunks), self._lost
            self._chunks.clear()
            self._held = self._lost = 0
        gap = b"... %d bytes not shown; they are in the log ...\n" % lost if lost else b""
        return gap + data

    def rest(self) -> bytes:
        """The command has ended; what holds its output open is not waited for long."""
        self._thread.join(1.0)
        return self.take()

    def _read(self) -> None:
        with self._stream:
            fd = self._stream.fileno()
            with suppress(OSError):  # more of a comfort: the share of pipe memory may be used up
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CHUNK)
            while data := os.read(fd, _CHUNK):
                self._keep(data)

    def _keep(self, data: bytes) -> None:
        with self._lock:
            self._chunks.append(data)
            self._held += len(data)
            while self._held > _MAX_BYTES:
                dropped = len(self._chunks.popleft())
                self._held -= dropped
                self._lost += dropped
