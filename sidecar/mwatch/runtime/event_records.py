# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record framing of TensorBoard's event files: length, checksum, message, checksum.

The package `tensorboard` has a writer and a reader, but they import numpy: 20 MiB of memory for a
length and two checksums around each message.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("<QI")  # message length, and the checksum of these eight bytes
FOOT = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bit-reversed
_MASK_ADD = 0xA282EAD8  # the format masks checksums: a CRC over data with CRCs is weak


def framed(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + FOOT.pack(masked_crc(length)) + message + FOOT.pack(masked_crc(message))


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as the format requires."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_ADD) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()
