# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Printed times as seconds since 1970, the clock of one recorded stream, and its usual gaps.

Local times are read as UTC, because a log does not name its time zone. glog's timestamps (`E1115
00:42:28.1`) lack the year and get that of their neighbours, or of the file. An iteration line is
timestamped when it is printed, so iteration lines define the clock. Where the clock goes back by
much, or jumps by a whole time zone, it was set, and the step is compensated.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from operator import sub
from typing import cast

from mwatch import json_codec
from mwatch.model.event import Event, Iteration, StepLines
from mwatch.model.observation import Observation
from mwatch.model.step import PlacedLines
from mwatch.stats import median

_GLOG = re.compile(
    r"(?:^|[\[\s:])[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)\b"
)
_WINDOW = 120  # characters: a timestamp is near the beginning of a line
_DAY = len("2026-01-31")
_HOUR, _SECONDS = len("2026-01-31T"), len("2026-01-31T12:00:")
_LAST_HOUR, _LAST_MINUTE = 23, 59
Stamp = float | None
Stamped = Stamp | list[Stamp]
"""The time of one event, or of each of many lines; None: no timestamp."""


class Stamps:
    """Reads the timestamps of one stream.

    `near`: approximate time of writing; None: unknown. `latest`: nothing was printed after it.
    """

    def __init__(self, near: float | None, latest: float = math.inf) -> None:
        self._near = near
        self._has_year = False
        self._latest = latest
        self._minute = ("", 0.0)
        self._day = ("", 0.0)

    def of_all(self, pieces: Sequence[Event | StepLines]) -> list[Stamped]:
        if not self._has_year:  # the first printed year is better evidence than the file's age
            age, self._near = self._near, None
            next(filter(None, map(self._read, pieces)), None)
            self._has_year = self._near is not None
            self._near = self._near or age
        return [self._read(piece) for piece in pieces]

    def _read(self, piece: Event | StepLines) -> Stamped:
        if isinstance(piece, StepLines):
            return None if piece.stamps is None else self._of_lines(piece.stamps)
        if piece.timestamp is None:
            return self.of_glog(getattr(piece, "text", None))
        return self.of_text(piece.timestamp)

    def _of_lines(self, printed: bytes) -> list[Stamp]:
        """Read many timestamps, as `of_text` does, a day at a time."""
        lines = printed.count(b"\n")
        width = len(printed) // lines
        stamps: list[Stamp] = []
        while len(stamps) < lines:
            rest = printed[len(stamps) * width :]
            is_even = lines * width == len(printed)  # all with a fraction, or none
            day = self._of_day(rest, width) if is_even else None
            stamps += day or map(self.of_text, rest.decode("ascii").splitlines())
        self._near = next(filter(None, reversed(stamps)), self._near)
        return stamps

    def _of_day(self, printed: bytes, width: int) -> list[float] | None:
        """Read the timestamps of the first day.

        None if the days are not in order or not in the calendar.
        """
        day, size = printed[:_DAY], len(printed) // width
        size = bisect_right(
            range(size), day, key=lambda at: printed[at * width : at * width + _DAY]
        )
        printed = printed[: size * width]
        if printed.count(day) != size or self.of_text(printed[: width - 1].decode("ascii")) is None:
            return None
        midnight, minutes = self._day[1], _minutes()
        clock = _numbers(printed.replace(b":", b"."), width, _HOUR, _SECONDS - 1)
        seconds = _numbers(printed, width, _SECONDS, width - 1)
        try:
            return [midnight + minutes[at] + each for at, each in zip(clock, seconds, strict=True)]
        except KeyError:
            return None

    def of_text(self, text: str) -> Stamp:
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
        """Convert a date with hour and minute; ValueError if it is not in the calendar."""
        day, midnight = self._day
        if minute[:10] != day:
            day = minute[:10]
            midnight = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
            self._day = (day, midnight)
        hours, minutes = int(minute[11:13]), int(minute[14:16])
        if hours > _LAST_HOUR or minutes > _LAST_MINUTE:
            raise ValueError(minute)
        return midnight + 3600.0 * hours + 60.0 * minutes

    def of_glog(self, text: str | None) -> Stamp:
        near = self._near
        if not text or near is None or not (found := _GLOG.search(text, 0, _WINDOW)):
            return None
        year = datetime.fromtimestamp(near, UTC).year
        read = (_read_glog(each, found) for each in (year - 1, year, year + 1))
        return min(
            (at for at in read if at is not None and at <= self._latest),
            key=lambda at: abs(at - near),
            default=None,
        )


@cache
def _minutes() -> dict[float, float]:
    """Return the seconds since midnight of each minute; the key of 12:34 is the number 12.34."""
    return {
        float(f"{hour}.{minute:02}"): 3600.0 * hour + 60.0 * minute
        for hour in range(_LAST_HOUR + 1)
        for minute in range(_LAST_MINUTE + 1)
    }


def _numbers(printed: bytes, width: int, low: int, high: int) -> list[float]:
    """Return the number in these columns of every line.

    It is read as JSON, which does not allow leading zeros, so they become blanks.
    """
    cell = high - low + 1
    cells = bytearray(b"," * (len(printed) // width * cell))
    cells[::cell] = printed[low::width].replace(b"0", b" ")
    for place in range(low + 1, high):
        cells[place - low :: cell] = printed[place::width]
    numbers: list[float] = json_codec.decode(b"[" + cells[:-1] + b"]")
    return numbers


def is_stamped(event: Event | Observation) -> bool:
    """Whether the line itself has a timestamp."""
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


QUARTER = 900.0
_WIDEST = 14 * 3600.0


def zone_step(seconds: float, tolerance: float) -> float:
    """Round to a quarter of an hour, the step of time zones; 0 if `seconds` is not near one."""
    nearest = round(seconds / QUARTER) * QUARTER
    is_zone = abs(nearest) <= _WIDEST and abs(seconds - nearest) <= tolerance
    return nearest if is_zone else 0.0


STEPPED = 60.0  # going back by less is lines out of order, not a clock that was set
_SURE = 5.0
_JUMP = QUARTER - _SURE
_TICK = 1e-3
_LONGEST = 30 * 86400.0
_WHOLE_SECONDS = len("2026-01-31T12:00:00")  # the true time is up to one second later
_WITH_FRACTION = len("2026-01-31T12:00:00.123456\n")
_SECOND = 0.999


def took(event: Iteration) -> float:
    """Return the duration of the iterations of a line, without saves and evaluations."""
    seconds = (event.elapsed_ms or 0.0) * (event.covers or 1) / 1000.0
    return seconds if 0.0 <= seconds < _LONGEST else 0.0  # else NaN or nonsense


def _took_all(lines: StepLines) -> list[float]:
    elapsed = lines.column("elapsed_ms")
    if elapsed is None:
        return [0.0] * len(lines)
    spans = [each * count / 1000.0 for each, count in zip(elapsed, lines.covers, strict=True)]
    return [seconds if 0.0 <= seconds < _LONGEST else 0.0 for seconds in spans]


@dataclass(slots=True)
class StepClock:
    last: float | None = None
    """The newest time; None: not known yet."""
    shift: float = 0.0
    """Seconds added to every timestamp to compensate for steps of the clock."""
    step_at: float = float("-inf")
    """Time of the last iteration line."""
    steps_in_a_row: bool = False
    """The last event was an iteration line."""
    is_relative: bool = False
    """No timestamp was found early enough, so times count from 0."""

    def place(self, event: Iteration, stamp: float | None) -> float:
        is_whole = len(event.timestamp or "") == _WHOLE_SECONDS
        return self._tick(self._moment(took(event), stamp, is_whole=is_whole))

    def place_all(self, lines: StepLines, stamps: Sequence[float | None]) -> list[float]:
        """Return the time of each line, as calling `place` for each would."""
        printed = lines.stamps or b""
        is_new = self.is_relative and not self.shift
        are_exact = len(printed) == len(lines) * _WITH_FRACTION
        if is_new or self.last is None or not are_exact or None in stamps:
            texts = printed.split(b"\n")[:-1] or [b""] * len(lines)
            rows = zip(_took_all(lines), stamps, texts, strict=True)
            return [
                self._tick(self._moment(took, at, is_whole=len(text) == _WHOLE_SECONDS))
                for took, at, text in rows
            ]
        exact = cast(Sequence[float], stamps)
        ats = [stamp + self.shift for stamp in exact] if self.shift else list(exact)
        gaps = list(map(sub, ats, (self.last, *ats)))
        if not ats or not (min(gaps) >= 0.0 and max(gaps) <= _JUMP):
            return self._place_exact(_took_all(lines), exact, self.last)
        self._tick(ats[-1])
        return ats

    def _place_exact(
        self, spans: Sequence[float], stamps: Sequence[float], last: float
    ) -> list[float]:
        """Place lines whose timestamps have fractions of seconds."""
        ats = []
        shift = self.shift
        for seconds, stamp in zip(spans, stamps, strict=True):
            at = stamp + shift
            if not 0.0 <= at - last <= _JUMP:
                self.last = last
                at = self._moment(seconds, stamp, is_whole=False)
                shift = self.shift
            ats.append(at)
            last = at
            self.steps_in_a_row = True
        self._tick(last)
        return ats

    def _tick(self, at: float) -> float:
        self.last = self.step_at = at
        self.steps_in_a_row = True
        return at

    def _moment(self, seconds: float, stamp: float | None, *, is_whole: bool) -> float:
        last = self.last or 0.0
        if stamp is None:
            return last + max(seconds, _TICK)
        if self.is_relative and not self.shift:
            self.shift = last + seconds - stamp
        at = stamp + self.shift
        if is_whole:
            at = min(max(at, self.step_at + seconds), at + _SECOND)
        if at < last:
            if last - at > STEPPED:
                self.shift += last + seconds - at
                return last + seconds
            return last
        if at - last > _JUMP and self.steps_in_a_row:
            added = max(0.0, zone_step(at - last - seconds, _SURE))
            self.shift -= added
            at -= added
        return at


LOOK_SECONDS = 1.0
_LINES = 32
_LIKE_OTHERS = 1.25
"""No detector's deadline is shorter than this many usual gaps."""


class UsualGaps:
    """The usual time between iteration lines of an attempt."""

    def __init__(self) -> None:
        self.dull = LOOK_SECONDS
        """A silence up to this long needs no assessment."""
        self._gaps: list[float] = []
        self._line_at: float | None = None

    def copy(self) -> UsualGaps:
        other = UsualGaps()
        other.dull, other._gaps, other._line_at = self.dull, self._gaps.copy(), self._line_at
        return other

    def learn(self, at: float) -> None:
        if self._line_at is None:
            self._line_at = at
        else:
            self._learn_all((at - self._line_at,), at)

    def pass_over(self, placed: PlacedLines, begin: int, end: int, last: float) -> int:
        """Learn from lines starting at `begin`; stop before one whose silence needs an assessment.

        `last`: time of the last observation before them. Return the index of the line to stop at.
        """
        if self._line_at is None or begin == end:
            return begin
        part, between = placed.ats[begin:end], placed.gaps[begin + 1 : end]
        silences = [part[0] - last, *between]
        gaps = [part[0] - self._line_at, *between]
        if self._are_dull(silences, gaps):
            self._learn_all(gaps, part[-1])
            return end
        done = 0
        while done < len(part):
            some = slice(done, done + _LINES - len(self._gaps))
            if max(silences[some]) > self.dull:
                odd = next(at for at, each in enumerate(silences[some], done) if each > self.dull)
                if odd > done:
                    self._learn_all(gaps[done:odd], part[odd - 1])
                return begin + odd
            self._learn_all(gaps[some], part[some][-1])
            done += len(gaps[some])
        return end

    def _are_dull(self, silences: Sequence[float], gaps: Sequence[float]) -> bool:
        """Whether no silence before these lines needs an assessment, whichever of their gaps turn
        out to be the usual ones."""
        shortest = min(min(gaps), *self._gaps) if self._gaps else min(gaps)
        return max(silences) <= min(self.dull, max(LOOK_SECONDS, shortest * _LIKE_OTHERS))

    def _learn_all(self, added: Sequence[float], line_at: float) -> None:
        """Like `learn` for each gap; only the last complete set of gaps has an effect."""
        gaps = [*self._gaps, *added]
        whole = len(gaps) // _LINES * _LINES
        if whole:
            self.dull = max(LOOK_SECONDS, median(gaps[whole - _LINES : whole]) * _LIKE_OTHERS)
        self._gaps = gaps[whole:]
        self._line_at = line_at
