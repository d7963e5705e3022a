# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Looks for a layout that fits, and takes the one whose step is shortest by estimate.

Every combination that Megatron accepts is tried: TP within a machine, PP that divides the layers,
CP for long sequences alone, EP for experts. What a person has fixed stays as it is. Where two
are nearly equal the simpler one is taken: fewer GPUs to a copy, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from mwatch.plan import memory, speed
from mwatch.plan.check import divisors, holds
from mwatch.plan.layout import Layout, Recompute
from mwatch.plan.machines import Cluster, Gpu
from mwatch.plan.shape import Shape

BATCH_PER_GPU = 16
"""The rule of the document about AKS: the global batch is some 16 for each GPU."""
HEADROOM = 0.95
LONG_SEQUENCE = 8192
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_STAGES = 64
_NEARLY = 0.05
_UNKNOWN_TFLOPS = 300.0
"""For ranking alone, where a GPU was given by its memory."""


class Fixed(NamedTuple):
    """What a person has set; None is open."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    virtual: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    flash_attention: bool = True
    fully_sharded: bool = False


def choose(shape: Shape, cluster: Cluster, fixed: Fixed) -> Layout | None:
    """None: nothing fits."""
    fitting = [each for each in candidates(shape, cluster, fixed) if fits(shape, each, cluster)]
    if not fitting:
        return None
    ranked = [(_seconds(shape, each, cluster), each) for each in fitting]
    best = min(seconds for seconds, _ in ranked)
    near = [each for seconds, each in ranked if seconds <= best * (1 + _NEARLY)]
    return min(near, key=_plainness)


def fits(shape: Shape, layout: Layout, cluster: Cluster) -> bool:
    return memory.fullest(shape, layout).total <= cluster.memory_bytes * HEADROOM


def smallest(shape: Shape, cluster: Cluster, fixed: Fixed, most_nodes: int = 1024) -> int | None:
    """With how many such machines it would begin to fit; None: not with that many."""
    nodes = cluster.nodes
    while nodes <= most_nodes:
        if choose(shape, cluster._replace(nodes=nodes), fixed) is not None:
            return nodes
        nodes *= 2
    return None


def candidates(shape: Shape, cluster: Cluster, fixed: Fixed) -> Iterator[Layout]:
    """All that Megatron's arithmetic allows."""
    if fixed.fully_sharded:
        fixed = fixed._replace(tensor=1, pipeline=1, context=1, expert=1)
    sizes = product(
        _sizes(fixed.tensor, divisors(cluster.machine.gpus)),
        _sizes(fixed.pipeline, divisors(shape.layers, _MOST_STAGES)),
        _sizes(fixed.context, _contexts(shape)),
        _sizes(fixed.expert, _expert_sizes(shape)),
    )
    for tensor, pipeline, context, expert in sizes:
        if cluster.world % (tensor * pipeline * context) == 0:
            base = Layout(
                cluster.world, tensor, pipeline, context, expert,
                sequence_parallel=fixed.sequence_parallel,
                distributed_optimizer=fixed.distributed_optimizer,
                flash_attention=fixed.flash_attention, fully_sharded=fixed.fully_sharded,
            )  # fmt: skip
            yield from _batched(shape, base, fixed)


def _batched(shape: Shape, base: Layout, fixed: Fixed) -> Iterator[Layout]:
    from dataclasses import replace

    recomputes = (Recompute.SELECTIVE, Recompute.FULL)
    choices = product(
        _sizes(fixed.micro_batch, _MICRO_BATCHES),
        (fixed.recompute,) if fixed.recompute is not None else recomputes,
        _virtuals(shape, base, fixed),
    )
    for micro, recompute, virtual in choices:
        whole = fixed.global_batch or usual_batch(base.world, micro * base.data)
        found = replace(
            base, micro_batch=micro, global_batch=whole, recompute=recompute, virtual=virtual
        )
        if holds(shape, found):
            yield found


def usual_batch(world: int, step: int) -> int:
    """16 for each GPU, rounded up to what divides."""
    return -(-BATCH_PER_GPU * world // step) * step


def _sizes(fixed: int | None, open_to: tuple[int, ...]) -> tuple[int, ...]:
    return open_to if fixed is None else (fixed,)


def _contexts(shape: Shape) -> tuple[int, ...]:
    return (1, 2, 4, 8, 16) if shape.sequence >= LONG_SEQUENCE else (1,)


def _expert_sizes(shape: Shape) -> tuple[int, ...]:
    return (1,) if shape.experts is None else divisors(shape.experts.count)


def _virtuals(shape: Shape, base: Layout, fixed: Fixed) -> tuple[int | None, ...]:
    if fixed.virtual is not None:
        return (fixed.virtual,)
    if base.pipeline == 1 or shape.layers % base.pipeline:
        return (None,)
    return (None, *(each for each in divisors(shape.layers // base.pipeline, 4) if each > 1))


def _seconds(shape: Shape, layout: Layout, cluster: Cluster) -> float:
    found = speed.step_seconds(shape, layout, cluster)
    if found is None:
        gpu: Gpu = cluster.machine.gpu._replace(tflops=_UNKNOWN_TFLOPS)
        machine = cluster.machine._replace(gpu=gpu)
        found = speed.step_seconds(shape, layout, cluster._replace(machine=machine))
    assert found is not None
    # A rounded-up batch is more work, not a slower layout.
    return found / layout.global_batch


def _plainness(layout: Layout) -> tuple[int, ...]:
    return (
        int(layout.recompute is Recompute.FULL), layout.model, layout.virtual or 1,
        layout.expert, layout.pipeline, layout.micro_batch,
    )  # fmt: skip
