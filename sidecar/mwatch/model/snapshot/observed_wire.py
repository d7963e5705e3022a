# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Observations as JSON objects, to send them from one watcher to the engine of another.

Log events have the form of `mwatch.model.snapshot.event_wire`; all others have `seen` with the name
of their kind, and its fields. Reading ignores unknown keys, so older and newer releases can read
each other; an unknown kind or state is a ValueError, and the reader skips that observation.
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
    RankStack,
    Sign,
    SourceStatusChange,
    StoredCheckpoints,
    Unreachable,
)
from mwatch.model.snapshot import event_wire

_NAMES: dict[type[Any], str] = {
    Beat: "beat",
    Sign: "sign",
    RankStack: "stack",
    ProcessExit: "exit",
    AttemptStart: "attempt",
    StoredCheckpoints: "stored",
    SourceStatusChange: "sight",
    Unreachable: "unseen",
}
_RENAMED = {SourceStatusChange: {"source": "sight"}}
_FORMS = {
    name: event_wire.RecordForm(kind, _RENAMED.get(kind, {})) for kind, name in _NAMES.items()
}


def to_wire(observed: Observed) -> dict[str, Any]:
    """Return the JSON object of an observation, with `at` and `stream`."""
    at, stream, what = observed
    return {"at": at, "stream": stream, **described(what)}


def described(what: Event | Observation) -> dict[str, Any]:
    name = _NAMES.get(type(what))
    if name is None:
        return event_wire.to_wire(what)  # type: ignore[arg-type]
    return {"seen": name, **dict(zip(_FORMS[name].keys, what, strict=True))}


def from_wire(record: Mapping[str, Any], stream: str | None = None) -> Observed:
    """Read an observation; `stream` is used if the record has none. Raises ValueError."""
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
    form = _FORMS.get(str(record.get("seen")))
    if form is None:
        raise ValueError(f"nothing of the kind {record.get('seen')!r} is known")
    found: Observation = form.read(record)
    return found
