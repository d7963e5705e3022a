# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Chart axes: map values to positions, and choose round values as labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.report.html.text import moment, power_of_two, value
from mwatch.report.model import ReportClock

WIDTH = 1000.0
"""In chart units; a chart is stretched to the width of the page."""
HEIGHT = 100.0
_STEPS_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800, 1209600, 2419200, 7257600, 31536000,
)  # fmt: skip


class Tick(NamedTuple):
    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Across:
    """The horizontal axis."""

    low: float
    high: float

    def place(self, number: float) -> float:
        """Return a position from 0 to WIDTH; values outside the axis are clamped."""
        width = self.high - self.low
        share = 0.5 if width <= 0 else (number - self.low) / width
        return round(min(1.0, max(0.0, share)) * WIDTH, 2)


@dataclass(frozen=True, slots=True)
class Up:
    """The vertical axis: 0 at the top, HEIGHT at the bottom."""

    low: float
    high: float
    is_log: bool = False

    def place(self, number: float) -> float:
        low, high, at = self.low, self.high, number
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(max(number, self.low))
        share = 0.5 if high <= low else (at / 2 - low / 2) / (high / 2 - low / 2)
        return round((1.0 - min(1.0, max(0.0, share))) * HEIGHT, 2)


def linear(lows: Sequence[float], highs: Sequence[float]) -> Up:
    """Return a linear axis with a margin; a flat line is in the middle."""
    low, high = min(lows), max(highs)
    air = (high / 2 - low / 2) * 0.12 or abs(high) * 0.05 or 1.0
    return Up(max(low - air, 0.0) if low >= 0 else low - air, high + air)


def logarithmic(lows: Sequence[float], highs: Sequence[float], base: float = 1.3) -> Up:
    low = min((each for each in lows if each > 0), default=1e-12)
    return Up(low / base, max(*highs, low) * base, is_log=True)


def labels_up(axis: Up, name: Callable[[float], str] = value, most: int = 5) -> list[Tick]:
    if not axis.is_log:
        return [Tick(axis.place(each), name(each)) for each in _round_numbers(axis, most - 1)]
    base = 2.0 if name is power_of_two else 10.0
    first = math.ceil(math.log(axis.low, base) - 1e-9)
    last = math.floor(math.log(axis.high, base) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    found = [base**power for power in range(first, last + 1, step)]
    if len(found) < 2:
        found = [axis.low * (axis.high / axis.low) ** share for share in (0.2, 0.8)]
        found = [float(f"{each:.2g}") for each in found]
    return [Tick(axis.place(each), name(each)) for each in found]


def _round_numbers(axis: Up | Across, wanted: int) -> list[float]:
    width = axis.high - axis.low
    if not 0 < width / wanted < math.inf:
        return [axis.low]
    step: float = 10.0 ** math.floor(math.log10(width / wanted))
    step *= next((each for each in (1, 2, 2.5, 5) if width / (step * each) <= wanted + 1), 10)
    first = math.ceil(axis.low / step)
    found = ((first + index) * step for index in range(2 * wanted + 2))
    return [float(f"{each:.12g}") for each in found if each <= axis.high + step * 1e-9]


def labels_by_step(axis: Across) -> list[Tick]:
    whole = [each for each in _round_numbers(axis, 8) if each == int(each)]
    return [Tick(axis.place(each), f"{int(each):,}") for each in whole]


def labels_by_time(axis: Across, clock: ReportClock) -> list[Tick]:
    """Return labels on full minutes, hours and days."""
    width = axis.high - axis.low
    step = next((each for each in _STEPS_SECONDS if width / each <= 9), None)
    if step is None or width <= 0:
        return []
    shift = axis.low if clock.is_relative else -clock.offset_seconds
    first = math.ceil((axis.low - shift) / step)
    found = ((first + index) * step + shift for index in range(12))
    return [
        Tick(axis.place(each), _time_label(each, step, axis, clock))
        for each in found
        if each <= axis.high
    ]


def _time_label(at: float, step: float, axis: Across, clock: ReportClock) -> str:
    if clock.is_relative:
        return _since(at - axis.low, step)
    date = moment(at, clock)
    if date is None:
        return ""
    if step >= 86400:
        return date.strftime("%Y-%m-%d" if step >= 2419200 else "%b %d")
    if (date.hour, date.minute, date.second) == (0, 0, 0) and axis.high - axis.low > 7200:
        return date.strftime("%b %d")
    return date.strftime("%H:%M:%S" if step < 60 else "%H:%M")


def _since(seconds: float, step: float) -> str:
    whole = round(seconds)
    if step < 60:
        return f"{whole // 60}:{whole % 60:02d}"
    if step < 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole / 3600:g} h" if step < 86400 else f"{whole / 86400:g} d"
