# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The envelope of every `--json`: format `version`, `kind` of content, `time` of writing.

The content has its keys next to these three. A number of seconds since 1970 under a key such as
`since` is repeated as RFC 3339 text under `since_time`. `docs/json.schema.json` describes every
kind.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from mwatch.cli.shared.terminal import write

VERSION = 1
_SECONDS = frozenset({"at", "newest_mtime", "observed_at", "since", "until", "written_at"})
"""Keys whose values are seconds since 1970."""


def write_json(kind: str, body: Mapping[str, Any], *, indent: int | None = 2) -> None:
    from mwatch import json_codec  # not needed for --help

    clean = json_codec.scrubbed(body)  # string by string, to stay valid JSON
    whole = {**envelope(kind), **with_times(clean), "kind": kind}
    write(json.dumps(whole, indent=indent, ensure_ascii=False, allow_nan=False))


def envelope(kind: str, at: float | None = None) -> dict[str, Any]:
    return {"version": VERSION, "kind": kind, "time": rfc3339(time.time() if at is None else at)}


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def with_times(value: Any) -> Any:
    """Plain values, with a text for each time; NaN and infinity, which JSON lacks, become None."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            found[key] = with_times(inner)
            if key in _SECONDS and isinstance(inner, float):
                with suppress(ValueError, OverflowError, OSError):  # outside the range of dates
                    found[f"{key}_time"] = rfc3339(inner)
        return found
    if isinstance(value, list | tuple):
        return [with_times(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
