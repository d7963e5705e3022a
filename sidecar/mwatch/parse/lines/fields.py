# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read `key: value | key: value |` into named fields, losses and extras, in all number formats.

Keys are looked up without blanks, underscores and case, so one table covers upstream Megatron, its
forks and wrapped lines. Units are read from the key. A value that is not a number is kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.model.event import Scalar

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
_COUNTS = frozenset({"consumed_samples", "global_batch_size", "skipped", "nan"})
# Printed as %.6E by upstream, like a loss, but not losses.
_NO_LOSS = frozenset({"decoupledlearningrate", "valloss"})
_BEFORE_LOSSES = frozenset({"learning_rate", "global_batch_size", "throughput_tflops"})
_LOSS_FORMAT = re.compile(r"\s*-?(?:\d\.\d{6}E[+-]\d{2,3}|INF|NAN)\s*")
_LOSS_NAME = re.compile(r"loss$", re.I)
_SEPARATOR = re.compile(r"[:=]")
_OLD_RATE = re.compile(r"(?:(?<=rate)|(?<=loss)|(?<=scale)|(?<=norm)) +(?=[-+]?(?:\d|nan|inf))")
"""A key without a colon, as the first releases and their forks print it."""
_MAX_KEY = 80
_MAX_EXTRAS = 64


def number(text: str) -> float | None:
    """Read `1.2E+01`, `INF`, `12,345`, `85.8G` or `41.2%`; None if it is not a number."""
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
    joined = "".join(text.split())  # a value that was wrapped over two lines
    return float(joined) if joined != text and _PLAIN.fullmatch(joined) else None


def pair(text: str) -> tuple[float, float] | None:
    """Read what Primus prints: `instant/average`, or `x (avg y)` in newer builds."""
    first, slash, second = text.partition("/")
    if not slash:
        first, bracket, second = text.partition("(avg")
        if not bracket:
            return None
        second = second.rstrip(" )")
    now, mean = number(first), number(second)
    return None if now is None or mean is None else (now, mean)


def seconds_to_ms(seconds: float) -> float:
    """Convert without rounding noise: 0.74567 s is 745.67 ms."""
    return round(seconds * 1000.0, 6)


def whole(value: float | None) -> int | None:
    """Return `value` as a count; None if it is too large for one."""
    return int(value) if value is not None and abs(value) < MAX_COUNT else None


def scalar(text: str) -> float | int | str | None:
    """Return an int or float if the text is a number, else the bounded text."""
    text = text.strip()
    if text in {"N/A", "None", ""}:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    value = number(text)
    return text[:_MAX_TEXT] if value is None else value


class Meaning(NamedTuple):
    """Where a known key's value goes; times in seconds become milliseconds."""

    field: str
    in_seconds: bool = False


KNOWN: dict[str, Meaning] = {
    "consumedsamples": Meaning("consumed_samples"),
    "elapsedtimeperiteration(ms)": Meaning("elapsed_ms"),
    "elapsedtimeperiterationms": Meaning("elapsed_ms"),
    "elapsedtimeperiteration(s)": Meaning("elapsed_ms", in_seconds=True),
    "trainsteptimingins": Meaning("elapsed_ms", in_seconds=True),
    "itertime(s)": Meaning("elapsed_ms", in_seconds=True),
    "throughputpergpu(tflop/s/gpu)": Meaning("throughput_tflops"),
    "computepergpu(tflop/s/gpu)": Meaning("throughput_tflops"),
    "approxflopspergpu": Meaning("throughput_tflops"),
    "modeltflopspergpu": Meaning("throughput_tflops"),
    "tflops": Meaning("throughput_tflops"),
    "learningrate": Meaning("learning_rate"),
    "lr": Meaning("learning_rate"),
    "globalbatchsize": Meaning("global_batch_size"),
    "gloablbatchsize": Meaning("global_batch_size"),  # spelled this way by Ascend ModelLink
    "lossscale": Meaning("loss_scale"),
    "gradnorm": Meaning("grad_norm"),
    "numzeros": Meaning("num_zeros"),
    "paramsnorm": Meaning("params_norm"),
    "numberofskippediterations": Meaning("skipped"),
    "numberofnaniterations": Meaning("nan"),
}


class Fields:
    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        self.extra: dict[str, Scalar] = {}
        self._among_losses = False

    def count(self, name: str) -> int | None:
        return whole(self.known.get(name))

    def add(self, key: str, value: str) -> None:
        squeezed = squeeze(key)
        meaning = KNOWN.get(squeezed)
        if meaning:
            self._among_losses = meaning.field in _BEFORE_LOSSES
            self._add_known(key, meaning, value)
        elif self._is_loss(squeezed, value) and len(self.losses) < _MAX_EXTRAS:
            amount = number(value)
            if amount is not None:
                self.losses[key[:_MAX_KEY]] = amount
        elif len(self.extra) < _MAX_EXTRAS:
            self.extra[key[:_MAX_KEY]] = scalar(value)

    def _is_loss(self, squeezed: str, value: str) -> bool:
        """Whether the value is a loss: by format between batch size and loss scale, else by name.

        The name counts anywhere in the line, for forks.
        """
        if squeezed in _NO_LOSS:
            return False
        if self._among_losses and _LOSS_FORMAT.fullmatch(value):
            return True
        return bool(_LOSS_NAME.search(squeezed)) and number(value) is not None

    def _add_known(self, key: str, meaning: Meaning, value: str) -> None:
        amount = number(value)
        both = pair(value) if amount is None else None
        if both:
            amount = both[0]
            self.extra[f"{key} average"] = both[1]
        if amount is None:
            self.extra[key] = scalar(value)  # kept as text: an unreadable value is not absent
        else:
            exact = scalar(value) if is_count(meaning.field) else None
            scaled = seconds_to_ms(amount) if meaning.in_seconds else amount
            self.known[meaning.field] = exact if isinstance(exact, int) else scaled


def squeeze(key: str) -> str:
    return "".join(key.split()).replace("_", "").lower()


def is_count(field: str) -> bool:
    return field in _COUNTS


def split_segment(segment: str) -> tuple[str, str] | None:
    """Split `key: value` or `key=value`; None if it is neither."""
    found = _SEPARATOR.search(segment) or _OLD_RATE.search(segment)
    if not found:
        return None
    key = " ".join(segment[: found.start()].split())
    return (key, segment[found.end() :]) if key else None


def read_segments(segments: Iterable[str]) -> Fields:
    fields = Fields()
    for segment in segments:
        parts = split_segment(segment)
        if parts is None:
            break  # text of another writer in the same line
        if "nan" in fields.known and squeeze(parts[0]) not in KNOWN and number(parts[1]) is None:
            break  # after the last counter only numbers may follow
        fields.add(*parts)
    return fields
