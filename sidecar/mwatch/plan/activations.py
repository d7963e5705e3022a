# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes that the forward pass keeps for the backward pass.

arXiv 2205.05198, table 2, by its parts, in 16-bit numbers: a layer keeps sbh(10 + 24/t), with
sequence parallelism sbh(34/t); scores of attention 5as^2b/t more, unless a fused kernel or
selective recomputation makes them again: then one layer's are there at a time. Unfused attention
has a buffer of scores besides. Narrow keys, gated layers and experts change the parts.
What it leaves out: the logits beyond what Megatron's own report counts (see `memory`).
"""

from __future__ import annotations

from mwatch.plan import stages
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import ModelShape

_INPUTS = 8.0
"""Bytes a token and channel: both norms' inputs, those of attention and of the MLP."""
_MASKS = 2.0
"""Of both dropouts, one byte each."""
_TOKEN_ID = 8
_SCORE = 5.0
"""Bytes of one score of attention: softmax 2, mask of the dropout 1, its result 2."""
_SCORE_BUFFER = 2.0
"""Megatron's own attention multiplies into one buffer, which it keeps for all layers."""


def tokens(shape: ModelShape, layout: ParallelLayout) -> int:
    """Of one micro-batch on one GPU."""
    return layout.micro_batch * (shape.sequence // layout.context)


def layer(shape: ModelShape, layout: ParallelLayout, *, with_experts: bool) -> float:
    """Of one layer and one micro-batch, nothing recomputed but what `recompute` says."""
    unit = tokens(shape, layout) * shape.hidden
    shared = layout.tensor if layout.splits_sequence else 1
    inputs, wide = _INPUTS + _MASKS, _attention_width(shape)
    if with_experts and shape.experts is not None:
        chosen = shape.experts.top_k
        inputs += 2.0 * chosen  # each expert's copy of its tokens
        # A router's weight is multiplied in before the second matrix: SwiGLU's kernel does that
        # on its way, other activations keep one more copy.
        wide += 2.0 * shape.expert_ffn * 3 / shape.hidden * chosen
        wide += _mlp_width(shape, shape.experts.shared_ffn)
    else:
        wide += _mlp_width(shape, shape.ffn_size)
    kept = unit * (inputs / shared + wide / layout.tensor)
    if layout.recompute is Recompute.NONE:
        kept += _SCORE * _scores(shape, layout)
    return kept


def _attention_width(shape: ModelShape) -> float:
    """Queries, keys, values and the projection's input, in bytes of one hidden channel."""
    return (4.0 * shape.query_width + 4.0 * shape.key_width) / shape.hidden


def _mlp_width(shape: ModelShape, width: int) -> float:
    return 2.0 * width * (3 if shape.gated else 2) / shape.hidden


def _scores(shape: ModelShape, layout: ParallelLayout) -> float:
    """How many there are at a time; a fused kernel never has them all."""
    if layout.flash_attention:
        return 0.0
    return shape.heads * shape.sequence * tokens(shape, layout) / layout.tensor


def buffer(shape: ModelShape, layout: ParallelLayout) -> float:
    """Of attention that is not fused: once, whatever the number of layers."""
    return _SCORE_BUFFER * _scores(shape, layout)


def again(shape: ModelShape, layout: ParallelLayout, stage: int) -> float:
    """What is there for one layer at a time, when the backward pass computes it once more."""
    if layout.recompute is Recompute.NONE:
        return 0.0
    scores = _SCORE * _scores(shape, layout)
    if layout.recompute is Recompute.SELECTIVE:
        return scores
    count, rich = stages.held(shape, layout, stage)
    kinds = ({True} if rich else set()) | ({False} if rich < count else set())
    return scores + max(layer(shape, layout, with_experts=kind) for kind in kinds)


def stage_layers(shape: ModelShape, layout: ParallelLayout, stage: int, in_flight: float) -> float:
    """Of all layers of a stage, for all micro-batches under way."""
    count, rich = stages.held(shape, layout, stage)
    if layout.recompute is Recompute.FULL:
        shared = layout.tensor if layout.splits_sequence else 1
        return 2.0 * tokens(shape, layout) * shape.hidden / shared * count * in_flight
    plain = layer(shape, layout, with_experts=False)
    wide = layer(shape, layout, with_experts=True) if rich else 0.0
    return (plain * (count - rich) + wide * rich) * in_flight


def embedding(shape: ModelShape, layout: ParallelLayout, in_flight: float) -> float:
    """Token numbers and the mask of the dropout behind them, on the first stage."""
    shared = layout.tensor if layout.splits_sequence else 1
    return tokens(shape, layout) * (_TOKEN_ID + shape.hidden) * in_flight / shared


def output(shape: ModelShape, layout: ParallelLayout) -> float:
    """The last norm's result and the logits, on the last stage, as Megatron's report counts
    them: four bytes each where both sequence parallelism and selective recomputation are on."""
    both = layout.splits_sequence and layout.recompute is Recompute.SELECTIVE
    width = 4.0 if both else 2.0
    norm = shape.hidden / (layout.tensor if both else 1)
    return width * tokens(shape, layout) * norm + logits(shape, layout) * width


def logits(shape: ModelShape, layout: ParallelLayout) -> float:
    """How many of them one GPU holds."""
    return tokens(shape, layout) * shape.padded_vocabulary(layout.tensor) / layout.tensor
