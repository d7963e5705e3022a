# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads TensorBoard's event files: the step, moment and first tag of each record.

A file is a row of records: length (8 bytes), its checksum (4), that many bytes, their checksum
(4). The bytes are a protobuf message whose first fields are all that is needed; the package of
TensorBoard would cost more memory than the whole sidecar. The checksum of the length is checked,
for a wrong length would lead astray; that of the bytes is not.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAX_RECORDS = 20_000
"""Of one look; the rest is read at the next."""
_HEAD = struct.Struct("<QI")
_DOUBLE = struct.Struct("<d")
_FOOT = 4
_NEEDED = 512
"""Bytes of a message that are looked at: an image or a histogram comes after its tag."""
_MAX_LENGTH = 1 << 32
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG = 1, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Record(NamedTuple):
    offset: int
    wall_time: float
    step: int
    tag: str


class Broken(ValueError):
    """The file is no row of records from here on."""


def records(path: str, offset: int) -> Iterator[tuple[int, Record | None]]:
    """Each whole record from `offset` on, after the offset behind it; None: not of a value.

    One that is not yet written to its end is left for the next time.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(MAX_RECORDS):
            file.seek(offset)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, check = _HEAD.unpack(head)
            if check != masked_crc(head[:8]) or length > _MAX_LENGTH:
                raise Broken(f"{os.path.basename(path)}: broken at byte {offset}")
            end = offset + _HEAD.size + length + _FOOT
            if end > size:
                return
            yield end, _record(offset, file, length)
            offset = end


def _record(offset: int, file: BinaryIO, length: int) -> Record | None:
    data = file.read(min(length, _NEEDED))
    found: dict[int, bytes | int] = {}
    for number, value in _fields(data):
        found.setdefault(number, value)
    wall, step, summary = found.get(_WALL_TIME), found.get(_STEP, 0), found.get(_SUMMARY)
    if not isinstance(wall, bytes) or not isinstance(step, int) or not isinstance(summary, bytes):
        return None
    first = next((each for number, each in _fields(summary) if number == _VALUE), None)
    inside = _fields(first) if isinstance(first, bytes) else iter(())
    tag = next((each for number, each in inside if number == _TAG), None)
    if not isinstance(tag, bytes) or len(wall) != _DOUBLE.size:
        return None
    return Record(offset, _DOUBLE.unpack(wall)[0], step, tag.decode("utf-8", "replace"))


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Of a message that may be cut off: a field that reaches over its end is given as far as it
    goes, and nothing after it."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None:
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    return value, at


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_CASTAGNOLI = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, turned and shifted as the format has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CASTAGNOLI[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
