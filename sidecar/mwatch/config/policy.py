# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A policy file: TOML in the shape of `mwatch.model.settings`, with what differs from it.

What a file does not name keeps its value. A key that is not there, a wrong type or a number out
of range is refused by its full name, so that a typing error never becomes a silent default. It
cannot know whether a threshold is wise.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from mwatch.errors import InputError
from mwatch.model.settings import DeadlineSettings, Settings

MAX_BYTES = 1_000_000
_YEARS = 10 * 366 * 86400.0
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("_seconds", 0.0, _YEARS),
    ("quantile", 0.0, 1.0),
    ("_rate", 0.0, 1.0),
    ("_share", 0.0, 1.0),
    ("ratio", 0.0, 1e6),
    ("factor", 1.0, 1e6),
)
"""By how a key ends: its least and its greatest value; all others are 0 to 10^9."""
_USUAL = (0.0, 1e9)


def load(file: Path) -> Settings:
    """InputError where the file cannot be read, or says something that is no setting."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{file}: no such policy file; check the path") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{file}: is too large for a policy ({len(data)} bytes)")
    try:
        tree = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{file}: is no TOML: {problem}; mend this line") from error
    return apply(tree, Settings(), str(file))


def apply(tree: Mapping[str, Any], settings: Settings, origin: str) -> Settings:
    """`settings` with what `tree` names; `origin` is for the message of an InputError."""
    try:
        changed: Settings = _section(tree, settings, "")
    except _Refused as refused:
        raise InputError(f"{origin}: {refused}") from None
    return changed


class _Refused(Exception):
    pass


def _section(tree: Mapping[str, Any], before: Any, path: str) -> Any:
    """A copy of the dataclass `before`."""
    known = get_type_hints(type(before))
    changed = {}
    for key, value in tree.items():
        name = f"{path}{key}"
        if key not in known:
            raise _Refused(f"{name}: no such setting; {_nearest(key, known, path)}")
        changed[key] = _value(value, known[key], getattr(before, key), name)
    after = replace(before, **changed)
    if isinstance(after, DeadlineSettings) and after.floor_seconds > after.ceiling_seconds:
        raise _Refused(
            f"{path}floor_seconds: {after.floor_seconds:g} is above ceiling_seconds "
            f"({after.ceiling_seconds:g}); raise the ceiling or lower the floor"
        )
    return after


def _value(value: Any, kind: type, before: Any, name: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise _Refused(f"{name}: is a section; write [{name}] and its keys below it")
        return _section(value, before, f"{name}.")
    if kind is int:
        return int(_in_range(_typed(value, int, name, "a whole number"), name))
    if kind is float:
        return float(_in_range(_typed(value, (int, float), name, "a number"), name))
    if kind is bool:
        return _typed(value, bool, name, "true or false")
    if kind is str:
        return _typed(value, str, name, "a text in quotes")
    raise _Refused(f"{name}: cannot be set in a file")


def _typed(value: Any, kind: type | tuple[type, ...], name: str, wanted: str) -> Any:
    is_flag = isinstance(value, bool)  # which Python counts as a number
    if not isinstance(value, kind) or (is_flag and kind is not bool):
        raise _Refused(f"{name}: is {_shown(value)}; give {wanted}")
    return value


def _in_range(value: float, name: str) -> float:
    low, high = next(
        ((low, high) for ending, low, high in _RANGES if name.endswith(ending)), _USUAL
    )
    if not (math.isfinite(value) and low <= value <= high):
        raise _Refused(f"{name}: is {value:g}; give a number from {low:g} to {high:g}")
    return value


def _nearest(key: str, known: Iterable[str], path: str) -> str:
    names = sorted(known)
    wanted = key.lower().replace("-", "_")
    near = get_close_matches(wanted, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {path}{near[0]}?"
    return f"known here: {', '.join(names)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
