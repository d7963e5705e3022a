# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What Megatron-LM's own theoretical memory report would print for this layout.

For holding a plan against the line `Theoretical memory footprints: ...` of a log. The rules are
those of core_v0.16.1: parameters without biases and positions, experts not cut by EP, the first
stage alone, context parallelism not seen, and two ways to count activations. A golden table in
tests/plan, made by Megatron's function itself, holds these figures.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.plan.layout import Layout, Recompute
from mwatch.plan.memory import MIB
from mwatch.plan.shape import Experts, Shape

_OVERHEAD = 1.05


class Footprint(NamedTuple):
    """In MB of 1024 x 1024 bytes, as it prints them."""

    weight_and_optimizer: float
    activation: float

    @property
    def total(self) -> float:
        return self.weight_and_optimizer + self.activation


def footprint(shape: Shape, layout: Layout) -> Footprint:
    embedding = shape.hidden * shape.padded_vocabulary(layout.tensor)
    held = _block(shape) / layout.pipeline + embedding
    if not shape.tied and layout.pipeline == 1:
        held += embedding
    rate = 6 + 12 / layout.data if layout.distributed_optimizer else 18
    return Footprint(held / layout.tensor * rate / MIB, _activation(shape, layout) / MIB)


def unseen(shape: Shape, layout: Layout) -> tuple[str, ...]:
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


def _block(shape: Shape) -> float:
    rich = shape.rich_layers(0, shape.layers)
    widths = shape.ffn_size * (shape.layers - rich)
    if shape.experts is not None:
        widths += rich * _expert_width(shape, shape.experts)
    mlp = 2 * shape.hidden * widths * (1.5 if shape.gated else 1)
    norms = shape.norm_width * shape.hidden * (2 * shape.layers + 1)
    attention = 2 * shape.hidden * (shape.query_width + shape.key_width)
    return mlp + norms + attention * shape.layers


def _expert_width(shape: Shape, experts: Experts) -> int:
    return shape.expert_ffn * experts.count + experts.shared_ffn


def _activation(shape: Shape, layout: Layout) -> float:
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
