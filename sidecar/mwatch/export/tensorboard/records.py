# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notes as records of a TensorBoard event file.

The messages are those of the `tensorboard` package. Only the thread that writes may import this.
"""

from __future__ import annotations

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from mwatch.export.tensorboard.writer import TextNote
from mwatch.runtime.event_records import framed

_FORMAT = "brain.Event:2"


def head(at: float) -> bytes:
    """What a file begins with."""
    return framed(event_pb2.Event(wall_time=at, file_version=_FORMAT).SerializeToString())


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
    return framed(event.SerializeToString())
