# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that a Megatron fp16 run prints, from the algorithm of its dynamic loss scaler.

A step overflows when the scale is above what its gradients allow; how much they allow is given
as a power of two for each iteration.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mwatch.model.step import Step
from support.builders.job import step

Allowed = Callable[[int], float]
"""Iteration → the exponent above which its gradients overflow."""


@dataclass
class Scaler:
    scale: float = 2.0**32
    minimum: float = 1.0
    window: int = 1000
    hysteresis: int = 2
    left: int = 2
    clean: int = 0
    is_constant: bool = False

    def does_step(self, allowed: float) -> bool:
        """Whether the step counts; the scale is as printed after it."""
        is_overflow = self.scale > 2.0**allowed
        if self.is_constant:
            return not is_overflow
        if is_overflow:
            self.clean = 0
            self.left -= 1
            if self.left <= 0:
                self.scale = max(self.scale / 2, self.minimum)
            return False
        self.clean += 1
        if self.clean == self.window:
            self.clean, self.left = 0, self.hysteresis
            self.scale *= 2
        return True


def lines(
    allowed: Allowed,
    count: int,
    *,
    interval: int = 1,
    first: int = 1,
    scaler: Scaler | None = None,
    prints_first: bool = False,
) -> Iterator[Step]:
    """`prints_first`: core_v0.16 and later, whose second line counts the first step again."""
    scaler = scaler or Scaler()
    advanced = 0
    skipped = covers = again = 0
    for iteration in range(first, first + count):
        did = scaler.does_step(allowed(iteration))
        advanced += did
        covers, skipped = covers + 1, skipped + (not did)
        is_extra = prints_first and iteration == first
        if not is_extra and iteration % interval:
            continue
        yield step(
            iteration,
            loss=2.0 if skipped < covers else None if not prints_first else 0.0,
            covers=covers,
            new=covers - bool(again),
            skipped=skipped - (again == 2),
            skipped_printed=skipped,
            loss_scale=scaler.scale,
            grad_norm=1.0 if did else None,
            learning_rate=advanced * 1e-7,
            is_first_of_process=is_extra,
        )
        again = (1 if did else 2) if is_extra else 0
        if not is_extra:
            covers = skipped = 0


def noisy(exponent: float, sigma: float, seed: int, drift: float = 0.0) -> Allowed:
    """Around `exponent`, with now and then a batch that allows far less."""
    draw = random.Random(seed)

    def allowed(iteration: int) -> float:
        outlier = draw.expovariate(0.5) if draw.random() < 3e-4 else 0.0
        return exponent + drift * iteration + draw.gauss(0.0, sigma) - outlier

    return allowed


def broken_from(iteration: int, before: Allowed, exponent: float = -100.0) -> Allowed:
    return lambda number: exponent if number >= iteration else before(number)
