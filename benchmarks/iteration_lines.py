# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Made-up iteration lines in the form of Megatron-LM core_v0.16, with values that drift.

An fp16 run with a log interval of 10. A skipped step inside an interval leaves the layout of its
line as it is; only a step skipped at the end of an interval takes the gradient norm away.
"""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta

LOG_INTERVAL = 10
BATCH_SIZE = 1024
_WARM_UP = 2000
_PEAK_RATE = 3e-4
_GROWTH_LINES = 400
"""Lines between two doublings of the loss scale."""


class Run:
    """One training run. With `gaps` a field may be absent and a number may be nan."""

    def __init__(self, chance: random.Random, *, lines: int, gaps: bool = False) -> None:
        self._chance = chance
        self._total = max(LOG_INTERVAL * (lines - 1), 1)
        self._gaps = gaps
        self._iteration = 0
        self._now = datetime(2026, 3, 1, 8, 0, 0, 123456)
        self._speed = 0.0
        self._scale = 65536.0
        self._lines = 0

    @property
    def iteration(self) -> int:
        return self._iteration

    def stamp(self) -> str:
        return self._now.isoformat(" ", "microseconds")

    def wait(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def line(self) -> str:
        """The next line, with its newline. As in core_v0.16, iteration 1 has a line of its own."""
        first = self._iteration == 0
        self._iteration += 1 if first else LOG_INTERVAL - (self._iteration == 1)
        self._lines += 1
        chance = self._chance.random
        self._speed += 0.1 * (chance() - 0.5) - 0.01 * self._speed
        elapsed = 2710.0 + 40.0 * self._speed + 12.0 * chance()
        self.wait(elapsed * LOG_INTERVAL / 1000.0)
        skipped = self._rescale()
        return (
            f" [{self.stamp()}] iteration {self._iteration:8d}/{self._total:8d} |"
            f" consumed samples: {self._iteration * BATCH_SIZE:12d} |"
            f" elapsed time per iteration (ms): {elapsed:.1f} |"
            f" throughput per GPU (TFLOP/s/GPU): {1.12e6 / elapsed:.1f} |"
            f" learning rate: {self._rate():.6E} | global batch size: {BATCH_SIZE:5d} |"
            f"{self._loss()} loss scale: {self._scale:.1f} |{self._norm()}"
            f" number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\n"
        )

    def _rescale(self) -> int:
        """Doubles the loss scale now and then, and halves it again a few lines later."""
        phase = self._lines % _GROWTH_LINES
        if phase == _GROWTH_LINES - 4:
            self._scale *= 2.0
        elif phase == _GROWTH_LINES - 2:
            self._scale *= 0.5
            return 2
        return 0

    def _rate(self) -> float:
        if self._iteration < _WARM_UP:
            return _PEAK_RATE * self._iteration / _WARM_UP
        share = self._iteration / self._total
        return _PEAK_RATE * (0.55 + 0.45 * math.cos(math.pi * share))

    def _loss(self) -> str:
        if self._gaps and self._chance.random() < 0.003:
            return ""  # the mean was NaN: Megatron-LM leaves the field out
        loss = 1.9 + 9.0 / (1.0 + self._iteration / 900.0) ** 0.5 + 0.04 * self._chance.random()
        return f" lm loss: {loss:.6E} |"

    def _norm(self) -> str:
        draw = self._chance.random()
        if self._gaps and draw < 0.004:
            return "" if draw < 0.002 else " grad norm: nan |"
        return f" grad norm: {0.2 + 0.5 * draw * draw:.3f} |"
