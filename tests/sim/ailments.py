# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Faults that do not stop the job: numbers that go bad, slowness, saves that do not come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.faults import Fault
from sim.meter import StepResult
from sim.release import stamp
from sim.stage import Posture

if TYPE_CHECKING:
    from sim.trainer import Trainer

_JITTER = 2e-5
"""Of kernels that are not deterministic."""


class Ailments:
    KINDS = frozenset(
        {
            "nan", "collapse", "spike_stays", "stuck", "slow", "straggler", "diverged",
            "overdue", "spoiled", "idle_evaluation", "much_slower",
        }
    )  # fmt: skip

    def __init__(self, trainer: Trainer, faults: list[Fault]) -> None:
        self._trainer = trainer
        self._faults = {fault.kind: fault for fault in faults}
        self.begun: list[Fault] = []
        """Those that have shown themselves since this was last read."""

    def _active(self, kind: str, iteration: int) -> Fault | None:
        fault = self._faults.get(kind)
        if fault is None or iteration < fault.iteration:
            return None
        if fault not in self.begun:
            self.begun.append(fault)
            self._trainer.note(fault)
        return fault

    def slowness(self, iteration: int) -> float:
        for kind in ("slow", "straggler", "much_slower"):
            if kind in self._faults and (fault := self._active(kind, iteration)):
                return fault.size
        return 1.0

    @property
    def is_much_slower(self) -> bool:
        fault = self._faults.get("much_slower")
        return fault is not None and fault in self.begun

    def evaluating(self) -> Posture:
        """One that waits for its data leaves the GPUs idle, and maybe the CPUs."""
        fault = self._faults.get("idle_evaluation")
        if fault is None:
            return Posture("evaluating")
        return Posture("evaluating", uses_gpu=False, burns_cpu=fault.variant != "storage")

    def loses_saves(self, iteration: int) -> bool:
        return "overdue" in self._faults and self._active("overdue", iteration) is not None

    def spoils(self, iteration: int) -> bool:
        fault = self._faults.get("spoiled")
        return fault is not None and iteration >= fault.iteration

    def compute(self) -> StepResult:
        """One optimizer step: the weights move on, or the step is skipped."""
        trainer = self._trainer
        weights, shape = trainer.weights, trainer.shape
        weights.samples += shape.batch_at(weights.iteration)
        weights.iteration += 1
        iteration = weights.iteration
        loss, norm = self._numbers(iteration)
        if shape.precision == "fp16":
            collapses = "collapse" in self._faults and self._active("collapse", iteration)
            overflow = bool(collapses) or not math.isfinite(loss)
            overflow = overflow or trainer.curve.overflows(iteration, weights.scaler.scale)
            weights.scaler.update(overflow=overflow)
            if overflow:
                if collapses and collapses.variant == "nan":
                    loss = math.nan
                return StepResult(loss, None, True)
        weights.advanced += 1
        return StepResult(loss, norm, False)

    def _numbers(self, iteration: int) -> tuple[float, float]:
        trainer = self._trainer
        weights, curve = trainer.weights, trainer.curve
        if weights.is_nan:
            return math.nan, math.nan
        shift = self._diverge(iteration) if "diverged" in self._faults else 0
        loss = curve.loss(iteration, shift=shift) * (1.0 + trainer.chance.gauss(0.0, _JITTER))
        norm = curve.grad_norm(iteration + shift)
        if not self._faults:
            return loss, norm
        return self._sicken(iteration, loss, norm)

    def _diverge(self, iteration: int) -> int:
        """The resume brought back less than was saved; returns how far off its data is."""
        is_first = self._faults["diverged"] not in self.begun
        fault = self._active("diverged", iteration)
        weights = self._trainer.weights
        if fault is None or fault.variant == "weights":
            return 0
        if fault.variant == "data":
            if is_first:  # the count of samples was not loaded: training reads from the start
                weights.samples = self._trainer.shape.batch
            return 1777
        if is_first:  # neither optimizer nor scheduler were loaded
            weights.advanced = 0
        return 0

    def _sicken(self, iteration: int, loss: float, norm: float) -> tuple[float, float]:
        trainer, weights = self._trainer, self._trainer.weights
        if fault := self._active("nan", iteration):
            weights.is_nan, weights.sick_since = True, iteration
            return (math.inf, math.inf) if fault.variant == "inf" else (math.nan, math.nan)
        if fault := self._active("spike_stays", iteration):
            weights.sick_since = weights.sick_since or iteration
            return loss + fault.size, norm * 6.0
        if fault := self._active("stuck", iteration):
            return self._learn_nothing(fault, loss), norm
        fault = self._faults.get("diverged")
        if fault and fault.variant != "data" and iteration >= fault.iteration:
            since = iteration - max(fault.iteration, (trainer.resume_from or 0) + 1)
            return loss * (1.0 + fault.size * math.exp(-since / 40.0)), norm * 2.5
        return loss, norm

    def _learn_nothing(self, fault: Fault, loss: float) -> float:
        """Flat within its noise is no sign: these are. With a rate of 0 the loss stays noisy."""
        trainer = self._trainer
        if fault.variant == "same":
            return trainer.curve.loss(fault.iteration)
        if fault.variant == "initial":
            return 10.8 * (1.0 + 0.05 * trainer.shape.loss_noise * trainer.chance.gauss(0.0, 1.0))
        trainer.weights.is_frozen = True
        return loss

    def validation(self, iteration: int) -> float:
        trainer = self._trainer
        if trainer.weights.is_nan:
            return math.nan
        return trainer.curve.loss(iteration) * trainer.chance.uniform(0.98, 1.03)

    def after_step(self) -> None:
        """`--log-straggler`: rank 0 tells who is slowest, at each log interval."""
        trainer = self._trainer
        fault = self._faults.get("straggler")
        iteration, shape = trainer.weights.iteration, trainer.shape
        if fault is None or iteration % shape.log_interval:
            return
        slow = shape.step_seconds * 1000.0 * self.slowness(iteration)
        fast, other = shape.step_seconds * 1000.0, (fault.rank + 1) % shape.world_size
        head = "INFO:megatron.core.utils:" if shape.release.has_micros else ""
        when = stamp(trainer.stage.shown, shape.release)[:19]
        trainer.stage.say(
            0,
            f"{head}[{when}] | MnRtt/Rnk: {fast:.2f}ms/{other} | MxRtt/Rnk: {slow:.2f}ms/"
            f"{fault.rank} | MnPwr/Rnk: 420.00W/{fault.rank} | MxPwr/Rnk: 610.00W/{other} |"
            f" MnEtpt/Rnk: {296.0 * fast / slow:.2f}TF/{fault.rank} | MxEtpt/Rnk: 296.02TF/{other}",
        )
