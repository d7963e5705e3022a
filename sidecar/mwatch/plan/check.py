# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Check whether a layout can work, and suggest a fix: Megatron's own conditions, then memory.

An error would end the job in its first minutes; a warning costs time on every step. Memory is
checked only if all sizes divide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from mwatch.model.machines import Cluster
from mwatch.plan import memory, stages
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import ModelShape
from mwatch.plan.stages import bubble

_MOST_IDLE = 0.25
_TIGHT = 0.95


class LayoutProblem(NamedTuple):
    check: str
    level: Literal["error", "warning"]
    what: str
    fix: str


def problems(
    shape: ModelShape, layout: ParallelLayout, cluster: Cluster
) -> tuple[LayoutProblem, ...]:
    found = [*_shape(shape), *_arithmetic(shape, layout)]
    if not any(each.level == "error" for each in found):
        found += [*_costly(shape, layout, cluster), *_memory(shape, layout, cluster)]
    return tuple(found)


def is_shape(shape: ModelShape) -> bool:
    return next(_shape(shape), None) is None


def holds(shape: ModelShape, layout: ParallelLayout) -> bool:
    """Whether all sizes divide; memory is not checked."""
    return is_shape(shape) and next(_arithmetic(shape, layout), None) is None


def divisors(number: int, most: int | None = None) -> tuple[int, ...]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    found = sorted({*small, *(number // each for each in small)})
    return tuple(each for each in found if most is None or each <= most)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:8]))


def _error(check: str, what: str, fix: str) -> LayoutProblem:
    return LayoutProblem(check, "error", what, fix)


def _shape(shape: ModelShape) -> Iterator[LayoutProblem]:
    if shape.head_size is None and shape.hidden % shape.heads:
        what = f"hidden size {shape.hidden} is not divisible by {shape.heads} heads"
        yield _error("heads", what, f"use a multiple of {shape.heads}, or give the size of a head")
    if shape.heads % shape.key_groups:
        what = f"{shape.heads} heads are not divisible by {shape.key_groups} groups of keys"
        yield _error("groups", what, f"groups that do: {_listed(divisors(shape.heads))}")
    if shape.learned_positions and shape.sequence > shape.positions:
        what = f"the sequence of {shape.sequence} is longer than {shape.positions} positions"
        yield _error("positions", what, "raise the positions, or shorten the sequence")


def _arithmetic(shape: ModelShape, layout: ParallelLayout) -> Iterator[LayoutProblem]:
    yield from _world(layout)
    yield from _tensor(shape, layout)
    yield from _stages(shape, layout)
    yield from _sequence(shape, layout)
    yield from _experts(shape, layout)
    yield from _batch(layout)


