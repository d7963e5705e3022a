# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record of one rank in `$MWATCH_DIR/probe/rank-N`: fixed size, overwritten once a second.

`sequence` is stored at both ends and rises by two with each record: a copy whose two numbers differ
or are odd is torn and must be read again. Unknown numbers are -1.

The probe writes with one `pwrite`, not through a memory mapping. With a mapping, a truncated file
or a full disk is a SIGBUS that kills the trainer, and a page under write-back blocks the store
while the GIL is held. `pwrite` returns an error in the first case and waits without the GIL in the
second.

The lock belongs to the process and ends with it; a forked child does not inherit it. So a second
process with the same rank writes nothing while the first lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import NamedTuple

from mwatch_trainer.contract import PROBE_FOLDER, PROBE_PREFIX, make_folder

MAGIC = b"MWPROBE1"
_HEAD = struct.Struct("<8sQ")
_BODY = struct.Struct("<qqqqqqqqddQq32s16s256s")
_TAIL = struct.Struct("<Q")
SIZE = _HEAD.size + _BODY.size + _TAIL.size


class ProbeRecord(NamedTuple):
    attempt: int  # the wrapper's attempt number; torchrun's own restarts are in `restart_count`
    restart_count: int
    pid: int
    started: int  # start of the process in clock ticks since boot; detects a reused pid
    rank: int
    local_rank: int
    world_size: int
    iteration: int  # number of finished iterations
    monotonic: float  # when it was written, on this machine's clock
    time: float
    ticks: int
    dump_signal: int
    """A signal that makes the process write its stacks even when the GIL is held; 0: none."""
    phase: str  # a phase of the job, or `collective`, `data`, `compute`; empty if unknown
    stack: str  # hash of the main thread's stack
    where: str  # the innermost frame outside of libraries


def pack(record: ProbeRecord, sequence: int) -> bytes:
    texts = zip((32, 16, 256), record[12:])
    cut = [text.encode("utf-8", "replace")[:limit] for limit, text in texts]
    body = _BODY.pack(*record[:12], *cut)
    return _HEAD.pack(MAGIC, sequence) + body + _TAIL.pack(sequence)


def unpack(data: bytes) -> ProbeRecord | None:
    """Parse a record; None if it is from another release, truncated, never written, or torn."""
    if len(data) < SIZE or data[: len(MAGIC)] != MAGIC:
        return None
    _, first = _HEAD.unpack_from(data)
    (last,) = _TAIL.unpack_from(data, _HEAD.size + _BODY.size)
    if first != last or first % 2 or not first:
        return None
    values = _BODY.unpack_from(data, _HEAD.size)
    return ProbeRecord(*values[:12], *(_text(value) for value in values[12:]))


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "ignore")


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HELD = (errno.EACCES, errno.EAGAIN)


class RecordFile:
    def __init__(self, folder: str, rank: int) -> None:
        self.path = os.path.join(folder, PROBE_FOLDER, f"{PROBE_PREFIX}{rank}")
        self._fd = -1
        self._sequence = 0

    def claim(self) -> bool:
        """Open and lock the file; return whether this process may write. Raises OSError."""
        if self._fd >= 0:
            return True
        make_folder(os.path.dirname(self.path))  # the wrapper creates the volume's folder
        fd = os.open(self.path, _FLAGS, 0o644)
        try:
            if not _lock(fd):
                os.close(fd)
                return False
            os.fchmod(fd, 0o644)  # the reader may be another user; the umask is the trainer's
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def write(self, record: ProbeRecord) -> None:
        self._sequence += 2
        os.pwrite(self._fd, pack(record, self._sequence), 0)

    def is_in_place(self) -> bool:
        try:
            there, mine = os.stat(self.path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD  # a file system without locks: go without
    return True
