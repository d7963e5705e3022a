# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far the numbers of iteration lines stay near what is usual, a column at a time.

What is usual follows the numbers slowly. Each function goes over `values[begin:end]`, stops
before the first that is not calm, and returns where, and what is usual by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

MEMORY = 0.01  # how fast what is usual follows: slower than any detector makes up its mind
HIGHER = 0.1  # share by which a loss is above what is usual
STEEPER = 2.5
SLOWER = 1.15
Values = Sequence[float]
Calm = Callable[[Values, float, int, int], tuple[int, float]]


def calm_times(values: Values, usual: float, begin: int, end: int) -> tuple[int, float]:
    for index in range(begin, end):
        value = values[index]
        if not -math.inf < value <= SLOWER * usual:
            return index, usual
        usual = usual + MEMORY * (value - usual)
    return end, usual


def calm_norms(values: Values, usual: float, begin: int, end: int) -> tuple[int, float]:
    for index in range(begin, end):
        value = values[index]
        if not -math.inf < value <= STEEPER * usual:
            return index, usual
        usual = usual + MEMORY * (value - usual)
    return end, usual


def calm_losses(values: Values, usual: float, begin: int, end: int) -> tuple[int, float]:
    for index in range(begin, end):
        value = values[index]
        if not -math.inf < value < math.inf or value > usual + HIGHER * abs(usual):
            return index, usual
        usual = usual + MEMORY * (value - usual)
    return end, usual


def calm_scales(values: Values, last: float, begin: int, end: int) -> tuple[int, float]:
    """A loss scale that does not fall; the usual one is the last."""
    for index in range(begin, end):
        if values[index] < last:
            return index, last
        last = values[index]
    return end, last


def calm_counts(values: Values, _: float, begin: int, end: int) -> tuple[int, float]:
    """Nothing is counted."""
    return next((index for index in range(begin, end) if values[index]), end), 0.0


def pass_calm(
    columns: Sequence[tuple[Calm, Values, float]], begin: int, end: int
) -> tuple[int, list[float]]:
    """Up to the first line in which any column is not calm."""
    found: list[tuple[int, float]] = []
    stop = end
    for calm, values, usual in columns:
        found.append(calm(values, usual, begin, stop))
        stop = found[-1][0]
    return stop, [
        known if at == stop else calm(values, usual, begin, stop)[1]
        for (at, known), (calm, values, usual) in zip(found, columns, strict=True)
    ]
