# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run stay bounded, and what stood out in them stays in them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from mwatch.model.step import PlacedLines
from mwatch.report.series import MAX_SERIES_ATTEMPTS, Bucket, Series, ValueRange
from support.builders.job import placed_lines, step


def test_a_few_lines_are_kept_one_by_one() -> None:
    series = Series()
    for number in range(1, 4):
        series.add(1, step(number, loss=float(number)))
    assert [bucket.loss for bucket in series.buckets] == [
        ValueRange(loss, loss, loss, 1) for loss in (1.0, 2.0, 3.0)
    ]


def test_five_million_iterations_fit_and_a_single_spike_is_not_lost() -> None:
    series = Series(most=256)
    for line in range(1, 50_001):
        loss = 99.0 if line == 23_457 else 2.0
        series.add(1, step(line * 100, covers=100, loss=loss))
    assert 128 <= len(series.buckets) <= 256
    assert (series.buckets[0].first, series.buckets[-1].last) == (1, 5_000_000)
    (spiky,) = (bucket for bucket in series.buckets if bucket.loss and bucket.loss.high == 99.0)
    assert spiky.first <= 2_345_700 <= spiky.last
    assert sum(bucket.loss.lines for bucket in series.buckets if bucket.loss) == 50_000


def test_buckets_follow_each_other_without_a_gap() -> None:
    series = Series(most=8)
    for number in range(1, 1001):
        series.add(1, step(number))
    assert all(one.last + 1 == other.first for one, other in pairwise(series.buckets))


def test_the_mean_of_a_bucket_is_that_of_its_lines() -> None:
    series = Series(most=2)
    for number in range(1, 101):
        series.add(1, step(number, loss=float(number)))
    told = [bucket.loss for bucket in series.buckets if bucket.loss]
    assert sum(each.mean * each.lines for each in told) == pytest.approx(5050.0)


def test_a_bucket_never_spans_two_attempts() -> None:
    series = Series(most=16)
    for attempt in range(1, 11):
        for number in range(1, 101):
            series.add(attempt, step(number))
    assert {bucket.attempt for bucket in series.buckets} == set(range(1, 11))
    assert all(bucket.last - bucket.first < 100 for bucket in series.buckets)


def test_a_run_that_starts_over_for_ever_stays_bounded() -> None:
    series = Series(most=512)
    for attempt in range(1, 5001):
        series.add(attempt, step(1))
    assert len(series.buckets) <= 512
    assert series.buckets[-1].attempt == 5000
    assert len({bucket.attempt for bucket in series.buckets}) <= 512 < 2 * MAX_SERIES_ATTEMPTS + 1


def any_lines(chance: random.Random, count: int) -> PlacedLines:
    """Mostly plain; now and then a number is wild, or is not printed."""
    columns = {
        "grad_norm": [chance.uniform(0, 2) for _ in range(count)],
        "loss_scale": [65536.0] * count,
        "elapsed_ms": [chance.uniform(900, 1100) for _ in range(count)],
    }
    losses = {"lm loss": [chance.uniform(1, 9) for _ in range(count)]}
    for values in columns.values():
        if chance.random() < 0.3:
            values[chance.randrange(count)] = chance.choice([math.nan, math.inf, 1.7e308])
    if chance.random() < 0.3:
        del columns[chance.choice([*columns])]
    return placed_lines(count, losses if chance.random() < 0.8 else {}, columns)


@pytest.mark.parametrize("seed", range(8))
def test_many_lines_at_once_give_the_same_buckets_as_each_of_them(seed: int) -> None:
    chance = random.Random(seed)
    each, together = Series(most=16), Series(most=16)
    for attempt in range(1, 8):
        lines = any_lines(chance, chance.randrange(1, 900))
        begin = 0
        while begin < len(lines.ats):
            end = min(begin + chance.randrange(1, 200), len(lines.ats))
            for index in range(begin, end):
                each.add(attempt, lines.step(index))
            together.extend(attempt, lines, begin, end)
            begin = end
    assert [_exact(bucket) for bucket in together.buckets] == [
        _exact(same) for same in each.buckets
    ]
    for first, second in zip(each.buckets, together.buckets, strict=True):
        for range_, same in zip(_ranges(first), _ranges(second), strict=True):
            assert (range_ and range_.mean) == pytest.approx(same and same.mean)


def _ranges(bucket: Bucket) -> list[ValueRange | None]:
    return [bucket.loss, bucket.step_seconds, bucket.loss_scale, bucket.grad_norm]


def _exact(bucket: Bucket) -> tuple[object, ...]:
    """All but the means, which depend on the order of the sum."""
    ranges = [each and each._replace(mean=0.0) for each in _ranges(bucket)]
    head = (bucket.attempt, bucket.first, bucket.last, bucket.began_at, bucket.ended_at)
    return (*head, *ranges, bucket.skipped, bucket.bad)


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({"loss": 2.0}, 0),
        ({"loss": None}, 1),
        ({"loss": math.nan}, 1),
        ({"loss": math.inf}, 1),
        ({"loss": 2.0, "grad_norm": math.nan}, 1),
        ({"loss": None, "skipped": 1, "skipped_printed": 1}, 0),
        ({"loss": 2.0, "grad_norm": None}, 0),
    ],
)
def test_a_line_without_a_finite_number_is_counted(change: dict[str, float], bad: int) -> None:
    series = Series()
    series.add(1, step(1))
    series.add(1, step(2, **change))
    assert series.buckets[-1].bad == bad


def test_a_run_that_never_printed_a_loss_is_not_bad() -> None:
    series = Series()
    series.add(1, step(1, loss=None))
    one, norm = ValueRange(1.0, 1.0, 1.0, 1), ValueRange(0.8, 0.8, 0.8, 1)
    assert series.buckets == [Bucket(1, 1, 1, step(1).at, step(1).at, None, one, one, norm)]


def test_huge_numbers_do_not_overflow() -> None:
    series = Series(most=1)
    for number in range(1, 9):
        series.add(1, step(number, loss=1.7e308, grad_norm=-1.7e308))
    (bucket,) = series.buckets
    assert bucket.loss is not None and math.isfinite(bucket.loss.mean)
