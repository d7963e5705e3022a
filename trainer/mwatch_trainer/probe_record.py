# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record of one rank in `$MWATCH_DIR/probe/rank-N`: fixed size, written in place.

The probe overwrites the file once a second; a reader reads or maps it at any moment. `sequence`
stands at both ends and rises by two with each record, so a copy whose two numbers differ, or are
odd, is torn: read it again. Numbers that are not known are -1.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"MWPROBE1"
_HEAD = struct.Struct("<8sQ")
_BODY = struct.Struct("<qqqqqqqqddQq32s16s256s")
_TAIL = struct.Struct("<Q")
SIZE = _HEAD.size + _BODY.size + _TAIL.size


class Record(NamedTuple):
    attempt: int
    """Of the wrapper; torchrun's own restarts are in `restart_count`."""
    restart_count: int
    pid: int
    started: int
    """Start of the process in clock ticks since boot: tells a reused pid apart."""
    rank: int
    local_rank: int
    world_size: int
    iteration: int
    """Finished iterations."""
    monotonic: float
    """Of this machine: how long ago the record was written."""
    time: float
    ticks: int
    dump_signal: int
    """A signal that makes the process write its stacks even when the GIL is held; 0: none."""
    phase: str
    """A phase of the job, or `collective`, `data`, `compute`; empty where unknown."""
    stack: str
    """A hash of the main thread's stack."""
    where: str
    """The innermost frame that says something, for people."""


def pack(record: Record, sequence: int) -> bytes:
    texts = zip((32, 16, 256), record[12:])
    cut = [text.encode("utf-8", "replace")[:limit] for limit, text in texts]
    body = _BODY.pack(*record[:12], *cut)
    return _HEAD.pack(MAGIC, sequence) + body + _TAIL.pack(sequence)


def unpack(data: bytes) -> Record | None:
    """None: of another release, cut short, never written, or torn."""
    if len(data) < SIZE or data[: len(MAGIC)] != MAGIC:
        return None
    _, first = _HEAD.unpack_from(data)
    (last,) = _TAIL.unpack_from(data, _HEAD.size + _BODY.size)
    if first != last or first % 2 or not first:
        return None
    values = _BODY.unpack_from(data, _HEAD.size)
    return Record(*values[:12], *(_text(value) for value in values[12:]))


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "ignore")
