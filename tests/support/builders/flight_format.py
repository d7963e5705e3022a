# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How torch spells a flight-recorder dump: the keys by release, and the steps of its pickler."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.builders.flight import Flight, Played

_FRAMES = [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}]


def entry(
    flight: Flight, rank: int, played: Played, record: int, version: str, *, is_head: bool
) -> dict[str, Any]:
    """One record; `is_head`: the oldest that is not over, so its kernel has begun."""
    call = played.call
    title = f"{flight.library}:{call.kind}"
    if call.to is not None:
        line = flight.members(rank, call.group)
        ours, other = line.index(rank), line.index(call.to)
        title += f" {ours}{'->' if call.kind == 'send' else '<-'}{other}"
    state = "completed" if played.is_done else "started" if is_head else "scheduled"
    found = {
        "frames": _FRAMES,
        "record_id": record,
        "pg_id": int(played.name),
        "process_group": (played.name, flight.description(call.group)),
        "collective_seq_id": played.number if call.to is None else 0,
        "p2p_seq_id": 0 if call.to is None else played.number,
        "op_id": played.number,
        "profiling_name": title,
        "time_created_ns": int(played.at * 1e9),
        "input_sizes": [list(call.sizes)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(call.sizes)],
        "output_dtypes": ["Float"],
        "state": "scheduled" if flight.library == "gloo" else state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": played.is_done,
        "timeout_ms": 600_000,
        "is_p2p": call.to is not None,
    }
    return found if version.startswith("2") else _of_torch_2_3(found)


def in_batch(found: dict[str, Any], is_done: bool) -> list[dict[str, Any]]:
    """As NCCL records a batch of one: only its end is ever brought up to date, and that does not
    say that it is one of sends."""
    first = found | {"state": "scheduled", "retired": False}
    end = found | {
        "record_id": found["record_id"] + 1,
        "profiling_name": "nccl:coalesced",
        "input_sizes": [],
        "output_sizes": [],
        "is_p2p": False,
        "state": "completed" if is_done else "scheduled",
    }
    return [first, end]


def _of_torch_2_3(found: dict[str, Any]) -> dict[str, Any]:
    """One number for all, and neither the types nor whether it is a send."""
    number = found["collective_seq_id"] or found["p2p_seq_id"]
    gone = {"collective_seq_id", "p2p_seq_id", "op_id", "is_p2p", "timeout_ms"}
    gone |= {"input_dtypes", "output_dtypes"}
    return {key: value for key, value in found.items() if key not in gone} | {"seq_id": number}


def pickled(value: object) -> bytes:
    """By the steps that torch's own pickler takes: protocol 2, texts kept and called again."""
    out = bytearray(b"\x80\x02")
    _push(value, out, {})
    return bytes(out) + b"."


def _push(value: object, out: bytearray, known: dict[object, int]) -> None:
    if isinstance(value, dict):
        _push_dict(value, out, known)
    elif isinstance(value, list):
        out += b"]("
        for each in value:
            _push(each, out, known)
        out += b"e"
    elif isinstance(value, tuple):
        assert len(value) == 2
        for each in value:
            _push(each, out, known)
        out += b"\x86"
    elif isinstance(value, str):
        if not _recall(value, out, known):
            text = value.encode()
            out += b"X" + struct.pack("<I", len(text)) + text
            _keep(value, out, known)
    else:
        _push_number(value, out)


def _push_dict(value: dict[str, Any], out: bytearray, known: dict[object, int]) -> None:
    """A frame of a stack is spelt out once, as a text is."""
    is_frame = "filename" in value
    if is_frame and _recall(id(value), out, known):
        return
    out += b"}("
    for key, each in value.items():
        _push(key, out, known)
        _push(each, out, known)
    out += b"u"
    if is_frame:
        _keep(id(value), out, known)


def _recall(what: object, out: bytearray, known: dict[object, int]) -> bool:
    place = known.get(what)
    if place is None:
        return False
    out += b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)
    return True


def _keep(what: object, out: bytearray, known: dict[object, int]) -> None:
    place = known[what] = len(known)
    out += b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place)


def _push_number(value: object, out: bytearray) -> None:
    if value is None:
        out += b"N"
    elif isinstance(value, bool):
        out += b"\x88" if value else b"\x89"
    elif isinstance(value, float):
        out += b"G" + struct.pack(">d", value)
    else:
        assert isinstance(value, int)
        if 0 <= value < 256:
            out += b"K" + bytes([value])
        elif -(1 << 31) <= value < 1 << 31:
            out += b"J" + struct.pack("<i", value)
        else:
            out += b"\x8a\x08" + struct.pack("<q", value)
