# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The newest numbers of one kind, put in order when somebody asks.

A run of millions of lines adds one at each of them and asks rarely. What is no finite number is
not kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from mwatch.stats import MAD_TO_SIGMA, median

_LOWEST, _HIGHEST = -math.inf, math.inf


class Sample:
    __slots__ = ("_newest", "_ordered", "maxlen")

    def __init__(self, maxlen: int, values: Iterable[float] = ()) -> None:
        self.maxlen = maxlen
        self._newest: deque[float] = deque(maxlen=maxlen)
        self._ordered: list[float] | None = None
        """None: something was added since they were put in order."""
        self.extend(values)

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[float]:
        """The oldest first."""
        return iter(self._newest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sample) and self._newest == other._newest

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Sample({self.maxlen}, {list(self._newest)})"

    @property
    def is_full(self) -> bool:
        """The next number drives out the oldest."""
        return len(self._newest) == self.maxlen

    def append(self, value: float) -> None:
        if _LOWEST < value < _HIGHEST:
            self._newest.append(value)
            self._ordered = None

    def extend(self, values: Iterable[float]) -> None:
        for value in values:
            self.append(value)

    def clear(self) -> None:
        self._newest.clear()
        self._ordered = None

    def scale(self, factor: float) -> None:
        values = [value * factor for value in self._newest]
        self.clear()
        self.extend(values)

    def quantile(self, share: float) -> float | None:
        """By linear interpolation; None of an empty sample."""
        return self._at(share * (len(self._newest) - 1))

    def median(self) -> float | None:
        return self.quantile(0.5)

    def spread(self) -> float:
        """The median distance from the median, as a standard deviation; 0 of an empty sample."""
        middle = self.median()
        if middle is None or self._ordered is None:
            return 0.0
        return MAD_TO_SIGMA * median([abs(value - middle) for value in self._ordered])

    def quantile_without_outliers(self, share: float, outliers: int) -> float | None:
        """At most so many of the largest numbers, and no more than a tenth, have no say."""
        last = len(self._newest) - 1
        return self._at(min(share * last, last - min(outliers, len(self._newest) // 10)))

    def _at(self, place: float) -> float | None:
        if not self._newest:
            return None
        ordered = self._ordered
        if ordered is None:
            ordered = self._ordered = sorted(self._newest)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
