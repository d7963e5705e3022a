# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notes as records of a TensorBoard event file.

The messages are those of the `tensorboard` package. Its own writer is not used: it brings numpy
with it, 20 MiB for what are a length and two checksums around each message. Only the thread that
writes may import this.
"""

from __future__ import annotations

import struct

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from mwatch.export.tensorboard.writer import TextNote

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), mirrored
_MASK_ADD = 0xA282EAD8  # so that the checksum of a checksum is not one of the usual ones
_FORMAT = "brain.Event:2"


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def head(at: float) -> bytes:
    """What a file begins with."""
    return _record(event_pb2.Event(wall_time=at, file_version=_FORMAT).SerializeToString())


def record(note: TextNote) -> bytes:
    tag = note.tag.encode("utf-8", "replace").decode()
    if isinstance(note.value, str):
        kind = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
        value = summary_pb2.Summary.Value(
            tag=tag,
            metadata=summary_pb2.SummaryMetadata(plugin_data=kind),
            tensor=tensor_pb2.TensorProto(
                dtype=types_pb2.DT_STRING, string_val=[note.value.encode("utf-8", "replace")]
            ),
        )
    else:
        value = summary_pb2.Summary.Value(tag=tag, simple_value=note.value)
    summary = summary_pb2.Summary(value=[value])
    event = event_pb2.Event(wall_time=note.at, step=note.step, summary=summary)
    return _record(event.SerializeToString())


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    turned = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (turned + _MASK_ADD) & 0xFFFFFFFF)
