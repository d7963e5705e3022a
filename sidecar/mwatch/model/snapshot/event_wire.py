# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events as JSON objects: the contract of `mwatch parse` and of everything that stores events.

Keys are the field names, except `is_async`, which is `async`. JSON has no NaN, so non-finite
numbers are the strings "nan", "inf" and "-inf". Reading checks types, ignores unknown keys and
fills missing ones with None or an empty value, so records of older and newer releases are readable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from mwatch import json_codec
from mwatch.model.event import EVENT_TYPES, Event, event_name

_NON_FINITE = frozenset({"nan", "inf", "-inf"})


class RecordForm:
    """The JSON object of a named tuple, checked by msgspec."""

    def __init__(self, kind: Any, renamed: Mapping[str, str] = MappingProxyType({})) -> None:
        hints, names = get_type_hints(kind), kind._fields
        self._kind = kind
        self.keys = tuple(renamed.get(name, name) for name in names)
        self._struct = msgspec.defstruct(
            kind.__name__,
            [_field(name, hints[name], kind._field_defaults) for name in names],
            rename=renamed,
            kw_only=True,
        )
        self._numbers = [at for at, name in enumerate(names) if hints[name] == float | None]
        self._maps = [at for at, name in enumerate(names) if get_origin(hints[name]) is Mapping]
        self._extra = names.index("extra") if "extra" in names else None

    def read(self, record: Mapping[str, Any]) -> Any:
        """Raises ValueError for a missing number or a wrong type."""
        known = {name: value for name, value in record.items() if value is not None}
        values = msgspec.structs.astuple(json_codec.convert(known, self._struct, strict=False))
        found = self._kind(*values)
        if self._extra is not None and not _NON_FINITE.isdisjoint(values[self._extra].values()):
            extra = {key: _number(value) for key, value in values[self._extra].items()}
            found = self._kind(*values[: self._extra], extra, *values[self._extra + 1 :])
        return found

    def is_finite(self, values: tuple[Any, ...]) -> bool:
        """Whether JSON can hold all numbers; a sum is finite only if its parts are."""
        total: float = sum(filter(None, [values[index] for index in self._numbers]))
        for index in self._maps:
            for value in values[index].values():
                if isinstance(value, tuple):
                    total += sum(value)
                elif isinstance(value, float):
                    total += value
        return math.isfinite(total)


def _field(name: str, hint: Any, defaults: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the JSON form of a field.

    Literals are read as text, since a newer release may have more. Only numbers are required.
    """
    if get_origin(hint) is Literal:
        hint = str
    if name in defaults:
        return name, hint, defaults[name]
    if get_origin(hint) is Mapping:
        return name, hint, msgspec.field(default_factory=dict)
    if type(None) in get_args(hint):
        return name, hint, None
    empty: dict[Any, Any] = {str: "", bool: False, tuple: ()}
    kind = get_origin(hint) or hint
    return (name, hint, empty[kind]) if kind in empty else (name, hint)


_FORMS: dict[type[Event], RecordForm] = {
    kind: RecordForm(kind, {"is_async": "async"}) for kind in EVENT_TYPES
}
_NAMES = {kind: event_name(kind) for kind in EVENT_TYPES}
_KINDS = {name: kind for kind, name in _NAMES.items()}


def to_wire(event: Event) -> dict[str, Any]:
    kind = type(event)
    form = _FORMS[kind]
    record = {"event": _NAMES[kind], **dict(zip(form.keys, event, strict=True))}
    if form.is_finite(event):
        return record
    return {key: _finite(value) for key, value in record.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, tuple) else value


def from_wire(record: Mapping[str, Any]) -> Event:
    """Raises ValueError for an unknown event."""
    kind = _KINDS.get(str(record.get("event")))
    if kind is None:
        raise ValueError(f"no such event: {record.get('event')!r}; known: {', '.join(_KINDS)}")
    event: Event = _FORMS[kind].read(record)
    return event


def _number(value: Any) -> Any:
    return float(value) if value in _NON_FINITE else value
