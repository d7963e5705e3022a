# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Number of parameters on a GPU, by how they are split.

The count is exact: for `7.5B` at TP 8 it is 941,594,624, as Megatron prints. It includes biases and
learned positions, which Megatron's theoretical report leaves out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mwatch.plan import stages
from mwatch.plan.layout import ParallelLayout
from mwatch.plan.shape import Experts, ModelShape


class Count(NamedTuple):
    tensor: int = 0  # split by TP
    whole: int = 0  # on every GPU of a tensor-parallel group
    expert: int = 0  # split by TP and EP

    def plus(self, other: Count) -> Count:
        return Count(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        return sum(self)


class GpuParameters(NamedTuple):
    dense: int
    expert: int

    @property
    def total(self) -> int:
        return self.dense + self.expert


@lru_cache(maxsize=64)
def layer(shape: ModelShape, *, with_experts: bool) -> Count:
    mlp = _mlp(shape, shape.ffn_size)
    if with_experts and shape.experts is not None:
        mlp = _experts(shape, shape.experts)
    return _attention(shape).plus(mlp).plus(Count(whole=2 * shape.norm_width * shape.hidden))


def _attention(shape: ModelShape) -> Count:
    queries = shape.query_width + 2 * shape.key_width
    cut = shape.hidden * queries + shape.query_width * shape.hidden
    return Count(cut + queries, shape.hidden) if shape.bias else Count(cut)


def _mlp(shape: ModelShape, width: int) -> Count:
    into = width * (2 if shape.gated else 1)
    cut = shape.hidden * (into + width)
    return Count(cut + into, shape.hidden) if shape.bias else Count(cut)


def _experts(shape: ModelShape, experts: Experts) -> Count:
    routed = _mlp(shape, shape.expert_ffn).total * experts.count
    router = (shape.hidden + int(shape.bias)) * experts.count
    found = Count(whole=router, expert=routed)
    return found.plus(_mlp(shape, experts.shared_ffn)) if experts.shared_ffn else found


def all_layers(shape: ModelShape, layers: int, rich: int) -> Count:
    """Parameters of `layers` layers, `rich` of them with experts."""
    found = Count()
    for number, kind in ((rich, True), (layers - rich, False)):
        one = layer(shape, with_experts=kind)
        found = found.plus(Count(*(number * each for each in one)))
    return found


def _model(shape: ModelShape) -> Count:
    return all_layers(shape, shape.layers, shape.rich_layers(0, shape.layers))


def total(shape: ModelShape, tensor: int = 1) -> int:
    """Parameters of the whole model, a tied embedding counted once, with the padding for TP."""
    embedding = shape.padded_vocabulary(tensor) * shape.hidden
    blocks = _model(shape).total + shape.norm_width * shape.hidden
    positions = shape.positions * shape.hidden if shape.learned_positions else 0
    return blocks + positions + embedding * (1 if shape.tied else 2)


def active(shape: ModelShape) -> int:
    experts = shape.experts
    if experts is None:
        return total(shape)
    routed = _model(shape).expert
    return total(shape) - routed + routed * min(experts.top_k, experts.count) // experts.count


def on_stage(shape: ModelShape, layout: ParallelLayout, stage: int) -> GpuParameters:
    found = all_layers(shape, *stages.held(shape, layout, stage))
    is_first, is_last = stage == 0, stage == layout.pipeline - 1
    embedding = shape.padded_vocabulary(layout.tensor) * shape.hidden
    # The first and the last stage each hold a copy of a tied embedding, unless they are one.
    copies = int(is_first) + int(is_last and not (is_first and shape.tied))
    found = found.plus(Count(tensor=copies * embedding))
    if is_first and shape.learned_positions:
        found = found.plus(Count(whole=shape.positions * shape.hidden))
    if is_last:
        found = found.plus(Count(whole=shape.norm_width * shape.hidden))
    dense = found.tensor // layout.tensor + found.whole
    return GpuParameters(dense, found.expert // (layout.tensor * layout.expert))
