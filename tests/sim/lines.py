# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a healthy trainer's lines, by release. Formats as in log-formats 1 and 2."""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.release import Release, stamp
from sim.shape import SAVE_DIR, Shape


class Report(NamedTuple):
    """What one iteration line says; means are over the iterations since the last reset."""

    iteration: int
    samples: int
    elapsed_ms: float
    rate: float
    batch: int
    loss: float | None
    """None: no step of the interval advanced, and no mean exists."""
    scale: float
    grad_norm: float | None
    skipped: int
    nan: int


def iteration_line(at: float, shape: Shape, report: Report) -> str:
    release = shape.release
    parts = [
        f" [{stamp(at, release)}] iteration {report.iteration:8d}/{shape.total:8d} |",
        f" consumed samples: {report.samples:12d} |",
        f" elapsed time per iteration (ms): {report.elapsed_ms:.1f} |",
    ]
    if shape.logs_throughput:
        parts.append(f" throughput per GPU (TFLOP/s/GPU): {380e3 / report.elapsed_ms:.1f} |")
    parts.append(f" learning rate: {report.rate:{release.rate}} |")
    parts.append(f" global batch size: {report.batch:5d} |")
    loss = report.loss
    if loss is not None and (loss > 0.0 or (loss == 0.0 and release.prints_zero)):
        parts.append(f" lm loss: {loss:.6E} |")  # a comparison with NaN is false: no field
    parts.append(f" loss scale: {report.scale:.1f} |")
    if report.grad_norm is not None:
        parts.append(f" grad norm: {report.grad_norm:.3f} |")
    parts.append(f" number of skipped iterations: {report.skipped:3d} |")
    parts.append(f" number of nan iterations: {report.nan:3d} |")
    return "".join(parts)


FLAVOURS = ("torchtitan", "composer", "deepspeed", "hugging face", "loop")


def foreign_line(at: float, shape: Shape, report: Report) -> list[str]:
    """The line of a trainer that is not Megatron."""
    step, loss, seconds = report.iteration, report.loss or 0.0, report.elapsed_ms / 1000.0
    when = stamp(at, shape.release)[:19]
    texts = {
        "torchtitan": f"[titan] {when},000 - root - INFO - step: {step:2d}  loss:  {loss:.5f}"
        "  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%",
        "composer": f"[batch={step}/{shape.total}]:\n\t Train time/batch: {step - 1}\n"
        f"\t Train time/sample: {report.samples}\n\t Train loss/train/total: {loss:.4f}",
        "deepspeed": f"steps: {step} loss: {loss:.4f} iter time (s): {seconds:.3f}"
        " samples/sec: 73.153",
        "hugging face": f"{{'loss': {loss:.4f}, 'grad_norm': 0.8, 'learning_rate': 1e-05,"
        f" 'epoch': {step / shape.total:.2f}}}",
        "loop": f"step {step} | loss {loss:.4f} | {report.elapsed_ms:.0f} ms",
    }
    return texts[shape.flavour].split("\n")


def validation(iteration: int, loss: float, where: str = "") -> list[str]:
    perplexity = math.exp(min(20.0, loss)) if loss == loss else math.exp(20.0)
    text = (
        f" validation loss at iteration {iteration}{where} | lm loss value: {loss:.6E} |"
        f" lm loss PPL: {perplexity:.6E} | "
    )
    bar = "-" * (len(text) + 1)
    return [bar, text, bar]


def marker(at: float, release: Release, text: str) -> str:
    return f"[{text}] datetime: {stamp(at, release)} "


def _on_save(at: float, release: Release) -> str:
    return f"[{stamp(at, release)}] " if release.has_micros else ""


def saving(at: float, shape: Shape, iteration: int) -> str:
    kind = "torch" if shape.release.number < (0, 15) else "torch_dist"
    head = _on_save(at, shape.release)
    return f"{head}saving checkpoint at iteration {iteration:7d} to {SAVE_DIR} in {kind} format"


def queued(at: float, shape: Shape, iteration: int) -> str:
    head = _on_save(at, shape.release)
    return f"  {head}scheduled an async checkpoint save at iteration {iteration:7d} to {SAVE_DIR}"


def saved(at: float, shape: Shape, iteration: int) -> str:
    head = _on_save(at, shape.release)
    word = "at" if shape.release.version == "0.6.0" else "from"
    layout = shape.release.layout.format(t=shape.tensor, p=shape.pipeline)
    return (
        f"  {head}successfully saved checkpoint {word} iteration {iteration:7d} to"
        f" {SAVE_DIR}{layout}"
    )


def loading(shape: Shape, iteration: int) -> str:
    kind = "distributed " if shape.release.loading == "distributed" else ""
    return f" loading {kind}checkpoint from {SAVE_DIR} at iteration {iteration}"


def loaded(shape: Shape, iteration: int) -> str:
    layout = shape.release.layout.format(t=shape.tensor, p=shape.pipeline)
    return f"  successfully loaded checkpoint from {SAVE_DIR}{layout} at iteration {iteration}"


def no_checkpoint() -> list[str]:
    return [
        f"WARNING: could not find the metadata file {SAVE_DIR}/latest_checkpointed_iteration.txt",
        "    will not load any checkpoints and will start from random",
    ]


def opening(shape: Shape) -> list[str]:
    """The first lines of a process: versions, sizes and the argument block (rank 0)."""
    data = shape.world_size // (shape.tensor * shape.pipeline)
    head = [
        "> PyTorch version ................ 2.11.0+cu130",
        f"> Megatron-Core version .......... {shape.release.version}",
        f"using world size: {shape.world_size}, data-parallel size: {data},"
        f" context-parallel size: 1, tensor-model-parallel size: {shape.tensor},"
        f" pipeline-model-parallel size: {shape.pipeline}",
        f"using torch.{'bfloat16' if shape.precision == 'bf16' else 'float16'} for parameters ...",
        "------------------------ arguments ------------------------",
    ]
    rows = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in _arguments(shape)]
    return [*head, *rows, "-------------------- end of arguments ---------------------"]


def _arguments(shape: Shape) -> list[tuple[str, object]]:
    values: dict[str, object] = {
        "async_save": shape.is_async,
        "bf16": shape.precision == "bf16",
        "check_for_nan_in_loss_and_grad": shape.checks_nan,
        "context_parallel_size": 1,
        "data_parallel_size": shape.world_size // (shape.tensor * shape.pipeline),
        "distributed_timeout_minutes": int(shape.timeout_seconds // 60),
        "error_injection_rate": 0,
        "eval_interval": shape.eval_interval or 1_000_000,
        "exit_duration_in_mins": shape.exit_minutes,
        "exit_interval": shape.exit_interval,
        "exit_signal_handler": shape.handles_sigterm,
        "expert_model_parallel_size": 1,
        "fp16": shape.precision == "fp16",
        "global_batch_size": shape.batch,
        "hysteresis": 2,
        "initial_loss_scale": 4294967296,
        "load": SAVE_DIR if shape.loads else None,
        "log_interval": shape.log_interval,
        "loss_scale": None,
        "loss_scale_window": 1000,
        "min_loss_scale": 1.0,
        "pipeline_model_parallel_size": shape.pipeline,
        "rampup_batch_size": None if shape.ramp is None else [1, shape.ramp[1], shape.ramp[0]],
        "save": SAVE_DIR if shape.save_interval else None,
        "save_interval": shape.save_interval or None,
        "tensor_model_parallel_size": shape.tensor,
        "train_iters": shape.total,
        "world_size": shape.world_size,
    }
    return list(values.items())