def _world(layout: ParallelLayout) -> Iterator[LayoutProblem]:
    if layout.world % layout.model:
        product = f"TP {layout.tensor} x PP {layout.pipeline} x CP {layout.context}"
        what = f"{layout.world} GPUs are not divisible by {product} = {layout.model}"
        more = -(-layout.world // layout.model) * layout.model
        yield _error("world-size", what, f"use {more} GPUs, or smaller parallel sizes")


def _tensor(shape: ModelShape, layout: ParallelLayout) -> Iterator[LayoutProblem]:
    if shape.heads % layout.tensor:
        what = f"{shape.heads} attention heads are not divisible by TP {layout.tensor}"
        yield _error("tensor", what, f"TP that does: {_listed(divisors(shape.heads, 16))}")
    elif shape.key_groups % layout.tensor and layout.tensor % shape.key_groups:
        what = f"TP {layout.tensor} and {shape.key_groups} groups of keys do not divide each other"
        yield _error("tensor", what, f"TP that does: {_listed(divisors(shape.key_groups, 16))}")
    elif shape.ffn_size % layout.tensor:
        what = f"the MLP's width {shape.ffn_size} is not divisible by TP {layout.tensor}"
        yield _error("tensor", what, f"TP that does: {_listed(divisors(shape.ffn_size, 16))}")


def _stages(shape: ModelShape, layout: ParallelLayout) -> Iterator[LayoutProblem]:
    wrong = _uneven(shape, layout) if layout.is_uneven else _even(shape, layout)
    if wrong is not None:
        yield wrong
    elif layout.virtual is not None:
        yield from _virtual(shape, layout, layout.virtual)


def _even(shape: ModelShape, layout: ParallelLayout) -> LayoutProblem | None:
    if shape.layers % layout.pipeline == 0:
        return None
    what = f"{shape.layers} layers are not divisible by PP {layout.pipeline}"
    fix = f"PP that does: {_listed(divisors(shape.layers, 64))}"
    return _error("pipeline", what, fix + _ends(shape, layout))


def _ends(shape: ModelShape, layout: ParallelLayout) -> str:
    ends = stages.uneven(shape.layers, layout.pipeline)
    if ends is None:
        return ""
    return f"; or --first-stage-layers {ends.first} --last-stage-layers {ends.last}"


def _uneven(shape: ModelShape, layout: ParallelLayout) -> LayoutProblem | None:
    if layout.pipeline == 1:
        what = "a first or last stage of its own size, and PP 1 has one stage for all layers"
        return _error("pipeline", what, "use PP 2 or more")
    left, others = stages.between(shape.layers, layout)
    if (left > 0) == (others > 0) and left >= 0 and (others == 0 or left % others == 0):
        return None
    what = f"{left} layers are left for {others} stages between the ends, and do not divide"
    fix = f"{shape.layers} layers divide by PP {layout.pipeline}: leave the ends as they are"
    if shape.layers % layout.pipeline:
        fix = _ends(shape, layout).removeprefix("; or ") or "use a smaller PP"
    return _error("pipeline", what, fix)


def _virtual(shape: ModelShape, layout: ParallelLayout, virtual: int) -> Iterator[LayoutProblem]:
    number = layout.pipeline
    of = {stages.count(shape.layers, layout, each) for each in (0, min(1, number - 1), number - 1)}
    if number == 1 or any(each % virtual for each in of):
        what = f"{shape.layers} layers cannot be cut into PP {number} x VPP {virtual} chunks"
        fix = "VPP needs two stages or more"
        if number > 1:
            fix = f"VPP that can: {_listed(divisors(math.gcd(*of)))}"
        yield _error("virtual", what, fix)
    elif layout.microbatches % number:
        what = f"{layout.microbatches} micro-batches are not divisible by PP {number}, as VPP needs"
        each = layout.micro_batch * layout.data * number
        yield _error("virtual", what, f"use a global batch that is a multiple of {each}")


def _sequence(shape: ModelShape, layout: ParallelLayout) -> Iterator[LayoutProblem]:
    parts = 2 * layout.context if layout.context > 1 else 1
    if shape.sequence % parts:
        what = f"the sequence of {shape.sequence} is not divisible by 2 x CP {layout.context}"
        yield _error("context", what, f"use a multiple of {parts}")
    elif layout.splits_sequence and shape.sequence // layout.context % layout.tensor:
        part = f"the sequence's part of {shape.sequence // layout.context}"
        what = f"{part} is not divisible by TP {layout.tensor}, as sequence parallelism needs"
        yield _error("sequence", what, "lengthen the sequence, or lower TP or CP")


def _experts(shape: ModelShape, layout: ParallelLayout) -> Iterator[LayoutProblem]:
    expert, experts = layout.expert, shape.experts
    if experts is None:
        if expert > 1:
            what = f"EP {expert}, and the model has no experts"
            yield _error("expert", what, "use EP 1, or give the number of experts")
        return
    if experts.count % expert:
        what = f"{experts.count} experts are not divisible by EP {expert}"
        yield _error("expert", what, f"EP that does: {_listed(divisors(experts.count))}")
    elif layout.world % (layout.tensor * expert * layout.pipeline):
        what = f"{layout.world} GPUs are not divisible by TP {layout.tensor} x EP {expert} x PP"
        what += f" {layout.pipeline}: EP must fit into DP x CP"
        yield _error("expert", what, "lower EP, or use more GPUs")
    if layout.tensor > 1 and not layout.sequence_parallel:
        what = "experts with tensor parallelism need sequence parallelism"
        yield _error("expert", what, "switch sequence parallelism on")
    if experts.top_k > experts.count:
        what = f"{experts.top_k} experts are to be chosen of {experts.count}"
        yield _error("expert", what, "lower the number that is chosen")


def _batch(layout: ParallelLayout) -> Iterator[LayoutProblem]:
    each = layout.micro_batch * layout.data
    if layout.world % layout.model == 0 and layout.global_batch % each:
        what = f"the global batch {layout.global_batch} is not divisible by micro batch"
        what += f" {layout.micro_batch} x DP {layout.data} = {each}"
        near = max(round(layout.global_batch / each), 1) * each
        yield _error("batch", what, f"use a multiple of {each}, such as {near}")


def _costly(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> Iterator[LayoutProblem]:
    if layout.tensor > cluster.machine.gpus:
        what = f"TP {layout.tensor} goes across machines of {cluster.machine.gpus} GPUs"
        fix = f"keep TP at {cluster.machine.gpus} or below, and raise PP"
        yield LayoutProblem("tensor-across-nodes", "warning", what, fix)
    idle = bubble(layout)
    if idle > _MOST_IDLE:
        what = f"each stage stands idle {idle:.0%} of the time: {layout.microbatches}"
        what += f" micro-batches in {layout.pipeline} stages"
        fix = "raise the global batch, lower the micro batch or PP, or interleave (VPP)"
        yield LayoutProblem("bubble", "warning", what, fix)
    if shape.experts is not None and layout.tensor * layout.expert > cluster.machine.gpus:
        what = f"experts of TP {layout.tensor} x EP {layout.expert} talk across machines"
        yield LayoutProblem("expert-across-nodes", "warning", what, "keep TP x EP inside a machine")


def _memory(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> Iterator[LayoutProblem]:
    fullest = memory.fullest(shape, layout)
    share = fullest.total / cluster.memory_bytes
    if share <= _TIGHT:
        return
    largest = max(fullest.parts.items(), key=lambda part: part[1])
    what = f"stage {fullest.stage} needs {fullest.total / memory.GIB:.1f} GiB of the"
    what += f" {cluster.memory_bytes / memory.GIB:.1f} GiB of a GPU"
    what += f", most of it {largest[0]} ({largest[1] / memory.GIB:.1f} GiB)"
    fix = _cure(largest[0], layout)
    level: Literal["error", "warning"] = "error" if share > 1 else "warning"
    yield LayoutProblem("memory", level, what, fix)


def _cure(part: str, layout: ParallelLayout) -> str:
    """How to save memory in this part; only steps that the layout does not take yet."""
    steps = ["lower the micro batch"] if layout.micro_batch > 1 else []
    if layout.fully_sharded:
        return " or ".join([*steps, "recompute in full", "use more GPUs"])
    if part == "activations":
        steps += ["recompute in full"] if layout.recompute is not Recompute.FULL else []
        return ", ".join([*steps, "raise TP, CP or PP"])
    if part == "loss":
        return " or ".join([*steps, "raise TP"])
    if part == "optimizer" and not layout.distributed_optimizer:
        return "use the distributed optimizer, or raise TP, PP or the number of GPUs"
    more = ", EP" if layout.expert > 1 else ""
    return f"raise TP, PP{more} or the number of GPUs"
