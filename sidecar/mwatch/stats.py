# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Robust statistics of small samples, independent of training."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable

MAD_TO_SIGMA = 1.4826  # for a normal distribution


def quantile(values: Iterable[float], share: float) -> float:
    """Quantile with linear interpolation; raises ValueError for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    return quantile(values, 0.5)


def spread(values: Iterable[float]) -> float:
    """Median absolute deviation, scaled to a standard deviation."""
    sample = list(values)
    middle = median(sample)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in sample)


class MonotonicCounters:
    """Counters that never decrease: Prometheus would take a decrease for a restart of mwatch.

    Safe for several threads.
    """

    def __init__(self) -> None:
        self._highest: dict[str, dict[Hashable, float]] = {}
        self._lock = threading.Lock()

    def raised(self, group: str, key: Hashable, value: float) -> float:
        with self._lock:
            known = self._highest.setdefault(group, {})
            known[key] = max(value, known.get(key, 0.0))
            return known[key]

    def keep(self, groups: Iterable[str]) -> None:
        """Drop the counters of all other groups."""
        with self._lock:
            for gone in self._highest.keys() - set(groups):
                del self._highest[gone]
