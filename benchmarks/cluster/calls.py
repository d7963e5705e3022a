# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The calls that the controller makes, as the API server itself wrote them down (its audit log)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

FILE = "audit.jsonl"
_USER = "system:serviceaccount:training:mwatch-controller"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [_USER]}, {"level": "None"}],
}


class Call(NamedTuple):
    began_at: float
    ended_at: float
    verb: str
    """`list`, `watch`, `delete`…"""
    resource: str
    code: int

    @property
    def name(self) -> str:
        return f"{self.verb} {self.resource}"


class Calls:
    """Those since it was made, or since the last that was read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._place = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[Call]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole)
        return [_call(json.loads(line)) for line in whole.splitlines()]


def _call(record: dict[str, Any]) -> Call:
    about = record.get("objectRef") or {}
    names = [str(about[name]) for name in ("resource", "subresource") if about.get(name)]
    return Call(
        _seconds(record["requestReceivedTimestamp"]),
        _seconds(record["stageTimestamp"]),
        str(record["verb"]),
        "/".join(names) or str(record.get("requestURI", "")),
        int((record.get("responseStatus") or {}).get("code", 0)),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def counted(calls: Sequence[Call]) -> dict[str, int]:
    """The most frequent first."""
    return dict(Counter(call.name for call in calls).most_common())


def within(calls: Sequence[Call], since: float, until: float) -> Iterator[Call]:
    return (call for call in calls if since <= call.began_at < until)
