# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The curves of a run of any length, in bounded memory.

Consecutive iteration lines of one attempt share a bucket. When there are too many buckets, every
two neighbours are merged. A bucket keeps its lowest and highest value, so a spike of a single step
is still visible after five million steps; only its position inside the bucket is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.detect.shared.steps import is_all_skipped, main_loss, main_of
from mwatch.model.step import PlacedLines, Step

MAX_BUCKETS = 2048
MAX_SERIES_ATTEMPTS = 256


class ValueRange(NamedTuple):
    """Summary of the finite values of a bucket."""

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
    """None if no line had a finite loss."""
    step_seconds: ValueRange | None = None
    loss_scale: ValueRange | None = None
    grad_norm: ValueRange | None = None
    skipped: int = 0
    bad: int = 0
    """Lines whose loss or gradient norm was NaN, infinite, or missing without being skipped."""


class Series:
    """Collects buckets, which may be read at any time; the newest one may still grow."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self.buckets: list[Bucket] = []
        self.has_loss = False
        self._most = most
        self._width = 1
        self._filled = 0
        """Lines in the newest bucket."""

    def add(self, attempt: int, step: Step) -> None:
        if not self._goes_on(attempt):
            self._open(Bucket(attempt, step.first_covered, step.iteration, step.at, step.at))
        self._filled += 1
        self._put(self.buckets[-1], step)
        if len(self.buckets) > self._most:
            self._halve()

    def extend(self, attempt: int, placed: PlacedLines, begin: int, end: int) -> None:
        """Add a batch of lines, one bucket at a time, with the same result as `add` for each. No
        line may have a skipped step or a non-finite loss."""
        while begin < end:
            if not self._goes_on(attempt):
                at, last = placed.ats[begin], placed.lines.iterations[begin]
                self._open(Bucket(attempt, last - placed.lines.covers[begin] + 1, last, at, at))
            are_too_many = len(self.buckets) > self._most
            stop = begin + 1 if are_too_many else min(begin + self._width - self._filled, end)
            self._filled += stop - begin
            self._put_all(self.buckets[-1], placed, begin, stop)
            if are_too_many:
                self._halve()
            begin = stop

    def _goes_on(self, attempt: int) -> bool:
        is_same = bool(self.buckets) and self.buckets[-1].attempt == attempt
        return is_same and self._filled < self._width

    def _open(self, bucket: Bucket) -> None:
        self.buckets.append(bucket)
        self._filled = 0

    def _put_all(self, bucket: Bucket, placed: PlacedLines, begin: int, end: int) -> None:
        lines = placed.lines
        losses, norms = main_of(lines.losses), (lines.column("grad_norm") or ())[begin:end]
        if losses is not None:
            self.has_loss = True
            bucket.loss = _grown_by(bucket.loss, losses[begin:end])
        if losses is None and self.has_loss:
            bucket.bad += end - begin
        elif not math.isfinite(sum(norms)):
            bucket.bad += sum(map(_is_wild, norms))
        bucket.last = max(bucket.last, lines.iterations[end - 1])
        bucket.ended_at = max(bucket.ended_at, placed.ats[end - 1])
        bucket.grad_norm = _grown_by(bucket.grad_norm, norms)
        bucket.step_seconds = _grown_by(bucket.step_seconds, lines.seconds[begin:end])
        scales = (lines.column("loss_scale") or ())[begin:end]
        bucket.loss_scale = _grown_by(bucket.loss_scale, scales)

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
        """Merge neighbours; above MAX_SERIES_ATTEMPTS, drop the buckets of the oldest attempts."""
        self._width *= 2
        kept, is_odd = halved(self.buckets)
        self._filled = 1 if is_odd else self._width
        attempts = sorted({bucket.attempt for bucket in kept})
        if len(attempts) > MAX_SERIES_ATTEMPTS:
            oldest = attempts[-MAX_SERIES_ATTEMPTS]
            kept = [bucket for bucket in kept if bucket.attempt >= oldest]
        self.buckets = kept


def halved(buckets: Sequence[Bucket]) -> tuple[list[Bucket], bool]:
    """Merge every two neighbours of one attempt; also return whether the last is unmerged."""
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
    """Add the value of one line."""
    if value is None or not math.isfinite(value):
        return span
    if span is None:
        return ValueRange(value, value, value, 1)
    low, high, mean, lines = span
    mean += value / (lines + 1) - mean / (lines + 1)
    return ValueRange(min(low, value), max(high, value), mean, lines + 1)


def _grown_by(span: ValueRange | None, values: Sequence[float]) -> ValueRange | None:
    """Add the values of many lines."""
    total = sum(values)
    if values and math.isfinite(total):
        mean = total / len(values)
        return _both(span, ValueRange(min(values), max(values), mean, len(values)))
    for value in values:
        span = _grown(span, value)
    return span


def _is_wild(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
