# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes `story.json`, the report of a run as a file, which is replaced atomically.

Files of this and older versions are read; unknown keys are ignored. A file of a newer version, with
an unexpected structure or beyond the limits is rejected with the location of the error. Texts are
scrubbed and shortened when they are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from mwatch import json_codec
from mwatch.engine.advice import advise
from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.report.files import STORY
from mwatch.report.model import MAX_WORDS, short
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket
from mwatch.runtime.files import replace_file

VERSION = 2
MAX_BYTES = 16 << 20
_MAX_ITEMS = 4096
_MAX_NUMBER = 1e300
_DIGITS = 10  # of 4294967296, the first loss scale of fp16
_ROW = 11  # values of a bucket: see `_row`
_CAUSE = re.compile(r"story\.(?!incidents\b).*\.cause")  # the cause of an incident may be any text


def to_json(report: RunReport) -> bytes:
    return json_codec.encode_scrubbed({"version": VERSION, "story": _plain(report)})


def from_json(data: bytes, name: str = STORY) -> RunReport:
    """Parse a story; InputError, with file and location, if it is invalid."""
    try:
        return _decode(data)
    except ValueError as error:
        fix = "use a file written by `mwatch run`, or give the logs instead"
        raise InputError(f"{name}: {error}; {fix}") from None


def write(report: RunReport, file: Path) -> None:
    """Replace the file atomically. Raises OSError."""
    replace_file(file, to_json(report))


def read(file: Path) -> RunReport:
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; check the path") from error
    return from_json(data, str(file))


def _decode(data: bytes) -> RunReport:
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        found = json_codec.decode(data)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise ValueError("no version")
    if version > VERSION:
        raise ValueError(f"version {version} needs a newer mwatch")
    body = found.get("story")
    if not isinstance(body, dict):
        raise ValueError("story is not an object")
    if version == 1:
        body = _from_version_1(body)
    if "sights" in body:  # until 0.3: the name of the key in 0.1
        body["source_states"] = body.pop("sights")
    try:
        return json_codec.convert(_readable(body, "story"), RunReport)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ValueError(f"story.{where[:-1]}: {what}" if where else f"story: {what}") from None


def _from_version_1(old: dict[str, Any]) -> dict[str, Any]:
    """Convert a version 1 story, which has cause and summary but no decision or findings."""
    cause, summary = old.get("cause"), old.get("summary")
    known = Cause(cause) if cause in set(Cause) else Cause.UNKNOWN
    return old | {
        "verdict": {"cause": cause, "summary": summary},
        "decision": {"action": "none", "cause": cause, "attempt": 0, "reason": summary},
        "advice": asdict(advise(known, None, {})),
        "timeline": old.get("happenings", []),
        "files": old.get("sources", []),
    }


def _readable(value: Any, where: str) -> Any:
    """Check the limits, unfold the rows of buckets, and replace causes of a newer mwatch."""
    if isinstance(value, dict | list) and len(value) > _MAX_ITEMS:
        raise ValueError(f"{where} has more than {_MAX_ITEMS} items")
    if isinstance(value, dict):
        return {key: _readable(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        if where == "story.series":
            return [_bucket(row, f"{where}[{i}]") for i, row in enumerate(value)]
        return [_readable(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, str):
        if len(value) > MAX_WORDS:
            raise ValueError(f"{where} has more than {MAX_WORDS} characters")
        return Cause.UNKNOWN if _CAUSE.fullmatch(where) and value not in set(Cause) else value
    if isinstance(value, int | float) and abs(value) > _MAX_NUMBER:
        raise ValueError(f"{where} is too large a number")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Bucket):
        return _row(value)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return _clamp(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return short(value.encode("utf-8", "replace").decode())
    return value


def _row(bucket: Bucket) -> list[Any]:
    """Encode a bucket as a list instead of an object, because there are thousands of them."""
    ranges = (bucket.loss, bucket.step_seconds, bucket.loss_scale, bucket.grad_norm)
    values = [
        None if each is None
        else _cut(each.mean) if each.lines == 1
        else [_cut(each.low), _cut(each.high), _cut(each.mean), each.lines]
        for each in ranges
    ]  # fmt: skip
    times = (round(bucket.began_at, 3), round(bucket.ended_at, 3))
    head = (bucket.attempt, bucket.first, bucket.last, *times)
    return [*head, bucket.skipped, bucket.bad, *values]


def _bucket(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, list) or len(row) != _ROW:
        raise ValueError(f"{where} is not a row of {_ROW} values")
    head = dict(zip(("attempt", "first", "last", "began_at", "ended_at"), row, strict=False))
    names = ("loss", "step_seconds", "loss_scale", "grad_norm")
    ranges = {
        name: [value, value, value, 1] if isinstance(value, int | float) else value
        for name, value in zip(names, row[7:], strict=True)
    }
    found = _readable(head | ranges | {"skipped": row[5], "bad": row[6]}, where)
    assert isinstance(found, dict)
    return found


def _cut(value: float) -> float:
    return float(f"{_clamp(value):.{_DIGITS}g}")


def _clamp(value: float) -> float:
    return min(_MAX_NUMBER, max(-_MAX_NUMBER, value))
