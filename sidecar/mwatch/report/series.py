# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The curves of a run of any length, in bounded memory.

Iteration lines go into buckets of neighbours of one attempt. When there are too many buckets, every
two neighbours become one. A bucket keeps its lowest and highest value, so a spike of a single step
survives five million steps; only its place inside the bucket is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.detect.shared.steps import is_all_skipped, main_loss
from mwatch.model.job import Step

MAX_BUCKETS = 2048
MAX_SERIES_ATTEMPTS = 256
_AT, _ITERATION, _SECONDS, _SCALE, _NORM, _SKIPPED_PRINTED = map(
    Step._fields.index,
    ("at", "iteration", "seconds", "loss_scale", "grad_norm", "skipped_printed"),
)


class ValueRange(NamedTuple):
    """The finite values of a bucket."""

    low: float
    high: float
    mean: float
    lines: int


@dataclass(slots=True)
class Bucket:
    attempt: int
    first: int
    """First iteration covered."""
    last: int
    began_at: float
    ended_at: float
    loss: ValueRange | None = None
    """None: no line had a finite one."""
    step_seconds: ValueRange | None = None
    loss_scale: ValueRange | None = None
    grad_norm: ValueRange | None = None
    skipped: int = 0
    bad: int = 0
    """Lines whose loss or gradient norm was NaN, infinite, or missing without being skipped."""


class Series:
    """`buckets` may be read at any time; the newest may still grow."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self.buckets: list[Bucket] = []
        self.has_loss = False
        self._most = most
        self._width = 1
        self._filled = 0
        """Lines in the newest bucket."""

    def add(self, attempt: int, step: Step) -> None:
        newest = self.buckets[-1] if self.buckets else None
        if newest is None or newest.attempt != attempt or self._filled >= self._width:
            newest = Bucket(attempt, step.first_covered, step.iteration, step.at, step.at)
            self.buckets.append(newest)
            self._filled = 0
        self._filled += 1
        self._put(newest, step)
        if len(self.buckets) > self._most:
            self._halve()

    def extend(self, attempt: int, steps: Sequence[Step]) -> None:
        """Like `add` of each, but a whole bucket at a time."""
        begin = 0
        while begin < len(steps):
            self.add(attempt, steps[begin])
            end = min(begin + 1 + self._width - self._filled, len(steps))
            if begin + 1 < end:
                self._put_all(self.buckets[-1], steps[begin + 1 : end])
                self._filled += end - begin - 1
            begin = end

    def _put_all(self, bucket: Bucket, steps: Sequence[Step]) -> None:
        columns = [*zip(*steps, strict=True)]
        iterations, ats = columns[_ITERATION], columns[_AT]
        printed = [main_loss(step) for step in steps]
        has_none = not self.has_loss and all(loss is None for loss in printed)
        losses = [] if has_none else _finite(printed)
        norms = [norm for norm in columns[_NORM] if norm is not None]
        if losses is None or _finite(norms) is None or any(columns[_SKIPPED_PRINTED]):
            for step in steps:
                self._put(bucket, step)
            return
        self.has_loss = not has_none
        bucket.last = max(bucket.last, *iterations)
        bucket.ended_at = max(bucket.ended_at, *ats)
        bucket.loss = _both(bucket.loss, _range(losses))
        bucket.grad_norm = _both(bucket.grad_norm, _range(norms))
        bucket.step_seconds = _grown_by(bucket.step_seconds, columns[_SECONDS])
        bucket.loss_scale = _grown_by(bucket.loss_scale, columns[_SCALE])

    def _put(self, bucket: Bucket, step: Step) -> None:
        loss = main_loss(step)
        has_counted = not is_all_skipped(step)
        counted = loss if has_counted and loss is not None and math.isfinite(loss) else None
        self.has_loss = self.has_loss or counted is not None
        is_missing = counted is None and self.has_loss and has_counted
        is_bad = is_missing or _is_wild(loss) or _is_wild(step.grad_norm)
        if step.iteration > bucket.last:
            bucket.last = step.iteration
        if step.at > bucket.ended_at:
            bucket.ended_at = step.at
        bucket.loss = _grown(bucket.loss, counted)
        bucket.step_seconds = _grown(bucket.step_seconds, step.seconds)
        bucket.loss_scale = _grown(bucket.loss_scale, step.loss_scale)
        bucket.grad_norm = _grown(bucket.grad_norm, step.grad_norm)
        bucket.skipped += step.skipped
        bucket.bad += is_bad

    def _halve(self) -> None:
        """Join neighbours; of far too many attempts, the first ones lose their numbers."""
        self._width *= 2
        kept, is_odd = halved(self.buckets)
        self._filled = 1 if is_odd else self._width
        attempts = sorted({bucket.attempt for bucket in kept})
        if len(attempts) > MAX_SERIES_ATTEMPTS:
            oldest = attempts[-MAX_SERIES_ATTEMPTS]
            kept = [bucket for bucket in kept if bucket.attempt >= oldest]
        self.buckets = kept


def halved(buckets: Sequence[Bucket]) -> tuple[list[Bucket], bool]:
    """Join every two neighbours of one attempt; also whether the last bucket stayed alone."""
    kept: list[Bucket] = []
    is_odd = False
    for bucket in buckets:
        if is_odd and kept[-1].attempt == bucket.attempt:
            kept[-1] = _joined(kept[-1], bucket)
            is_odd = False
        else:
            kept.append(bucket)
            is_odd = True
    return kept, is_odd


def _joined(one: Bucket, other: Bucket) -> Bucket:
    return Bucket(
        one.attempt,
        min(one.first, other.first),
        max(one.last, other.last),
        min(one.began_at, other.began_at),
        max(one.ended_at, other.ended_at),
        _both(one.loss, other.loss),
        _both(one.step_seconds, other.step_seconds),
        _both(one.loss_scale, other.loss_scale),
        _both(one.grad_norm, other.grad_norm),
        one.skipped + other.skipped,
        one.bad + other.bad,
    )


def _both(one: ValueRange | None, other: ValueRange | None) -> ValueRange | None:
    if one is None or other is None:
        return one or other
    lines = one.lines + other.lines
    mean = one.mean * (one.lines / lines) + other.mean * (other.lines / lines)
    return ValueRange(min(one.low, other.low), max(one.high, other.high), mean, lines)


def _grown(span: ValueRange | None, value: float | None) -> ValueRange | None:
    """Add one line."""
    if value is None or not math.isfinite(value):
        return span
    if span is None:
        return ValueRange(value, value, value, 1)
    low, high, mean, lines = span
    mean += value / (lines + 1) - mean / (lines + 1)
    return ValueRange(min(low, value), max(high, value), mean, lines + 1)


def _grown_by(span: ValueRange | None, values: Sequence[float | None]) -> ValueRange | None:
    """Add many lines."""
    printed = [value for value in values if value is not None]
    finite = _finite(printed)
    if finite is not None:
        return _both(span, _range(finite))
    for value in printed:
        span = _grown(span, value)
    return span


def _range(values: Sequence[float]) -> ValueRange | None:
    if not values:
        return None
    return ValueRange(min(values), max(values), sum(values) / len(values), len(values))


def _finite(values: Sequence[float | None]) -> list[float] | None:
    """The values; None: one is missing, or their sum is not finite."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) and math.isfinite(sum(found)) else None


def _is_wild(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
