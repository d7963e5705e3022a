# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Formats texts and numbers for the report page. All text from a log passes through `esc`."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from mwatch.report.model import ReportClock

DASH = "\N{EN DASH}"
"""Shown for a missing value, and between the ends of a range."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters, and those that change the direction of text."""
_CAUSES = {
    "nan": "NaN",
    "oom": "Out of memory",
    "loss_scale_collapse": "Loss-scale collapse",
    "healthy": "Healthy",
    "rerun": "Rerun asked for",
    "finished_early": "Ended too early",
    "killed": "Killed",
    "blind": "No data",
    "unknown": "Unknown",
    "checkpoint": "Bad checkpoint",
    "user_error": "Error in the user's code",
}
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_FINE = frozenset({"healthy", "finished"})
_UNKNOWN = frozenset({"unknown", "blind"})
_MILD = frozenset({"slow", "loss_stuck", "checkpoint_overdue", "suspended", "preempted"})


def esc(text: object) -> str:
    """Escape text for use inside an element or a quoted attribute."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


@dataclass(frozen=True, slots=True)
class Detail:
    """How much detail the page shows."""

    excerpts: int
    """Maximum lines of evidence per detector."""
    characters: int
    """Maximum length of a text."""
    entries: int
    """Maximum length of a list."""
    has_links: bool = True
    """Link the files of the run; a page served over HTTP has no files beside it."""

    def cut(self, text: object) -> str:
        """Shorten and escape."""
        whole = str(text)
        is_long = len(whole) > self.characters
        return esc(whole[: self.characters] + "…" * is_long)


def cause_name(cause: str) -> str:
    return _CAUSES.get(cause) or cause[:60].replace("_", " ").capitalize()


def cause_tone(cause: str) -> str:
    """Return the CSS class for the colour of a cause."""
    if cause in _FINE:
        return "good"
    if cause in _UNKNOWN:
        return "dim"
    return "warn" if cause in _MILD else "bad"


def moment(at: float, clock: ReportClock) -> datetime | None:
    try:
        return datetime.fromtimestamp(at + clock.offset_seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def when(at: float | None, clock: ReportClock, *, with_date: bool = True) -> str:
    """`2026-11-15 04:12:40`, `04:12:40`, or `+72 s` where the log prints no times."""
    if at is None:
        return "?"
    if clock.is_relative:
        return f"+{duration(at)}"
    found = moment(at, clock)
    if found is None:
        return f"{at:.0f}"
    return found.strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")


def duration(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} d {whole % 86400 // 3600} h"


def wait(seconds: float) -> str:
    return "at once" if seconds < 0.05 else duration(seconds)


def count(number: int | None) -> str:
    return DASH if number is None else f"{number:,}"


def percent(share: float | None) -> str:
    if share is None:
        return "?"
    return f"{share:.0%}" if share >= 0.995 or share == 0 else f"{share:.1%}"


def value(number: float) -> str:
    """Format with four significant digits."""
    size = abs(number)
    if size != 0 and (size >= 1e6 or size < 1e-3):
        return f"{number:.3g}"
    return f"{number:,.0f}" if size >= 10_000 else f"{number:.4g}"


def seconds(number: float) -> str:
    """Format a step duration, with a finer resolution than `duration`."""
    if 0 < number < 0.9995:
        return f"{number * 1000:.3g} ms"
    return f"{value(number)} s"


def power_of_two(number: float) -> str:
    """Format a power of two as `2¹⁶`; other numbers with `value`."""
    if number > 0 and math.frexp(number)[0] == 0.5:
        return "2" + str(math.frexp(number)[1] - 1).translate(_SUPERSCRIPT)
    return value(number)


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
