# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records of TensorBoard's event files, made by hand from the description of the format."""

from __future__ import annotations

import struct
from pathlib import Path

from mwatch.runtime.event_records import framed as framed


def varint(value: int) -> bytes:
    found = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, wall_time: float, tag: str = "lm loss", *, more: bytes = b"") -> bytes:
    """A scalar of 2.5, with `more` behind it in the same value."""
    value = field(1, tag.encode()) + b"\x15" + struct.pack("<f", 2.5) + more
    body = b"\x09" + struct.pack("<d", wall_time)
    body += b"\x10" + varint(step) if step else b""
    return body + field(5, field(1, value))


def version(wall_time: float) -> bytes:
    """The first record of every file."""
    return b"\x09" + struct.pack("<d", wall_time) + field(3, b"brain.Event:2")


def scalar(step: int, wall_time: float, tag: str = "lm loss", *, more: bytes = b"") -> bytes:
    return framed(event(step, wall_time, tag, more=more))


def write(path: Path, *records: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(records))
