# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The number grammar of trainer logs: `1.2E+01`, `INF`, `12,345`, `85.8G`, `41.2%`, `a/b`.

A value that is no number keeps its text, so nothing printed is lost.
"""

from __future__ import annotations

import re

_DECIMAL = r"\d+(?:\.\d*)?"
_PLAIN = re.compile(
    rf"[-+]?(?:{_DECIMAL}|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)", re.I | re.A
)
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.A)
_SCALED = re.compile(rf"([-+]?{_DECIMAL})([KMGTP])B?", re.A)
_UNIT = re.compile(rf"([-+]?{_DECIMAL}(?:[eE][-+]?\d+)?) ?(?:%|ms|s|TFLOPS?|W|J)", re.A)
_WHOLE = re.compile(r"-?\d{1,17}", re.A)
_SCALE = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_MAX_TEXT = 200
_MAX_NUMBER = 64
MAX_COUNT = 10**17


def number(text: str) -> float | None:
    """The number that `text` spells, or None."""
    text = text.strip()
    if len(text) > _MAX_NUMBER:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if scaled := _SCALED.fullmatch(text):
        return float(scaled[1]) * _SCALE[scaled[2]]
    if unit := _UNIT.fullmatch(text):
        return float(unit[1])
    joined = "".join(text.split())  # a value that was wrapped in two lines
    return float(joined) if joined != text and _PLAIN.fullmatch(joined) else None


def pair(text: str) -> tuple[float, float] | None:
    """Primus prints `instant/average`, and newer builds `x (avg y)`."""
    first, slash, second = text.partition("/")
    if not slash:
        first, bracket, second = text.partition("(avg")
        if not bracket:
            return None
        second = second.rstrip(" )")
    now, mean = number(first), number(second)
    return None if now is None or mean is None else (now, mean)


def seconds_to_ms(seconds: float) -> float:
    """Without the dust of the multiplication: 0.74567 s is 745.67 ms."""
    return round(seconds * 1000.0, 6)


def whole(value: float | None) -> int | None:
    """`value` as a count; None where it is no count."""
    return int(value) if value is not None and abs(value) < MAX_COUNT else None


def scalar(text: str) -> float | int | str | None:
    """A number where the text is one (whole numbers stay whole), else the bounded text."""
    text = text.strip()
    if text in {"N/A", "None", ""}:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    value = number(text)
    return text[:_MAX_TEXT] if value is None else value
