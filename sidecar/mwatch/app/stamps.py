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
from mwatch.model.step_lines import StepLines

_GLOG = re.compile(
    r"(?:^|[\[\s:])[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)\b"
)
_WINDOW = 120  # of a line: a stamp stands at its beginning
_LAST_HOUR, _LAST_MINUTE = 23, 59
Stamp = float | None
Stamped = Stamp | list[Stamp]
"""Of one event, or of each of many lines; None: it tells no time."""


class Stamps:
    """Of one stream. `near`: about when it was written; None: only other stamps tell."""

    def __init__(self, near: float | None) -> None:
        self._near = near
        self._minute = ("", 0.0)
        self._day = ("", 0.0)

    def of_all(self, pieces: Sequence[Event | StepLines]) -> list[Stamped]:
        """The own time of each."""
        if self._near is None:
            next(filter(None, map(self._read, pieces)), None)  # the first tells the year
        return [self._read(piece) for piece in pieces]

    def _read(self, piece: Event | StepLines) -> Stamped:
        if isinstance(piece, StepLines):
            return None if piece.stamps is None else self._of_lines(piece.stamps)
        if piece.timestamp is None:
            return self._glog(getattr(piece, "text", None))
        return self._of_text(piece.timestamp)

    def _of_lines(self, texts: Sequence[str]) -> list[Stamp]:
        minute, base = self._minute
        stamps: list[Stamp] = []
        for text in texts:
            if text[:16] != minute:
                stamps.append(self._of_text(text))
                minute, base = self._minute
            else:
                stamps.append(base + float(text[17:]))
        self._near = next(filter(None, reversed(stamps)), self._near)
        return stamps

    def _of_text(self, text: str) -> Stamp:
        minute, base = self._minute
        try:
            if text[:16] != minute:
                minute = text[:16]
                base = self._minute_at(minute)
                self._minute = (minute, base)
            self._near = at = base + float(text[17:])
        except (ValueError, OverflowError):
            return None
        return at

    def _minute_at(self, minute: str) -> float:
        """ValueError for one that is not in the calendar, or of no day."""
        day, midnight = self._day
        if minute[:10] != day:
            day = minute[:10]
            midnight = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
            self._day = (day, midnight)
        hours, minutes = int(minute[11:13]), int(minute[14:16])
        if hours > _LAST_HOUR or minutes > _LAST_MINUTE:
            raise ValueError(minute)
        return midnight + 3600.0 * hours + 60.0 * minutes

    def _glog(self, text: str | None) -> Stamp:
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
