# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`story.json`, a run's report as a file: written whole or not at all, and read with suspicion.

A reader takes any file of this version or an older one, also with keys that it does not know, and
refuses what is not of the right shape, too long, or of a newer version: then it names the place.
Every text is scrubbed and cut as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mwatch import json_codec
from mwatch.engine.advice import advise
from mwatch.errors import InputError
from mwatch.model.finding import Cause
from mwatch.report.model import MAX_WORDS, short
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange
from mwatch.runtime.files import replace_file

VERSION = 2
NAME = "story.json"
MAX_BYTES = 16 << 20
_MAX_ITEMS = 4096
_MAX_NUMBER = 1e300
_DIGITS = 10
"""The first loss scale of fp16, 4294967296, has so many."""


class _Wrong(Exception):
    """Where in the file, and what is wrong there."""


def to_json(story: RunReport) -> bytes:
    return json_codec.encode({"version": VERSION, "story": _plain(story)})


def from_json(data: bytes, name: str = NAME) -> RunReport:
    """InputError that names the file and the place."""
    mend = "let `mwatch run` write it, or name the logs instead"
    try:
        if len(data) > MAX_BYTES:
            raise _Wrong(f"is larger than {MAX_BYTES >> 20} MiB")
        found = json_codec.decode(data)
        if not isinstance(found, dict) or not isinstance(found.get("version"), int):
            raise _Wrong("has no version")
        if found["version"] > VERSION:
            raise _Wrong(f"has version {found['version']}, which needs a newer mwatch")
        body = found.get("story")
        if found["version"] == 1 and isinstance(body, dict):
            body = _from_version_1(body)
        story = _read(RunReport, body, "story")
    except ValueError as error:
        raise InputError(f"{name}: is no JSON ({error}); {mend}") from None
    except _Wrong as error:
        raise InputError(f"{name}: {error}; {mend}") from None
    assert isinstance(story, RunReport)
    return story


def write(story: RunReport, file: Path) -> None:
    """A reader sees the old one or the new one. OSError where it cannot be written."""
    replace_file(file, to_json(story))


def read(file: Path) -> RunReport:
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check it") from error
    return from_json(data, str(file))


def _from_version_1(old: dict[str, Any]) -> dict[str, Any]:
    """Version 1 has cause and summary of the run, and neither decision nor findings."""
    cause, summary = old.get("cause"), old.get("summary")
    known = Cause(cause) if cause in set(Cause) else Cause.UNKNOWN
    return old | {
        "verdict": {"cause": cause, "summary": summary},
        "decision": {"action": "none", "cause": cause, "attempt": 0, "reason": summary},
        "advice": advise(known, None, {})._asdict(),
        "timeline": old.get("happenings", []),
        "files": old.get("sources", []),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Bucket):
        return _row(value)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return _held(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return short(value.encode("utf-8", "replace").decode())
    return value


def _row(bucket: Bucket) -> list[Any]:
    """Short: there are thousands."""
    spans = (bucket.loss, bucket.step_seconds, bucket.loss_scale, bucket.grad_norm)
    told = [
        None if span is None
        else _cut(span.mean) if span.lines == 1
        else [_cut(span.low), _cut(span.high), _cut(span.mean), span.lines]
        for span in spans
    ]  # fmt: skip
    moments = (round(bucket.began_at, 3), round(bucket.ended_at, 3))
    head = (bucket.attempt, bucket.first, bucket.last, *moments)
    return [*head, bucket.skipped, bucket.bad, *told]


def _cut(value: float) -> float:
    return float(f"{_held(value):.{_DIGITS}g}")


def _held(value: float) -> float:
    """What is larger is not read again."""
    return min(_MAX_NUMBER, max(-_MAX_NUMBER, value))


def _read(kind: Any, value: Any, where: str) -> Any:
    if kind is Bucket:
        return _bucket(value, where)
    if is_dataclass(kind):
        return _record(kind, value, where)
    if get_origin(kind) is UnionType:
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else _read(inner, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > _MAX_ITEMS:
            raise _Wrong(f"{where} is no list of at most {_MAX_ITEMS}")
        inner = get_args(kind)[0]
        return tuple(_read(inner, each, f"{where}[{i}]") for i, each in enumerate(value))
    if get_origin(kind) is Mapping:
        inner = get_args(kind)[1]
        return {key: _read(inner, each, where) for key, each in _object(value, where).items()}
    if issubclass(kind, tuple):
        return _record(kind, value, where)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if issubclass(kind, StrEnum):
        return _member(kind, _scalar(str, value, where), where)
    if kind is str:
        if not isinstance(value, str) or len(value) > MAX_WORDS:
            raise _Wrong(f"{where} is no text of at most {MAX_WORDS} characters")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise _Wrong(f"{where} is neither true nor false")
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or abs(value) > _MAX_NUMBER or (kind is int and not isinstance(value, int)):
        raise _Wrong(f"{where} is no {'whole ' if kind is int else ''}number")
    return value if kind is int else float(value)


def _member(kind: type[StrEnum], value: str, where: str) -> StrEnum:
    """A cause that only a newer mwatch knows is unknown to this one."""
    if value in set(kind):
        return kind(value)
    if kind is Cause:
        return Cause.UNKNOWN
    raise _Wrong(f"{where} is none of {', '.join(kind)}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _optional(kind: Any) -> frozenset[str]:
    """Fields of a dataclass or a named tuple that a file may leave out."""
    if not is_dataclass(kind):
        return frozenset(kind._field_defaults)
    return frozenset(
        each.name
        for each in fields(kind)
        if each.default is not MISSING or each.default_factory is not MISSING
    )


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
        raise _Wrong(f"{where} is no object")
    return value


def _record(kind: Any, value: Any, where: str) -> Any:
    given, found = _object(value, where), {}
    for name, hint in _hints(kind).items():
        if name in given:
            found[name] = _read(hint, given[name], f"{where}.{name}")
        elif name not in _optional(kind):
            raise _Wrong(f"{where}.{name} is missing")
    return kind(**found)


def _bucket(row: Any, where: str) -> Bucket:
    if not isinstance(row, list) or len(row) != 11:
        raise _Wrong(f"{where} is no row of 11 values")
    kinds = (int, int, int, float, float, int, int)
    attempt, first, last, began, ended, skipped, bad = (
        _scalar(kind, value, f"{where}[{i}]")
        for i, (kind, value) in enumerate(zip(kinds, row, strict=False))
    )
    loss, seconds, scale, norm = (_span(value, where) for value in row[7:])
    return Bucket(
        attempt, first, last, began, ended, loss, seconds, scale, norm, skipped, bad
    )  # fmt: skip


def _span(value: Any, where: str) -> ValueRange | None:
    if value is None:
        return None
    if not isinstance(value, list):
        alone = _scalar(float, value, where)
        return ValueRange(alone, alone, alone, 1)
    if len(value) != 4:
        raise _Wrong(f"{where} has a range that is no four numbers")
    low, high, mean = (_scalar(float, each, where) for each in value[:3])
    return ValueRange(low, high, mean, max(1, _scalar(int, value[3], where)))
