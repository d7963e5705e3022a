# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Observations as JSON objects: how what one watcher saw reaches the engine of another.

Events of the log have the form of `mwatch.model.snapshot.event_wire`; all others have `seen`
with the name of their kind, and the fields of that kind. Reading ignores keys that it does not
know and takes a missing one as None, so an older and a newer release can read each other; a kind
or a state that it does not know is a ValueError, for whoever reads to leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mwatch.model.event import Event
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observation,
    Observed,
    ProcessExit,
    Sign,
    SignSource,
    SignState,
    Source,
    SourceStatusChange,
    StoredCheckpoint,
    StoredCheckpoints,
    Unreachable,
)
from mwatch.model.snapshot import event_wire

_NAMES: dict[type[Observation], str] = {
    Beat: "beat",
    Sign: "sign",
    ProcessExit: "exit",
    AttemptStart: "attempt",
    StoredCheckpoints: "stored",
    SourceStatusChange: "sight",
    Unreachable: "unseen",
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


def to_wire(observed: Observed) -> dict[str, Any]:
    """With `at` and `stream`; a kind that is sent often leaves its stream out afterwards."""
    at, stream, what = observed
    return {"at": at, "stream": stream, **described(what)}


def described(what: Event | Observation) -> dict[str, Any]:
    name = _NAMES.get(type(what))  # type: ignore[arg-type]
    if name is None:
        return event_wire.to_wire(what)  # type: ignore[arg-type]
    body = what._asdict()
    if isinstance(what, StoredCheckpoints):
        body["checkpoints"] = [each._asdict() for each in what.checkpoints]
    return {"seen": name, **body}


def from_wire(record: Mapping[str, Any], stream: str | None = None) -> Observed:
    """`stream`: where the record does not name one. ValueError for what is no observation."""
    at = record.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ValueError(f"no moment: {at!r}")
    name = record.get("stream", stream)
    if not isinstance(name, str):
        raise ValueError("no stream")
    return Observed(float(at), name, _what(record))


def _what(record: Mapping[str, Any]) -> Event | Observation:
    if "event" in record:
        return event_wire.from_wire(record)
    kind = _KINDS.get(str(record.get("seen")))
    if kind is None:
        raise ValueError(f"nothing of the kind {record.get('seen')!r} is known")
    values = {name: record.get(name) for name in kind._fields}
    if kind is Sign:
        values["source"] = SignSource(str(values["source"]))
        values["state"] = SignState(str(values["state"]))
        values["text"] = values["text"] or ""
    elif kind is SourceStatusChange:
        values["sight"] = Source(str(values["sight"]))
        values["reason"] = values["reason"] or ""
    elif kind is StoredCheckpoints:
        values["checkpoints"] = _checkpoints(values["checkpoints"])
    return kind(**values)  # type: ignore[arg-type]


def _checkpoints(listed: Any) -> tuple[StoredCheckpoint, ...]:
    records = listed if isinstance(listed, list) else []
    return tuple(
        StoredCheckpoint._make(each.get(name) for name in StoredCheckpoint._fields)
        for each in records
        if isinstance(each, Mapping)
    )
