# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's output and logs, in Megatron's format (core_v0.16) and from the same ranks.

Does not import torch. Rank 0 prints for the job, the last rank prints the numbers. Every line is
flushed, because a buffered line looks like a hang. The iteration line has Megatron's quirks, which
readers must handle: a NaN or zero mean has no field, and a process's first iteration is printed
immediately and counted again in the next line.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def now() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")


def print_rank_0(text: str) -> None:
    if _rank() == 0:
        print(text, flush=True)


def print_rank_last(text: str) -> None:
    if _rank() == int(os.environ.get("WORLD_SIZE", "1")) - 1:
        print(text, flush=True)


def print_datetime(text: str, barrier: Callable[[], object]) -> None:
    """Print a marker once every rank has reached this point."""
    barrier()
    print_rank_0(f"[{text}] datetime: {now()} ")


def set_up_logging(args: argparse.Namespace) -> None:
    """Log as Megatron does: to stdout, `LEVEL:logger:message`."""
    logging.basicConfig(stream=sys.stdout, level=args.logging_level)
    logging.getLogger("torch").setLevel(logging.WARNING)
    if args.rank:
        warnings.simplefilter("ignore")


def print_arguments(args: argparse.Namespace) -> None:
    print_rank_0(
        f"using world size: {args.world_size}, data-parallel size: {args.data_parallel_size}, "
        f"context-parallel size: 1, hierarchical context-parallel sizes: None, "
        f"tensor-model-parallel size: {args.tensor_model_parallel_size}, "
        f"pipeline-model-parallel size: 1"
    )
    if args.fp16 or args.bf16:
        print_rank_0(f"using {args.params_dtype} for parameters ...")
    print_rank_0("------------------------ arguments ------------------------")
    for name, value in sorted(vars(args).items()):
        print_rank_0(f"  {name} {'.' * (48 - len(name))} {value}")
    print_rank_0("-------------------- end of arguments ---------------------")


_ADAM_FLOPS_PER_WEIGHT_AND_TOKEN = 6
_PROGRESS_FILE = "progress.txt"
_STAMP = "%Y-%m-%d %H:%M:%S"


@dataclass(slots=True)
class StepResult:
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
            # Every rank takes part in the timing; the last rank prints.
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
    """Estimate by the usual rule: six operations per weight and token, forward and backward."""
    tokens = args.global_batch_size * args.seq_length
    return float(_ADAM_FLOPS_PER_WEIGHT_AND_TOKEN * weights * tokens)


def _timer_names(level: int) -> list[str]:
    names = [["forward-backward", "all-grads-sync", "optimizer"], ["forward-compute"]]
    return [name for group in names[:level] for name in group]


def open_writer(args: argparse.Namespace) -> Any:
    """Open TensorBoard on the last rank, as Megatron does; None if disabled or not installed."""
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


class ProgressLog:
    """`progress.txt` beside the checkpoints (`--log-progress`): one line per start and per save.

    Rank 0 appends over all attempts, so the file also shows how often a job was started.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        is_wanted = args.log_progress and args.save and args.rank == 0
        self._path = Path(args.save) / _PROGRESS_FILE if is_wanted else None
        self._ranks = args.world_size
        self._tokens_per_sample = args.seq_length
        self._started = time.time()
        self._flops_at_start = 0.0

    def begin(self, flops: float) -> None:
        self._flops_at_start = flops
        self._append("Starting job")

    def saved(self, iteration: int, flops: float, samples: int, *, is_async: bool) -> None:
        if self._path is None:
            return
        job = self._rate(flops - self._flops_at_start, self._started)
        ever = self._rate(flops, self._first_start())
        what = "Saving async checkpoint" if is_async else "Saved checkpoint"
        self._append(
            f"{what}\tIteration: {iteration}\tJob throughput: {job:.1f} TFLOP/s/GPU\t"
            f"Cumulative throughput: {ever:.1f} TFLOP/s/GPU\t"
            f"Floating-point operations: {flops:.2e}\t"
            f"Tokens (in billions): {samples * self._tokens_per_sample / 1e9:.2f}"
        )

    def written(self, iteration: int) -> None:
        self._append(f"Saved async checkpoint\tIteration: {iteration}")

    def _rate(self, flops: float, since: float) -> float:
        return float(flops / (max(time.time() - since, 1e-3) * 1e12 * self._ranks))

    def _first_start(self) -> float:
        assert self._path is not None
        with self._path.open() as file:
            stamp = file.readline().partition("\t")[0]
        return float(datetime.strptime(stamp, _STAMP).timestamp())

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        job = os.environ.get("SLURM_JOB_ID", "")
        stamp = datetime.now().strftime(_STAMP)
        with self._path.open("a") as file:
            file.write(f"{stamp}\tJob ID: {job}\t# GPUs: {self._ranks}\t{text}\n")
