# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`key: value | key: value |` → named fields, losses and extras.

Keys are looked up without blanks, underscores and case, so that one table serves upstream
Megatron, its forks and a line that a mail program wrapped. Units are read from the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.model.event import Scalar
from mwatch.parse.lines.numbers import number, pair, scalar, seconds_to_ms, whole


class Meaning(NamedTuple):
    """Where a known key's value goes; times in seconds become milliseconds."""

    field: str
    in_seconds: bool = False


_COUNTS = frozenset({"consumed_samples", "global_batch_size", "skipped", "nan"})
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
    "gloablbatchsize": Meaning("global_batch_size"),  # so printed by Ascend ModelLink
    "lossscale": Meaning("loss_scale"),
    "gradnorm": Meaning("grad_norm"),
    "numzeros": Meaning("num_zeros"),
    "paramsnorm": Meaning("params_norm"),
    "numberofskippediterations": Meaning("skipped"),
    "numberofnaniterations": Meaning("nan"),
}
# Printed as %.6E by upstream and yet no loss.
_NO_LOSS = frozenset({"decoupledlearningrate", "valloss"})
_BEFORE_LOSSES = frozenset({"learning_rate", "global_batch_size", "throughput_tflops"})
_LOSS_FORMAT = re.compile(r"\s*-?(?:\d\.\d{6}E[+-]\d{2,3}|INF|NAN)\s*")
_LOSS_NAME = re.compile(r"loss$", re.I)
_SEPARATOR = re.compile(r"[:=]")
_OLD_RATE = re.compile(r"(?<=learning rate) +(?=\d)")  # the first releases had no colon there
_MAX_KEY = 80
_MAX_EXTRAS = 64


class Fields:
    """What the segments of one line say."""

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
        """By its format between batch size and loss scale; by its name anywhere, for the forks."""
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
            self.extra[key] = scalar(value)  # kept as text: unreadable is not absent
        else:
            exact = scalar(value) if is_count(meaning.field) else None
            scaled = seconds_to_ms(amount) if meaning.in_seconds else amount
            self.known[meaning.field] = exact if isinstance(exact, int) else scaled


def squeeze(key: str) -> str:
    return "".join(key.split()).replace("_", "").lower()


def is_count(field: str) -> bool:
    return field in _COUNTS


def split_segment(segment: str) -> tuple[str, str] | None:
    """`key: value` or `key=value`; None where it is neither."""
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
            break  # text of another writer that was glued on
        if "nan" in fields.known and squeeze(parts[0]) not in KNOWN and number(parts[1]) is None:
            break  # after the last counter only numbers may follow
        fields.add(*parts)
    return fields
