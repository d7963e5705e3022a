# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A bounded sample that knows its quantiles."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.model.calibration import Sample
from mwatch.stats import quantile

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(NUMBERS, st.integers(1, 20), st.floats(0, 1))
def test_quantiles_are_those_of_the_newest(values: list[float], size: int, share: float) -> None:
    sample = Sample(size, values)
    assert list(sample) == values[-size:]
    assert sample.quantile(share) == pytest.approx(quantile(values[-size:], share))


def test_nothing_has_no_quantile() -> None:
    assert (Sample(3).median(), Sample(3).quantile_without_outliers(0.9, 3)) == (None, None)
    assert not Sample(3)


def test_what_is_no_number_is_not_kept() -> None:
    assert list(Sample(5, [1.0, math.nan, math.inf, -math.inf, 2.0])) == [1.0, 2.0]


@pytest.mark.parametrize(("count", "largest"), [(9, 8), (10, 8), (29, 26), (31, 27), (500, 494)])
def test_outliers_have_no_say_but_never_more_than_a_tenth(count: int, largest: int) -> None:
    sample = Sample(512, range(count))
    assert sample.quantile_without_outliers(0.99, 3) == pytest.approx(largest, abs=0.1)


def test_it_can_be_scaled_cleared_compared_and_copied() -> None:
    sample = Sample(3, [1.0, 2.0, 3.0, 4.0])
    twin = copy.deepcopy(sample)
    sample.scale(2)
    assert list(sample) == [4.0, 6.0, 8.0]
    assert twin == Sample(3, [2.0, 3.0, 4.0])
    assert twin != sample
    assert repr(twin) == "Sample(3, [2.0, 3.0, 4.0])"
    sample.clear()
    assert (len(sample), sample.median()) == (0, None)
