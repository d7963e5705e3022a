# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events as JSON objects: the contract of `mwatch parse` and of everything that stores events.

Keys are the field names, except `is_async`, which is `async`. JSON has no NaN, so non-finite
numbers are the strings "nan", "inf" and "-inf". Reading ignores keys it does not know and fills
missing ones with None, so records of older and newer releases can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mwatch.model.event import EVENT_TYPES, Event, event_name

_RENAMED = {"is_async": "async"}
_TYPES = {event_name(kind): kind for kind in EVENT_TYPES}
_KEYS = {kind: tuple(_RENAMED.get(name, name) for name in kind._fields) for kind in EVENT_TYPES}
_NUMBERS = frozenset(
    {
        "elapsed_ms", "learning_rate", "loss_scale", "grad_norm", "num_zeros", "params_norm",
        "throughput_tflops", "scale_before", "scale_after",
    }
)  # fmt: skip
_MAPS = frozenset({"losses", "extra", "values", "measures", "perplexities"})


def to_wire(event: Event) -> dict[str, Any]:
    keys = _KEYS[type(event)]
    record: dict[str, Any] = {
        "event": event_name(type(event)),
        **dict(zip(keys, event, strict=True)),
    }
    if not _is_finite(record):
        return {key: _finite(value) for key, value in record.items()}
    return record


def _is_finite(record: dict[str, Any]) -> bool:
    """Whether all numbers are plain; a sum is finite only if its parts are."""
    total = 0.0
    for key in record.keys() & _NUMBERS:
        total += record[key] or 0.0
    for key in record.keys() & _MAPS:
        for value in record[key].values():
            if isinstance(value, tuple):
                total += sum(value)
            elif isinstance(value, float):
                total += value
    return math.isfinite(total)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, tuple) else value


def from_wire(record: Mapping[str, Any]) -> Event:
    """The event that `record` describes; ValueError where it names no known event."""
    kind = _TYPES.get(str(record.get("event")))
    if kind is None:
        raise ValueError(f"no such event: {record.get('event')!r}; known: {', '.join(_TYPES)}")
    values = [_restore(key, record.get(key)) for key in _KEYS[kind]]
    event: Event = kind(*values)
    return event


def _restore(key: str, value: Any) -> Any:
    if key in _NUMBERS:
        return _number(value)
    if key in _MAPS:
        inner = value or {}
        if key in {"values", "measures"}:
            return {name: tuple(map(_number, pair)) for name, pair in inner.items()}
        return {name: _number(amount) for name, amount in inner.items()}
    return value


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
