# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU of each pipeline stage, by part, and the figures of Megatron's own report.

Weights take 2 bytes per parameter, gradients 4, Adam with its fp32 copy 12, which the distributed
optimizer splits over DP x CP. Activations follow arXiv 2205.05198, table 2. Loss, allocator, CUDA
and NCCL were measured with gpt2-large on one and two H200: the estimates are within 4 % of every
figure in tests/plan/test_two_gpus.py. `footprint` follows Megatron core_v0.16.1: it leaves out
biases and positions, does not split experts by EP, counts the first stage only, and ignores context
parallelism.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.plan import parameters, stages
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import ModelShape
from mwatch.plan.stages import in_flight

_INPUTS = 8.0  # bytes per token and channel: inputs of both norms, of attention and of the MLP
_MASKS = 2.0  # bytes per token and channel: one for each of two dropout masks
_TOKEN_ID = 8
_SCORE = 5.0  # bytes per attention score: softmax 2, dropout mask 1, result 2
_SCORE_BUFFER = 2.0
"""Bytes per score of the buffer that Megatron's unfused attention shares between all layers."""
MIB = 1024.0**2
GIB = 1024.0**3
WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 4.0
OPTIMIZER_BYTES = 12.0
LOGIT_BYTES = 8.0  # at the peak: logits 2, softmax in fp32 4, gradient 2
ALLOCATOR_SHARE = 0.05
CONTEXT_BYTES = 1.5 * GIB
NCCL_BYTES = 400 * MIB
_OVERHEAD = 1.05


