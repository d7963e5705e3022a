# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run as lines of an SVG: the mean, the range of a bucket, and gaps where nothing is.

Steps that a later attempt did again are drawn apart: they were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from mwatch.app.html_scale import HEIGHT, Across, Up
from mwatch.app.story import Story
from mwatch.app.story_series import Bucket, Span, joined

MAX_DRAWN = 2048
_TICK = 5.0

Pick = Callable[[Bucket], Span | None]
Across_of = Callable[[Bucket], float]


class Curve(NamedTuple):
    """Path data."""

    kept: str
    lost: str
    ranges: str
    bad: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What all charts of a page share: the buckets to draw, and the two horizontal axes."""

    story: Story
    buckets: tuple[Bucket, ...]
    time: Across
    step: Across
    forks: dict[int, int]
    """By attempt: what it did above this iteration was lost."""

    def is_lost(self, bucket: Bucket) -> bool:
        fork = self.forks.get(bucket.attempt)
        return fork is not None and bucket.first > fork

    def time_of(self, bucket: Bucket) -> float:
        return self.time.place((bucket.began_at + bucket.ended_at) / 2)

    def step_of(self, bucket: Bucket) -> float:
        return self.step.place((bucket.first + bucket.last) / 2)


def frame(story: Story) -> Frame:
    buckets = thinned(spread(story.series), MAX_DRAWN)
    moments = [story.started_at, story.ended_at]
    moments += [each for span in story.phases for each in (span.began_at, span.ended_at)]
    moments += [each for one in buckets for each in (one.began_at, one.ended_at)]
    known = [each for each in moments if each is not None] or [0.0]
    steps = [each for one in buckets for each in (one.first, one.last)]
    steps += [each.last_iteration for each in story.attempts if each.last_iteration is not None]
    return Frame(
        story,
        tuple(buckets),
        Across(min(known), max(known)),
        Across(float(min(steps, default=0)), float(max(steps, default=1))),
        _forks(story),
    )


def spread(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Lines that were read, or stamped, at one moment were not printed at one: they are told over
    the time that their steps took, as far as there is room since the line before."""
    told: list[Bucket] = []
    for (attempt, at), group in groupby(buckets, key=lambda each: (each.attempt, each.ended_at)):
        batch = list(group)
        long = [_seconds(each) for each in batch]
        before = told[-1].ended_at if told and told[-1].attempt == attempt else at - sum(long)
        room = max(0.0, at - before)
        share = min(1.0, room / sum(long)) if sum(long) > 0 else 0.0
        left = sum(long) * share
        for each, seconds in zip(batch, long, strict=True):
            left -= seconds * share
            is_whole = each.began_at < each.ended_at or len(batch) == 1
            told.append(each if is_whole else replace(each, began_at=at - left, ended_at=at - left))
    return told


def _seconds(bucket: Bucket) -> float:
    span = bucket.step_seconds
    return 0.0 if span is None else max(0.0, span.mean) * max(1, bucket.last - bucket.first + 1)


def thinned(buckets: Sequence[Bucket], most: int) -> list[Bucket]:
    """Neighbours of one attempt become one until there are few enough, or no more to join."""
    kept = list(buckets)
    while len(kept) > most:
        fewer: list[Bucket] = []
        is_open = False
        for each in kept:
            is_open = is_open and fewer[-1].attempt == each.attempt
            if is_open:
                fewer[-1] = joined(fewer[-1], each)
            else:
                fewer.append(each)
            is_open = not is_open
        if len(fewer) == len(kept):
            return kept[-most:]
        kept = fewer
    return kept


def _forks(story: Story) -> dict[int, int]:
    """From the last attempt to the first: where the line that was continued left each of them."""
    found: dict[int, int] = {}
    lowest: int | None = None
    for attempt in reversed(story.attempts):
        if lowest is not None:
            found[attempt.number] = lowest
        begun = attempt.resumed_from
        if begun is None and attempt.first_iteration is not None:
            begun = attempt.first_iteration - 1
        if begun is not None:
            lowest = begun if lowest is None else min(lowest, begun)
    return found


def curve(frame: Frame, pick: Pick, up: Up, across: Across_of) -> Curve:
    kept: list[str] = []
    lost: list[str] = []
    ranges: list[str] = []
    for run in _runs(frame, pick):
        points = [(across(bucket), span) for bucket, span in run]
        is_lost = frame.is_lost(run[-1][0])
        (lost if is_lost else kept).append(_line(points, up))
        if any(span.high > span.low for _, span in points):
            ranges.append(_area(points, up))
    bad = (f"M{across(each):g} {HEIGHT:g}v-{_TICK:g}" for each in frame.buckets if each.bad)
    return Curve("".join(kept), "".join(lost), "".join(ranges), "".join(bad))


def _runs(frame: Frame, pick: Pick) -> Iterator[list[tuple[Bucket, Span]]]:
    """Neighbours that are drawn as one line: of one attempt, none missing, all lost or none."""
    run: list[tuple[Bucket, Span]] = []
    for bucket in frame.buckets:
        span = pick(bucket)
        last = run[-1][0] if run else None
        if last is not None and (span is None or last.attempt != bucket.attempt):
            yield run
            run = []
        elif last is not None and frame.is_lost(last) != frame.is_lost(bucket):
            yield run
            run = run[-1:]  # the lost part begins where the kept one ends
        if span is not None:
            run.append((bucket, span))
    if run:
        yield run


def _line(points: Sequence[tuple[float, Span]], up: Up) -> str:
    places = [f"{x:g} {up.place(span.mean):g}" for x, span in points]
    if len(places) == 1:
        return f"M{places[0]}h.01"  # a round cap makes it a dot
    return "M" + "L".join(places)


def _area(points: Sequence[tuple[float, Span]], up: Up) -> str:
    above = [f"{x:g} {up.place(span.high):g}" for x, span in points]
    below = [f"{x:g} {up.place(span.low):g}" for x, span in reversed(points)]
    return "M" + "L".join(above + below) + "Z"


def of_loss(bucket: Bucket) -> Span | None:
    return bucket.loss


def of_step_seconds(bucket: Bucket) -> Span | None:
    return bucket.step_seconds


def of_loss_scale(bucket: Bucket) -> Span | None:
    return bucket.loss_scale


def of_grad_norm(bucket: Bucket) -> Span | None:
    return bucket.grad_norm
