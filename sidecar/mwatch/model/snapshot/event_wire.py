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
_NUMBERS = frozenset(
    {
        "elapsed_ms", "learning_rate", "loss_scale", "grad_norm", "num_zeros", "params_norm",
        "throughput_tflops", "scale_before", "scale_after",
    }
)  # fmt: skip
_MAPS = frozenset({"losses", "extra", "values", "measures", "perplexities"})


class _Plan:
    """Of one kind of event: its keys, and where numbers stand that may be NaN or infinite."""

    def __init__(self, kind: type[Event]) -> None:
        self.keys = ("event", *(_RENAMED.get(name, name) for name in kind._fields))
        self.numbers = [index for index, name in enumerate(kind._fields) if name in _NUMBERS]
        self.maps = [index for index, name in enumerate(kind._fields) if name in _MAPS]

    def is_finite(self, event: tuple[Any, ...]) -> bool:
        """Whether all numbers are plain; a sum is finite only if its parts are."""
        total: float = sum(filter(None, [event[index] for index in self.numbers]))
        for index in self.maps:
            for value in event[index].values():
                if isinstance(value, tuple):
                    total += sum(value)
                elif isinstance(value, float):
                    total += value
        return math.isfinite(total)


_PLANS = {kind: _Plan(kind) for kind in EVENT_TYPES}


def to_wire(event: Event) -> dict[str, Any]:
    kind = type(event)
    plan = _PLANS[kind]
    record = dict(zip(plan.keys, (event_name(kind), *event), strict=True))
    if plan.is_finite(event):
        return record
    return {key: _finite(value) for key, value in record.items()}


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
    values = [_restore(key, record.get(key)) for key in _PLANS[kind].keys[1:]]
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
