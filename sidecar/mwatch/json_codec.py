# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Encode and decode JSON with msgspec: responses of pods and of the API server, and other files.

msgspec raises RecursionError for deeply nested input and ValueError for other invalid input; this
module raises ValueError for both. Encoding turns NaN and infinity into null; a lone surrogate
raises UnicodeEncodeError. msgspec builds its description of a type on the first decode; a second
thread that decodes the same type at that moment would crash the process, so the first decode of
each type takes a lock.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar, overload

import msgspec

from mwatch_trainer.scrub.scrubber import SCRUBBED, Scrubber, is_named_secret

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | str
_BRACKETS = re.compile(r"[\[\]{}]")
_learning = threading.RLock()
_LEARNT = nullcontext()
_known: set[Any] = set()
"""Types that have been decoded before and no longer need the lock."""


@overload
def decode(data: Buffer) -> Any: ...


@overload
def decode(data: Buffer, kind: type[T], *, strict: bool = True) -> T: ...


def decode(data: Buffer, kind: Any = Any, *, strict: bool = True) -> Any:
    """Decode into `kind`, by default into plain dicts, lists and values. Raises ValueError. With
    `strict=False`, numbers may also be strings, as "nan" is in our JSON."""
    try:
        with _LEARNT if kind in _known else _learning:
            found = msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    _known.add(kind)
    return found


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Convert plain values, as `decode` returns them, into `kind`. Raises ValueError."""
    with _LEARNT if kind in _known else _learning:
        found = msgspec.convert(value, kind, strict=strict)
    _known.add(kind)
    return found


def encode(value: Any) -> bytes:
    """Encode to JSON; accepts structs, dataclasses, enums and mappings other than dicts too."""
    return msgspec.json.encode(value, enc_hook=_builtin)


def encode_scrubbed(value: Any, *, indent: int = 0) -> bytes:
    """Encode without secrets; if a secret is suspected, each key and string is scrubbed separately.

    The strings of a list are scrubbed in order, as lines of one output, because a private key spans
    several lines.
    """
    try:
        data = encode(value)
        plain = decode(data)
    except UnicodeEncodeError:  # a file name that is not valid text
        data, plain = b"", to_builtins(value)
    if not data or _has_secret(plain):
        data = encode(_scrubbed(plain, Scrubber()))
    return msgspec.json.format(data, indent=indent) if indent else data


def scrubbed(value: Any) -> Any:
    """Convert to plain dicts, lists and values without secrets."""
    plain = to_builtins(value)
    return _scrubbed(plain, Scrubber()) if _has_secret(plain) else plain


def _has_secret(value: Any) -> bool:
    """Whether a secret is suspected. Scanning all strings at once is faster than one by one."""
    texts: list[str] = []
    is_named = _collect(value, texts)
    data = "\n".join(texts).encode("utf-8", "surrogatepass")
    return is_named or Scrubber().scrub(data) != data


def _collect(value: Any, texts: list[str]) -> bool:
    """Append all strings to `texts`; return whether the key of one marks it as a secret."""
    is_named = False
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            texts.append(str(key))
            is_named |= isinstance(each, str) and is_named_secret(str(key), each)
            is_named |= _collect(each, texts)
    elif isinstance(value, list | tuple):
        for each in value:
            is_named |= _collect(each, texts)
    return is_named


def _scrubbed(value: Any, scrubber: Scrubber) -> Any:
    if isinstance(value, str):
        return scrubber.text(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        pairs = ((str(key), each) for key, each in value.items())
        return {Scrubber().text(key): _value(key, each) for key, each in pairs}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        lines = Scrubber()
        return [_scrubbed(each, lines) for each in value]
    return value


def _value(key: str, value: Any) -> Any:
    """Scrub a value together with its key, which may mark it as secret: `"password": "hunter2"`."""
    if isinstance(value, str) and is_named_secret(key, value):
        return SCRUBBED
    return _scrubbed(value, Scrubber())


def check_depth(text: str, most: int) -> None:
    """Refuse deep nesting, for which a YAML parser takes quadratic time. Raises ValueError."""
    depth = most + 1 if "- " * most in text else 0
    for each in _BRACKETS.findall(text) or [""]:
        if depth > most:
            raise ValueError(f"nested more than {most} levels deep")
        depth = max(0, depth + (1 if each in ("[", "{") else -1))


def checked(content: Any, most: int) -> Any:
    """Return the tree if its YAML aliases expand to at most `most` values. Raises ValueError."""
    left, waiting = most, [content]
    while waiting and left >= len(waiting):
        node, left = waiting.pop(), left - 1
        waiting += node.values() if isinstance(node, Mapping) else ()
        waiting += node if isinstance(node, list) else ()
    if waiting:
        raise ValueError(f"its aliases stand for more than {most} values")
    return content


def to_builtins(value: Any) -> Any:
    """Convert to plain dicts, lists and values; tuples stay tuples."""
    return msgspec.to_builtins(value, enc_hook=_builtin, str_keys=True)


def _builtin(value: Any) -> Any:
    """Convert subclasses of built-in types, such as ruamel.yaml's strings and numbers."""
    kinds: tuple[tuple[type, Any], ...] = ((Mapping, dict), (str, str), (int, int), (float, float))
    for kind, plain in kinds:
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
