# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Loss, gradients and loss scale of the simulated model.

Noise belongs to the data: the same iteration gives the same loss in every attempt, up to the
tiny differences of kernels that are not deterministic. The scaler is Megatron's algorithm
(log-formats 3.1), with its spent hysteresis and its endless skipping at the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from sim.shape import Shape

_TABLE = 1024
_LARGEST = 2.0**32


@dataclass(slots=True)
class Scaler:
    scale: float = _LARGEST
    growth: int = 0
    hysteresis: int = 2
    window: int = 1000

    def update(self, *, overflow: bool) -> None:
        if overflow:
            self.growth = 0
            self.hysteresis -= 1
            if self.hysteresis <= 0:
                self.scale = max(self.scale * 0.5, 1.0)
            return
        self.growth += 1
        if self.growth == self.window:
            self.growth, self.hysteresis = 0, 2
            self.scale *= 2.0

    def copy(self) -> Scaler:
        return Scaler(self.scale, self.growth, self.hysteresis, self.window)


@dataclass(slots=True)
class Weights:
    """What a checkpoint holds, as far as the numbers depend on it."""

    iteration: int = 0
    samples: int = 0
    advanced: int = 0
    """Steps that were not skipped: the learning rate follows these."""
    scaler: Scaler = field(default_factory=Scaler)
    is_nan: bool = False
    sick_since: int | None = None
    """First iteration of a loss that went wrong and stayed wrong."""
    is_frozen: bool = False
    """The learning rate is 0."""

    def copy(self) -> Weights:
        return Weights(
            self.iteration, self.samples, self.advanced, self.scaler.copy(), self.is_nan,
            self.sick_since, self.is_frozen,
        )  # fmt: skip


class Curve:
    """The numbers of a healthy model at any iteration, the same whenever it is asked."""

    def __init__(self, shape: Shape, seed: int) -> None:
        chance = Random(seed)
        self._shape = shape
        self._noise = [chance.gauss(0.0, 1.0) for _ in range(_TABLE)]
        self.limit = 2.0 ** chance.choice((14, 15, 16, 17))
        self.norm = chance.uniform(0.3, 2.0)
        self.spikes: dict[int, float] = {}
        """Harmless ones: iteration → height; each dies away over a few iterations."""

    def _noise_at(self, iteration: int, salt: int) -> float:
        return self._noise[(iteration * 31 + salt * 977) % _TABLE]

    def loss(self, iteration: int, *, shift: int = 0) -> float:
        """`shift`: the data of another iteration, as after a resume at a wrong position."""
        shape = self._shape
        trend = shape.loss_floor + shape.loss_height * math.exp(-iteration / shape.loss_tau)
        value = trend * (1.0 + shape.loss_noise * self._noise_at(iteration + shift, 1))
        for start, height in self.spikes.items():
            if 0 <= iteration - start < 6:
                value += height * 0.5 ** (iteration - start)
        return max(value, 0.05)

    def grad_norm(self, iteration: int) -> float:
        return self.norm * math.exp(0.25 * self._noise_at(iteration, 2))

    def overflows(self, iteration: int, scale: float) -> bool:
        """Gradients of this iteration do not fit into fp16 at this scale."""
        return scale > self.limit * math.exp(0.15 * self._noise_at(iteration, 3))


def learning_rate(advanced: int, total: int) -> float:
    warm_up = max(1, total // 50)
    if advanced < warm_up:
        return 1e-4 * advanced / warm_up
    done = min(1.0, (advanced - warm_up) / max(1, total - warm_up))
    return 1e-5 + 4.5e-5 * (1.0 + math.cos(math.pi * done))
