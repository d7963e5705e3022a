# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Determine the age of the last line of a recorded log from the times printed in it.

A file's modification time is weak evidence: `kubectl logs > x.log` makes a new file of an old log.
So the last time printed in any line, recognised or not, is compared with this machine's clock. Only
kubectl and the container runtime print their time zone. Any other clock is read as UTC, the zone of
containers, unless it would then be ahead of this machine's clock, or this machine's zone makes the
line recent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from mwatch.parse.lines.line import stamp
from mwatch.replay.timestamps import Stamps, zone_step

TAIL = 1 << 16
"""Bytes at the end of a log that are searched for times."""
_ZONED = re.compile(
    r"(?:\[pod/[^\]\s]{1,200}\] )?"
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)\d*(Z|[+-]\d\d:\d\d)[ \t]"
)
_SKEW = 60.0
"""Seconds by which clocks of two machines, or timestamps of one line, may differ."""
_LATEST = 1 << 12  # lines
_AHEAD = (
    1, 2, 3, 3.5, 4, 4.5, 5, 5.5, 5.75, 6, 6.5, 7, 8, 8.75, 9, 9.5, 10, 10.5, 11, 12, 12.75, 13, 14,
)  # fmt: skip
"""Hours by which zones east of Greenwich are ahead of UTC."""


class TailClock(NamedTuple):
    """`last`: the last time that a log prints, on the log's own clock; None: it prints no times.

    `ahead`: seconds by which true time is ahead of that clock; None: no line shows the time zone.
    """

    last: float | None
    ahead: float | None


NO_CLOCK = TailClock(None, None)


def tail_clock(tail: bytes, now: float) -> TailClock:
    stamps = Stamps(now)
    newest = now + 3600.0 * _AHEAD[-1]
    own: float | None = None
    goes_back = False
    zoned: float | None = None
    ahead: float | None = None
    text = tail.replace(b"\0", b"").decode("utf-8", "replace")  # UTF-16, or a hole in the file
    for line in text.splitlines()[-_LATEST:]:
        header = _ZONED.match(line)
        if header:
            zoned = _later(zoned, _true_time(header))
            stamps.of_text(header[1])  # provides the year for timestamps that lack one
        printed = _own_time(stamps, line[header.end() :] if header else line)
        if printed is None or printed > newest:
            continue  # a date that the line mentions, such as the expiry of a certificate
        goes_back |= own is not None and printed < own - _SKEW
        own = _later(own, printed)
        if header and zoned is not None:
            ahead = zone_step(zoned - printed, _SKEW)
    if goes_back:
        own = None  # two writers in two zones, or a clock that was set
    if zoned is None:
        return TailClock(own, None)
    if ahead is None:
        return TailClock(zoned, 0.0)
    return TailClock(max(own or 0.0, zoned - ahead), ahead)


def _own_time(stamps: Stamps, text: str) -> float | None:
    printed = stamp(text)
    return stamps.of_text(printed) if printed else stamps.of_glog(text)


def _true_time(header: re.Match[str]) -> float | None:
    try:
        return datetime.fromisoformat(header[1] + header[2]).timestamp()
    except (ValueError, OverflowError):
        return None


def _later(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


class Age(NamedTuple):
    seconds: float
    """Seconds since the last line; not negative."""
    ahead: float
    """Seconds by which true time is ahead of the log's clock."""
    assumed: str
    """The assumption about the time zone, for the user; empty if the log prints the zone."""


def age_of(clock: TailClock, now: float, *, local_offset: float, fresh: float) -> Age | None:
    """Return the age of the last line; None if it is unknown.

    `local_offset`: seconds by which this machine's zone is ahead of UTC; `fresh`: age in seconds up
    to which a log counts as recent.
    """
    if clock.last is None:
        return None
    if clock.ahead is not None:
        return Age(max(0.0, now - clock.last - clock.ahead), clock.ahead, "")
    age = now - clock.last
    local = age + local_offset
    if local_offset and local >= -_SKEW and (local <= fresh or age < -_SKEW):
        text = "its clock is taken as the local time of this machine"
        return Age(max(0.0, local), -local_offset, text)
    if age >= -_SKEW:
        return Age(max(0.0, age), 0.0, "its clock is taken as UTC")
    return _age_in_the_east(age)


def _age_in_the_east(age: float) -> Age | None:
    hours: Iterable[float] = (each for each in _AHEAD if age + 3600.0 * each >= -_SKEW)
    zone = next(iter(hours), None)
    if zone is None:
        return None  # no zone is that far ahead: the clock was wrong
    whole, part = divmod(round(zone * 60), 60)
    name = f"UTC+{whole}" + (f":{part:02d}" if part else "")
    text = f"its clock is taken as {name}, because it is ahead of this machine's"
    return Age(max(0.0, age + 3600.0 * zone), -3600.0 * zone, text)
