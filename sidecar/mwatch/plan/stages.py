# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The layers of each pipeline stage, the micro-batches in flight on it, and its idle share.

Stages are even, or the first and last have their own size (Megatron's
`--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`). With VPP each stage
holds a part of every chunk. The schedule is 1F1B, plain or interleaved (arXiv 2104.04473, section
2.2).
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.plan.layout import ParallelLayout
from mwatch.plan.shape import ModelShape


class Ends(NamedTuple):
    first: int
    last: int


class StageLayers(NamedTuple):
    layers: int
    rich: int  # number of layers with experts


def between(layers: int, layout: ParallelLayout) -> tuple[int, int]:
    """Return the number of layers, and of stages, without ends that have their own size."""
    ends = [each for each in (layout.first_layers, layout.last_layers) if each is not None]
    return layers - sum(ends), layout.pipeline - len(ends)


def count(layers: int, layout: ParallelLayout, stage: int) -> int:
    if stage == 0 and layout.first_layers is not None:
        return layout.first_layers
    if stage == layout.pipeline - 1 and layout.last_layers is not None:
        return layout.last_layers
    left, stages = between(layers, layout)
    return left // stages


def held(shape: ModelShape, layout: ParallelLayout, stage: int) -> StageLayers:
    mine = count(shape.layers, layout, stage)
    if shape.experts is None or shape.experts.every == 1:
        return StageLayers(mine, 0 if shape.experts is None else mine)
    before = 0
    if stage:
        before = count(shape.layers, layout, 0)
        before += (stage - 1) * count(shape.layers, layout, 1) if stage > 1 else 0
    chunks = layout.virtual or 1
    begins = (each * (shape.layers // chunks) + before // chunks for each in range(chunks))
    return StageLayers(mine, sum(shape.rich_layers(begin, mine // chunks) for begin in begins))


def largest(layers: int, layout: ParallelLayout) -> int:
    """Return the number of layers of the largest stage, which the others wait for."""
    if not layout.is_uneven:
        return layers // layout.pipeline
    some = {0, min(1, layout.pipeline - 1), layout.pipeline - 1}
    return max(count(layers, layout, each) for each in some)


def uneven(layers: int, stages: int) -> Ends | None:
    """Return sizes of the first and last stage that make the others even. The last stage, which
    also holds the logits, gets the fewest layers. None: all stages are even already, or an end
    would be empty."""
    if stages < 2 or layers % stages == 0:
        return None
    each = -(-layers // stages)
    short = each * stages - layers
    found = Ends(each - short // 2, each - (short - short // 2))
    return found if min(found) > 0 else None


def in_flight(layout: ParallelLayout, stage: int) -> float:
    """Return the peak number of micro-batches whose activations the stage holds, in units of all
    its layers."""
    stages, count = layout.pipeline, layout.microbatches
    if stages == 1:
        return 1.0
    if layout.virtual is None:
        return float(min(count, stages - stage))
    chunks = 2 * (stages - stage - 1) + (layout.virtual - 1) * stages + 1
    return min(chunks, count * layout.virtual) / layout.virtual


def bubble(layout: ParallelLayout) -> float:
    """Return the share of a step, 0 to 1, in which a stage waits for others."""
    idle = (layout.pipeline - 1) / (layout.microbatches * (layout.virtual or 1))
    return idle / (1 + idle)
