# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""JSON of pods, of the API server and of files that others write, with msgspec.

For deeply nested input msgspec raises RecursionError, and ValueError for all other invalid
input. Both are one ValueError here, so that a hostile answer costs its reader one `except`.
In encoding, numbers that JSON does not have become null, and half a character (a lone surrogate)
is a UnicodeEncodeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | str


@overload
def decode(data: Buffer) -> Any: ...


@overload
def decode(data: Buffer, kind: type[T], *, strict: bool = True) -> T: ...


def decode(data: Buffer, kind: Any = Any, *, strict: bool = True) -> Any:
    """A `kind`, else plain dicts, lists and values; ValueError for what is not of that shape.

    Not `strict`: numbers may also be strings, as "nan" is in our JSON.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def encode(value: Any) -> bytes:
    """Also of structs, dataclasses and enums, and of mappings that are no dicts."""
    return msgspec.json.encode(value, enc_hook=_builtin)


def to_builtins(value: Any) -> Any:
    """The same as plain dicts, lists and values."""
    return msgspec.to_builtins(value, enc_hook=_builtin, str_keys=True)


def _builtin(value: Any) -> Any:
    """msgspec writes the built-in types themselves; ruamel.yaml's texts and numbers are others."""
    kinds: tuple[tuple[type, Any], ...] = ((Mapping, dict), (str, str), (int, int), (float, float))
    for kind, plain in kinds:
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
