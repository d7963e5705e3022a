# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU of each pipeline stage, by part.

Weights 2 bytes a parameter, gradients 4, Adam with its fp32 copy 12, which the distributed
optimizer cuts over DP x CP. What Megatron's report leaves out is here too: the loss, the
allocator and what CUDA and NCCL take. These were set by the runs of gpt2-large on one and two
H200 (tests/plan/test_two_gpus.py), every figure of which is met within 4 %, and what lies outside
torch's memory by those on one H200 (tests/plan/test_one_h200.py): 1.5 to 2.5 GiB a rank.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.plan import activations, parameters, stages
from mwatch.plan.layout import Layout
from mwatch.plan.pipeline import in_flight
from mwatch.plan.shape import Shape

MIB = 1024.0**2
GIB = 1024.0**3
WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 4.0
OPTIMIZER_BYTES = 12.0
LOGIT_BYTES = 8.0
"""At the peak: logits 2, softmax in fp32 4, gradient 2."""
ALLOCATOR_SHARE = 0.05
CONTEXT_BYTES = 1.5 * GIB
NCCL_BYTES = 400 * MIB


class Stage(NamedTuple):
    stage: int
    parameters: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float
    """Of the logits, beyond what `activations` counts."""
    allocator: float
    runtime: float
    """CUDA's context and the buffers of NCCL."""

    @property
    def total(self) -> float:
        return sum(self[2:])

    @property
    def parts(self) -> dict[str, float]:
        return dict(zip(self._fields[2:], self[2:], strict=True))


def stage(shape: Shape, layout: Layout, number: int) -> Stage:
    held = parameters.on_stage(shape, layout, number)
    kept, loss = _activations(shape, layout, number)
    fixed = _states(shape, layout, held)
    allocator = ALLOCATOR_SHARE * (sum(fixed) + kept + loss)
    runtime = CONTEXT_BYTES + (NCCL_BYTES if layout.world > 1 else 0.0)
    return Stage(number, held.total, *fixed, kept, loss, allocator, runtime)


def _states(shape: Shape, layout: Layout, held: parameters.Held) -> tuple[float, float, float]:
    """Weights, gradients, optimizer."""
    if layout.fully_sharded:
        # fp32 weights, gradients and moments are cut over all GPUs; two blocks at a time are
        # gathered in 16 bits, and one block's gradients are not yet given away.
        block = parameters.layer(shape, with_experts=shape.experts is not None).total
        mine = held.total / layout.world
        return 4 * mine + 2 * WEIGHT_BYTES * block, 4 * mine + WEIGHT_BYTES * block, 8 * mine
    weights, gradients = WEIGHT_BYTES * held.total, GRADIENT_BYTES * held.total
    return weights, gradients, _optimizer(layout, held)


def _optimizer(layout: Layout, held: parameters.Held) -> float:
    if not layout.distributed_optimizer:
        return OPTIMIZER_BYTES * held.total
    dense = held.dense / (layout.data * layout.context)
    return OPTIMIZER_BYTES * (dense + held.expert / layout.expert_data)


def _activations(shape: Shape, layout: Layout, number: int) -> tuple[float, float]:
    """What is kept, and what the loss takes on top of it. No layer is computed again while the
    logits are there: the larger of both counts."""
    many = in_flight(layout, number)
    kept = activations.stage_layers(shape, layout, number, many)
    kept += activations.buffer(shape, layout)
    if number == 0:
        kept += activations.embedding(shape, layout, many)
    again = activations.again(shape, layout, number)
    if number < layout.pipeline - 1:
        return kept + again, 0.0
    output = activations.output(shape, layout)
    whole = LOGIT_BYTES * activations.logits(shape, layout)
    if again > max(whole, output):
        return kept + again, 0.0
    return kept + output, max(whole - output, 0.0)


def all_stages(shape: Shape, layout: Layout) -> tuple[Stage, ...]:
    return tuple(stage(shape, layout, number) for number in range(layout.pipeline))


def fullest(shape: Shape, layout: Layout) -> Stage:
    """Of stages alike the first is looked at: it keeps most micro-batches."""
    kinds: dict[object, int] = {}
    for number in range(layout.pipeline):
        ends = number == 0, number == layout.pipeline - 1
        kinds.setdefault((ends, stages.held(shape, layout, number)), number)
    found = (stage(shape, layout, each) for each in kinds.values())
    return max(found, key=lambda each: each.total)
