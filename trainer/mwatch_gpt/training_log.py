# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The iteration line, as core_v0.16 prints it, and the same numbers for TensorBoard.

Its habits are kept, since readers must live with them: a NaN or zero mean loses its field, the
first iteration of a process is printed at once and counted again in the next line.

The writer of TensorBoard's events: on the last rank, where the losses are, as Megatron's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from mwatch_gpt.console import now, print_rank_last

_ADAM_FLOPS_PER_WEIGHT_AND_TOKEN = 6


@dataclass(slots=True)
class StepResult:
    """What one iteration gave."""

    losses: dict[str, Any]
    learning_rate: float
    loss_scale: float
    grad_norm: float | None
    num_zeros: float | None
    params_norm: float | None
    is_skipped: bool


class TrainingLog:
    def __init__(self, args: argparse.Namespace, timers: Any, writer: Any) -> None:
        self._args = args
        self._timers = timers
        self._writer = writer
        self._sums: dict[str, float] = {}
        self._advanced = self._skipped = self._nan = 0

    def record(self, step: StepResult, iteration: int, *, is_first: bool) -> None:
        self._add(step)
        args = self._args
        if self._writer and iteration % args.tensorboard_log_interval == 0:
            self._to_tensorboard(step, iteration)
        if iteration % args.log_interval == 0 or is_first:
            # Every rank takes part in the timing; the last one prints.
            print_rank_last(self._line(step, iteration, reset=not is_first))
            self._timers.log(
                _timer_names(args.timing_log_level),
                normalizer=args.log_interval,
                reset=not is_first,
            )

    def _add(self, step: StepResult) -> None:
        self._advanced += not step.is_skipped
        self._skipped += step.is_skipped
        values = {name: float(value) for name, value in step.losses.items()}
        if step.is_skipped:
            self._nan += any(value - value != 0.0 for value in values.values())
            return
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def _line(self, step: StepResult, iteration: int, *, reset: bool) -> str:
        args = self._args
        seconds = self._timers("interval-time").elapsed(barrier=True, reset=reset)
        seconds /= self._advanced + self._skipped
        fields = [
            f" [{now()}] iteration {iteration:8d}/{args.train_iters:8d}",
            f"consumed samples: {args.consumed_train_samples:12d}",
        ]
        if args.skipped_train_samples:
            fields.append(f"skipped samples: {args.skipped_train_samples:12d}")
        fields.append(f"elapsed time per iteration (ms): {seconds * 1000.0:.1f}")
        if args.log_throughput:
            rate = args.flops_per_iteration / (seconds * 1e12 * args.world_size)
            fields.append(f"throughput per GPU (TFLOP/s/GPU): {rate:.1f}")
        fields.append(f"learning rate: {step.learning_rate:.6E}")
        fields.append(f"global batch size: {args.global_batch_size:5d}")
        for name, total in self._sums.items():
            if (mean := total / max(1, self._advanced)) > 0.0:
                fields.append(f"{name}: {mean:.6E}")
        fields += self._tail(step)
        if reset:
            self._sums = dict.fromkeys(self._sums, 0.0)
            self._advanced = self._skipped = self._nan = 0
        return " | ".join(fields) + " |"

    def _tail(self, step: StepResult) -> list[str]:
        fields = [f"loss scale: {step.loss_scale:.1f}"]
        if step.grad_norm is not None:
            fields.append(f"grad norm: {step.grad_norm:.3f}")
        if step.num_zeros is not None:
            fields.append(f"num zeros: {step.num_zeros}")
        if step.params_norm is not None:
            fields.append(f"params norm: {step.params_norm:.3f}")
        fields.append(f"number of skipped iterations: {self._skipped:3d}")
        fields.append(f"number of nan iterations: {self._nan:3d}")
        return fields

    def _to_tensorboard(self, step: StepResult, iteration: int) -> None:
        samples = self._args.consumed_train_samples
        values: dict[str, float | None] = {
            "learning-rate": step.learning_rate,
            "batch-size": self._args.global_batch_size,
            "loss-scale": step.loss_scale,
            "grad-norm": step.grad_norm,
            "num-zeros": step.num_zeros,
            "params-norm": step.params_norm,
            **{name: float(value) for name, value in step.losses.items()},
        }
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, iteration)
                self._writer.add_scalar(f"{name} vs samples", value, samples)


def flops_of_one_iteration(args: argparse.Namespace, weights: int) -> float:
    """By the usual rule of six operations per weight and token, forward and backward."""
    tokens = args.global_batch_size * args.seq_length
    return float(_ADAM_FLOPS_PER_WEIGHT_AND_TOKEN * weights * tokens)


def _timer_names(level: int) -> list[str]:
    names = [["forward-backward", "all-grads-sync", "optimizer"], ["forward-compute"]]
    return [name for group in names[:level] for name in group]


def open_writer(args: argparse.Namespace) -> Any:
    """None where none was asked for, on the other ranks, and where the package is missing."""
    if not args.tensorboard_dir or args.rank != args.world_size - 1:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print(
            "WARNING: TensorBoard writing requested but is not available "
            "(pip install tensorboard), no TensorBoard logs will be written.",
            flush=True,
        )
        return None
    print("> setting tensorboard ...", flush=True)
    return SummaryWriter(log_dir=args.tensorboard_dir)
