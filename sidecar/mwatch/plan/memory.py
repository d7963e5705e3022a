# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU of each pipeline stage, by part.

Weights 2 bytes a parameter, gradients 4, Adam with its fp32 copy 12, which the distributed
optimizer cuts over DP x CP. What Megatron's report leaves out is here too: the loss, the
allocator and what CUDA and NCCL take. These were set by the runs of gpt2-large on one and two
H200 (tests/plan/test_two_gpus.py), every figure of which is met within 4 %, and what lies outside
torch's memory by those on one H200 (tests/plan/test_one_h200.py): 1.5 to 2.5 GiB a rank.

What Megatron-LM's own theoretical memory report would print for this layout.

For holding a plan against the line `Theoretical memory footprints: ...` of a log. The rules are
those of core_v0.16.1: parameters without biases and positions, experts not cut by EP, the first
stage alone, context parallelism not seen, and two ways to count activations. A golden table in
tests/plan, made by Megatron's function itself, holds these figures.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.plan import activations, parameters, stages
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import Experts, ModelShape
from mwatch.plan.stages import in_flight

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


class StageMemory(NamedTuple):
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


def stage(shape: ModelShape, layout: ParallelLayout, number: int) -> StageMemory:
    held = parameters.on_stage(shape, layout, number)
    kept, loss = _activations(shape, layout, number)
    fixed = _states(shape, layout, held)
    allocator = ALLOCATOR_SHARE * (sum(fixed) + kept + loss)
    runtime = CONTEXT_BYTES + (NCCL_BYTES if layout.world > 1 else 0.0)
    return StageMemory(number, held.total, *fixed, kept, loss, allocator, runtime)


def _states(
    shape: ModelShape, layout: ParallelLayout, held: parameters.GpuParameters
) -> tuple[float, float, float]:
    """Weights, gradients, optimizer."""
    if layout.fully_sharded:
        # fp32 weights, gradients and moments are cut over all GPUs; two blocks at a time are
        # gathered in 16 bits, and one block's gradients are not yet given away.
        block = parameters.layer(shape, with_experts=shape.experts is not None).total
        mine = held.total / layout.world
        return 4 * mine + 2 * WEIGHT_BYTES * block, 4 * mine + WEIGHT_BYTES * block, 8 * mine
    weights, gradients = WEIGHT_BYTES * held.total, GRADIENT_BYTES * held.total
    return weights, gradients, _optimizer(layout, held)


def _optimizer(layout: ParallelLayout, held: parameters.GpuParameters) -> float:
    if not layout.distributed_optimizer:
        return OPTIMIZER_BYTES * held.total
    dense = held.dense / (layout.data * layout.context)
    return OPTIMIZER_BYTES * (dense + held.expert / layout.expert_data)


def _activations(shape: ModelShape, layout: ParallelLayout, number: int) -> tuple[float, float]:
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


def all_stages(shape: ModelShape, layout: ParallelLayout) -> tuple[StageMemory, ...]:
    return tuple(stage(shape, layout, number) for number in range(layout.pipeline))


def fullest(shape: ModelShape, layout: ParallelLayout) -> StageMemory:
    """Of stages alike the first is looked at: it keeps most micro-batches."""
    kinds: dict[object, int] = {}
    for number in range(layout.pipeline):
        ends = number == 0, number == layout.pipeline - 1
        kinds.setdefault((ends, stages.held(shape, layout, number)), number)
    found = (stage(shape, layout, each) for each in kinds.values())
    return max(found, key=lambda each: each.total)


_OVERHEAD = 1.05


class Footprint(NamedTuple):
    """In MB of 1024 x 1024 bytes, as it prints them."""

    weight_and_optimizer: float
    activation: float

    @property
    def total(self) -> float:
        return self.weight_and_optimizer + self.activation


def footprint(shape: ModelShape, layout: ParallelLayout) -> Footprint:
    embedding = shape.hidden * shape.padded_vocabulary(layout.tensor)
    held = _block(shape) / layout.pipeline + embedding
    if not shape.tied and layout.pipeline == 1:
        held += embedding
    rate = 6 + 12 / layout.data if layout.distributed_optimizer else 18
    return Footprint(held / layout.tensor * rate / MIB, _activation(shape, layout) / MIB)


def unlisted(shape: ModelShape, layout: ParallelLayout) -> tuple[str, ...]:
    """What this layout has and the report does not count."""
    only = layout.recompute is not Recompute.SELECTIVE
    found = (
        ("sequence parallelism", layout.splits_sequence and only),
        ("full recomputation", layout.recompute is Recompute.FULL),
        ("CP", layout.context > 1),
        ("EP", layout.expert > 1),
        ("uneven stages", layout.is_uneven),
        ("scores of attention", not layout.flash_attention and only),
        ("activations of SwiGLU", shape.gated),
        ("activations of GQA", shape.key_groups != shape.heads),
        ("activations of wide heads", shape.query_width != shape.hidden),
        ("activations of experts", shape.experts is not None),
        ("activations of another MLP", shape.ffn_size != 4 * shape.hidden and only),
    )
    return tuple(name for name, is_there in found if is_there)


def _block(shape: ModelShape) -> float:
    rich = shape.rich_layers(0, shape.layers)
    widths = shape.ffn_size * (shape.layers - rich)
    if shape.experts is not None:
        widths += rich * _expert_width(shape, shape.experts)
    mlp = 2 * shape.hidden * widths * (1.5 if shape.gated else 1)
    norms = shape.norm_width * shape.hidden * (2 * shape.layers + 1)
    attention = 2 * shape.hidden * (shape.query_width + shape.key_width)
    return mlp + norms + attention * shape.layers


def _expert_width(shape: ModelShape, experts: Experts) -> int:
    return shape.expert_ffn * experts.count + experts.shared_ffn


def _activation(shape: ModelShape, layout: ParallelLayout) -> float:
    tensor, stages = layout.tensor, layout.pipeline
    unit = shape.sequence * layout.micro_batch * shape.hidden
    both = layout.splits_sequence and layout.recompute is Recompute.SELECTIVE
    each = 18 + 4 * shape.ffn_size / shape.hidden if both else 10 + 24 / tensor
    found = unit * each * shape.layers
    found += (8 * shape.sequence * layout.micro_batch + unit) * stages
    if layout.virtual is not None:
        found *= 1 + (stages - 1) / (stages * layout.virtual)
    elif stages > 1:
        found *= min(1, layout.microbatches / stages)
    vocabulary = shape.padded_vocabulary(tensor) / shape.hidden
    if both:
        last = 4 * unit * (1 + vocabulary)
        return (found + (last if stages == 1 else 0)) / tensor
    last = 2 * unit * (1 + vocabulary / tensor)
    return (found + (last if stages == 1 else 0)) * _OVERHEAD
