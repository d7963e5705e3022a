# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The accumulators behind the iteration line, with upstream's double count (log-formats 1.3)."""

from __future__ import annotations

from typing import NamedTuple

from sim.curve import Weights, learning_rate
from sim.lines import Report
from sim.shape import Shape


class StepResult(NamedTuple):
    loss: float
    """Of this iteration, be it skipped or not; may be NaN or infinite."""
    grad_norm: float | None
    """None: the step was skipped."""
    is_skipped: bool


class Meter:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._knows_loss = False
        self._is_first = True
        self._reset()

    def _reset(self) -> None:
        self._loss = 0.0
        self._advanced = self._skipped = self._nan = 0
        self._seconds = 0.0

    def add(self, result: StepResult, seconds: float) -> None:
        self._seconds += seconds
        if result.is_skipped:
            self._skipped += 1
            self._nan += result.loss != result.loss
        else:
            self._advanced += 1
            self._loss += result.loss
            self._knows_loss = True

    def report(self, weights: Weights, result: StepResult) -> Report | None:
        """The line of this iteration, if it gets one."""
        shape, iteration = self._shape, weights.iteration
        is_extra = self._is_first and shape.release.keeps_first
        self._is_first = False
        if not is_extra and iteration % shape.log_interval:
            return None
        count = self._advanced + self._skipped
        report = Report(
            iteration=iteration,
            samples=weights.samples,
            elapsed_ms=self._seconds * 1000.0 / count,
            rate=0.0 if weights.is_frozen else learning_rate(weights.advanced, shape.total),
            batch=shape.batch_at(iteration - 1),
            loss=self._loss / max(1, self._advanced) if self._knows_loss else None,
            scale=weights.scaler.scale if shape.precision == "fp16" else 1.0,
            grad_norm=result.grad_norm,
            skipped=self._skipped,
            nan=self._nan,
        )
        if not is_extra:
            self._reset()
        return report
