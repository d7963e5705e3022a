# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Printed times as seconds since 1970.

Local times are read as UTC, for a log does not name its zone. glog's stamps (`E1115 00:42:28.1`)
lack the year and get that of their neighbours, or of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from mwatch.model.event import Event
from mwatch.model.observation import Observation

_GLOG = re.compile(
    r"(?:^|[\[\s:])[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)\b"
)
_WINDOW = 120  # of a line: a stamp stands at its beginning


class Stamps:
    """Of one stream. `near`: about when it was written; None: only other stamps tell."""

    def __init__(self, near: float | None) -> None:
        self._near = near
        self._minute = ("", 0.0)

    def of_all(self, events: Sequence[Event]) -> list[float | None]:
        """Each event's own time; None where it has none."""
        if self._near is None:
            next(filter(None, map(self._read, events)), None)  # the first tells the year
        return [self._read(event) for event in events]

    def _read(self, event: Event) -> float | None:
        text = event.timestamp
        if text is None:
            return self._glog(getattr(event, "text", None))
        minute, base = self._minute
        try:
            if text[:16] != minute:
                minute = text[:16]
                base = datetime.fromisoformat(minute).replace(tzinfo=UTC).timestamp()
                self._minute = (minute, base)
            self._near = at = base + float(text[17:])
        except (ValueError, OverflowError):
            return None
        return at

    def _glog(self, text: str | None) -> float | None:
        near = self._near
        if not text or near is None or not (found := _GLOG.search(text, 0, _WINDOW)):
            return None
        year = datetime.fromtimestamp(near, UTC).year
        read = (_read_glog(each, found) for each in (year - 1, year, year + 1))
        return min(
            (at for at in read if at is not None), key=lambda at: abs(at - near), default=None
        )


def is_stamped(event: Event | Observation) -> bool:
    """Whether its own line tells when it was printed."""
    if getattr(event, "timestamp", None) is not None:
        return True
    text = getattr(event, "text", None)
    return bool(text and _GLOG.search(text, 0, _WINDOW))


def _read_glog(year: int, found: re.Match[str]) -> float | None:
    hours, minutes, seconds = found["time"].split(":")
    try:
        day = datetime(year, int(found["month"]), int(found["day"]), tzinfo=UTC)
    except ValueError:
        return None
    return day.timestamp() + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
