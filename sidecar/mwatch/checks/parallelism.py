# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's parallel sizes: what does not divide ends the job in its first minute, on every GPU.

DP = world / (TP x PP x CP); experts divide inside DP and do not matter here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mwatch.checks.pods import NPROC, gpus, has_arguments, training
from mwatch.model.checks import Check, CheckHit, CheckLevel, Path, Replica, Workload

_UNEVEN = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--encoder-num-layers",
)
"""With one of these the stages need not be equal."""
_RAMP = "--rampup-batch-size"


class JobParallelism(NamedTuple):
    replica: Replica
    tensor: int
    pipeline: int
    context: int
    world: int | None  # none: pods or GPUs are not numbers in the text

    @property
    def model(self) -> int:
        return self.tensor * self.pipeline * self.context

    @property
    def text(self) -> str:
        return f"TP {self.tensor} x PP {self.pipeline} x CP {self.context} = {self.model}"

    @property
    def path(self) -> Path:
        return self.replica.container_path


def shape_of(workload: Workload) -> JobParallelism | None:
    """None if no argument of Megatron is in the manifest."""
    replicas = training(workload)
    first = next((each for each in replicas if has_arguments(each)), None)
    if first is None:
        return None
    flags = ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    sizes = [_size(first, f"--{name}-size") for name in flags]
    if None in sizes:
        return None  # an argument that only the shell knows
    tensor, pipeline, context = (size or 1 for size in sizes)
    return JobParallelism(first, tensor, pipeline, context, _world(workload, replicas))


def _size(replica: Replica, flag: str) -> int | None:
    return replica.number(flag) if flag in replica.arguments else 1


def _world(workload: Workload, replicas: list[Replica]) -> int | None:
    total = 0
    for each in replicas:
        ranks = _ranks(workload, each)
        if ranks is None or each.count is None:
            return None
        total += ranks * each.count
    return total or None


def _ranks(workload: Workload, replica: Replica) -> int | None:
    """Return the ranks of one pod: the flag of the launcher, the field of the operator, or the
    GPUs."""
    if any(each in replica.arguments for each in NPROC):
        return replica.number(*NPROC) or gpus(replica)
    field = str(workload.spec.get("nprocPerNode", ""))
    return int(field) if field.isascii() and field.isdigit() else gpus(replica)


def _world_size(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    if shape is not None and shape.world and shape.world % shape.model:
        what = f"the world size {shape.world} does not divide by {shape.text}"
        fix = f"use a multiple of {shape.model} GPUs, or smaller parallel sizes"
        yield CheckHit(shape.path, what, fix)


def _batch(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    if shape is None or not shape.world or shape.world % shape.model:
        return
    whole = shape.replica.number("--global-batch-size")
    micro = shape.replica.number("--micro-batch-size")
    if not whole or not micro or _RAMP in shape.replica.arguments:
        return
    data = shape.world // shape.model
    if whole % (micro * data):
        what = f"the global batch {whole} does not divide by micro batch {micro} x DP {data}"
        yield CheckHit(shape.path, what, f"use a multiple of {micro * data}")


def _heads(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    heads = None if shape is None else shape.replica.number("--num-attention-heads")
    if shape is not None and heads and heads % shape.tensor:
        what = f"{heads} attention heads do not divide by TP {shape.tensor}"
        yield CheckHit(shape.path, what, "choose another tensor-parallel size")


def _layers(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    layers = None if shape is None else shape.replica.number("--num-layers")
    if shape is None or not layers or any(each in shape.replica.arguments for each in _UNEVEN):
        return
    if layers % shape.pipeline:
        what = f"{layers} layers do not divide by PP {shape.pipeline}"
        yield CheckHit(shape.path, what, "choose another pipeline-parallel size")


CHECKS = (
    Check("world-size", CheckLevel.ERROR, "TP x PP x CP divides nodes x GPUs", _world_size),
    Check("batch", CheckLevel.ERROR, "the global batch divides by micro batch x DP", _batch),
    Check("heads", CheckLevel.ERROR, "attention heads divide by TP", _heads),
    Check("layers", CheckLevel.ERROR, "layers divide by PP", _layers),
)