def tokens(shape: ModelShape, layout: ParallelLayout) -> int:
    """Tokens of one micro-batch on one GPU."""
    return layout.micro_batch * (shape.sequence // layout.context)


def layer_bytes(shape: ModelShape, layout: ParallelLayout, *, with_experts: bool) -> float:
    """Activations of one layer for one micro-batch, without scores that are recomputed."""
    unit = tokens(shape, layout) * shape.hidden
    shared = layout.tensor if layout.splits_sequence else 1
    inputs, wide = _INPUTS + _MASKS, _attention_width(shape)
    if with_experts and shape.experts is not None:
        chosen = shape.experts.top_k
        inputs += 2.0 * chosen  # each expert's copy of its tokens
        # The router's weight is applied before the second matrix. SwiGLU's kernel fuses that;
        # other activations keep one more copy. So both take three widths.
        wide += 2.0 * shape.expert_ffn * 3 / shape.hidden * chosen
        wide += _mlp_width(shape, shape.experts.shared_ffn)
    else:
        wide += _mlp_width(shape, shape.ffn_size)
    kept = unit * (inputs / shared + wide / layout.tensor)
    if layout.recompute is Recompute.NONE:
        kept += _SCORE * _scores(shape, layout)
    return kept


def _attention_width(shape: ModelShape) -> float:
    """Bytes per hidden channel of the queries, keys, values and the projection's input."""
    return (4.0 * shape.query_width + 4.0 * shape.key_width) / shape.hidden


def _mlp_width(shape: ModelShape, width: int) -> float:
    return 2.0 * width * (3 if shape.gated else 2) / shape.hidden


def _scores(shape: ModelShape, layout: ParallelLayout) -> float:
    """Number of attention scores of one layer; zero with a fused kernel, which stores none."""
    if layout.flash_attention:
        return 0.0
    return shape.heads * shape.sequence * tokens(shape, layout) / layout.tensor


def score_buffer(shape: ModelShape, layout: ParallelLayout) -> float:
    """Buffer of unfused attention; it exists once, whatever the number of layers."""
    return _SCORE_BUFFER * _scores(shape, layout)


def recomputed(shape: ModelShape, layout: ParallelLayout, stage: int) -> float:
    """Activations of the one layer that the backward pass is recomputing."""
    if layout.recompute is Recompute.NONE:
        return 0.0
    scores = _SCORE * _scores(shape, layout)
    if layout.recompute is Recompute.SELECTIVE:
        return scores
    count, rich = stages.held(shape, layout, stage)
    kinds = ({True} if rich else set()) | ({False} if rich < count else set())
    return scores + max(layer_bytes(shape, layout, with_experts=kind) for kind in kinds)


def layers_bytes(shape: ModelShape, layout: ParallelLayout, stage: int, in_flight: float) -> float:
    count, rich = stages.held(shape, layout, stage)
    if layout.recompute is Recompute.FULL:
        shared = layout.tensor if layout.splits_sequence else 1
        return 2.0 * tokens(shape, layout) * shape.hidden / shared * count * in_flight
    plain = layer_bytes(shape, layout, with_experts=False)
    wide = layer_bytes(shape, layout, with_experts=True) if rich else 0.0
    return (plain * (count - rich) + wide * rich) * in_flight


def embedding_bytes(shape: ModelShape, layout: ParallelLayout, in_flight: float) -> float:
    """Token ids and the dropout mask, on the first stage."""
    shared = layout.tensor if layout.splits_sequence else 1
    return tokens(shape, layout) * (_TOKEN_ID + shape.hidden) * in_flight / shared


def output_bytes(shape: ModelShape, layout: ParallelLayout) -> float:
    """Output of the last norm and the logits, on the last stage, as Megatron's report counts them:
    with both sequence parallelism and selective recomputation, four bytes each."""
    both = layout.splits_sequence and layout.recompute is Recompute.SELECTIVE
    width = 4.0 if both else 2.0
    norm = shape.hidden / (layout.tensor if both else 1)
    return width * tokens(shape, layout) * norm + logit_count(shape, layout) * width


def logit_count(shape: ModelShape, layout: ParallelLayout) -> float:
    return tokens(shape, layout) * shape.padded_vocabulary(layout.tensor) / layout.tensor


class StageMemory(NamedTuple):
    stage: int
    parameters: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float  # peak of the logits, beyond their share in `activations`
    allocator: float
    runtime: float  # CUDA context and NCCL buffers

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
    if layout.fully_sharded:
        # fp32 weights, gradients and moments are sharded over all GPUs. Two blocks at a time are
        # gathered in 16 bits, and the gradients of one block are not reduced yet.
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
    """Return the bytes of the activations, and what the loss adds. Layers are not recomputed while
    the logits exist, so only the larger of both counts."""
    many = in_flight(layout, number)
    kept = layers_bytes(shape, layout, number, many)
    kept += score_buffer(shape, layout)
    if number == 0:
        kept += embedding_bytes(shape, layout, many)
    again = recomputed(shape, layout, number)
    if number < layout.pipeline - 1:
        return kept + again, 0.0
    output = output_bytes(shape, layout)
    whole = LOGIT_BYTES * logit_count(shape, layout)
    if again > max(whole, output):
        return kept + again, 0.0
    return kept + output, max(whole - output, 0.0)


def all_stages(shape: ModelShape, layout: ParallelLayout) -> tuple[StageMemory, ...]:
    return tuple(stage(shape, layout, number) for number in range(layout.pipeline))


def fullest(shape: ModelShape, layout: ParallelLayout) -> StageMemory:
    """The stage with the most memory. Of equal stages only the first, with most micro-batches, is
    computed."""
    kinds: dict[object, int] = {}
    for number in range(layout.pipeline):
        ends = number == 0, number == layout.pipeline - 1
        kinds.setdefault((ends, stages.held(shape, layout, number)), number)
    found = (stage(shape, layout, each) for each in kinds.values())
    return max(found, key=lambda each: each.total)


class Footprint(NamedTuple):
    """Figures of Megatron's report, in MB of 1024 x 1024 bytes as it prints them."""

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
    """Return the parts of this layout that the report does not count."""
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
        widths += rich * (shape.expert_ffn * shape.experts.count + shape.experts.shared_ffn)
    mlp = 2 * shape.hidden * widths * (1.5 if shape.gated else 1)
    norms = shape.norm_width * shape.hidden * (2 * shape.layers + 1)
    attention = 2 * shape.hidden * (shape.query_width + shape.key_width)
    return mlp + norms + attention * shape.layers


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
