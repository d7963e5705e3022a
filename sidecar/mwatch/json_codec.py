# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""JSON of pods, the API server and files of others, with msgspec.

msgspec raises RecursionError for deeply nested input and ValueError for other invalid input; both
are a ValueError here. Encoding turns NaN and infinity into null; a lone surrogate is a
UnicodeEncodeError. msgspec learns a type when it is first read; another thread that reads the same
type meanwhile would crash the process, so the first reading of each type has a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar, overload

import msgspec

from mwatch_trainer.scrub.scrubber import Scrubber

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | str
_learning = threading.RLock()
_LEARNT = nullcontext()
_known: set[Any] = set()
"""Types that were read before."""


@overload
def decode(data: Buffer) -> Any: ...


@overload
def decode(data: Buffer, kind: type[T], *, strict: bool = True) -> T: ...


def decode(data: Buffer, kind: Any = Any, *, strict: bool = True) -> Any:
    """Decode into `kind`, else into plain dicts, lists and values. Raises ValueError. Not `strict`:
    numbers may also be strings, as "nan" is in our JSON."""
    try:
        with _LEARNT if kind in _known else _learning:
            found = msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    _known.add(kind)
    return found


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """The same from plain values, as `decode` makes them."""
    with _LEARNT if kind in _known else _learning:
        found = msgspec.convert(value, kind, strict=strict)
    _known.add(kind)
    return found


def encode(value: Any) -> bytes:
    """Also encodes structs, dataclasses, enums and mappings that are not dicts."""
    return msgspec.json.encode(value, enc_hook=_builtin)


def encode_scrubbed(value: Any, *, indent: int = 0) -> bytes:
    """Encode without secrets; if there may be one, each key and text is scrubbed alone."""
    try:
        data = encode(value)
        has_secret = Scrubber().scrub(data) != data
    except UnicodeEncodeError:  # a file name that is not valid text
        has_secret = True
    if has_secret:
        data = encode(_scrubbed(to_builtins(value)))
    return msgspec.json.format(data, indent=indent) if indent else data


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return Scrubber().text(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_scrubbed(each) for each in value]
    return value


def to_builtins(value: Any) -> Any:
    """Convert to plain dicts, lists and values; tuples stay tuples."""
    return msgspec.to_builtins(value, enc_hook=_builtin, str_keys=True)


def _builtin(value: Any) -> Any:
    """Convert subclasses of built-in types, such as ruamel.yaml's texts and numbers."""
    kinds: tuple[tuple[type, Any], ...] = ((Mapping, dict), (str, str), (int, int), (float, float))
    for kind, plain in kinds:
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
