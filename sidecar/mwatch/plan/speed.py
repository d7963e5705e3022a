# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of a step, to rank layouts and to convert save intervals into steps.

The work is that of arXiv 2104.04473, equation 3, at a realistic share of the GPU's peak, plus the
pipeline bubble and the traffic on links. A measured time (`--step-seconds`) is better.
"""

from __future__ import annotations

from mwatch.model.machines import Cluster
from mwatch.plan import parameters, stages
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.memory import tokens
from mwatch.plan.shape import ModelShape
from mwatch.plan.stages import bubble

PEAK_SHARE = 0.40  # gpt2-large at 32 x 1024 tokens took 437 ms on an H200: 39 %
_SMALL_WORK = 0.3e6  # tokens x channels on a GPU at which kernels reach half of it
_LINK_SHARE = 0.7
_GRADIENTS_SEEN = 0.25  # share of gradient traffic that does not overlap with the backward pass
_CONTEXT_SEEN = 0.5
_SENDS_SEEN = 0.5
_SLOW_LINK = 12.0  # GB/s if unknown: PCIe, or a network


def step_flops(shape: ModelShape, global_batch: int) -> float:
    """Floating-point operations of forward and backward pass, without recomputation."""
    positions = shape.positions * shape.hidden if shape.learned_positions else 0
    dense = 6.0 * (parameters.active(shape) - positions) * global_batch * shape.sequence
    scores = 12.0 * global_batch * shape.layers * shape.sequence**2 * shape.query_width
    return dense + scores


def step_seconds(
    shape: ModelShape, layout: ParallelLayout, cluster: Cluster, share: float = PEAK_SHARE
) -> float | None:
    """None if the GPU's speed is unknown."""
    tflops = cluster.machine.gpu.tflops
    if tflops is None:
        return None
    work = step_flops(shape, layout.global_batch) / layout.world / (tflops * 1e12 * share)
    work *= 4 / 3 if layout.recompute is Recompute.FULL else 1.0
    work *= stages.largest(shape.layers, layout) * layout.pipeline / shape.layers
    size = tokens(shape, layout) * shape.hidden / layout.tensor
    work *= 1 + _SMALL_WORK / size
    moved = _within_layers(shape, layout, cluster) + _between_stages(shape, layout, cluster)
    moved *= layout.microbatches
    return (work + moved) / (1 - bubble(layout)) + _gradients(shape, layout, cluster)


def _link(cluster: Cluster, gpus: int) -> float:
    """Bytes per second between the GPUs of a group of `gpus` neighbours."""
    inside = cluster.machine.gpu.link_gbytes or _SLOW_LINK
    across = cluster.network_gbytes or _SLOW_LINK
    gbytes = inside if gpus <= cluster.machine.gpus else across
    return gbytes * 1e9 * _LINK_SHARE


def _within_layers(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> float:
    """Seconds per micro-batch in which layers wait for communication."""
    count = shape.layers / layout.pipeline
    hidden = 2.0 * tokens(shape, layout) * shape.hidden
    tensor, context, expert = layout.tensor, layout.context, layout.expert
    seconds = 4 * count * 2 * hidden * (tensor - 1) / tensor / _link(cluster, tensor)
    keys = 2.0 * 2 * tokens(shape, layout) * shape.key_width / tensor
    ring = 3 * count * keys * (context - 1) / _link(cluster, tensor * context)
    seconds += _CONTEXT_SEEN * ring
    if shape.experts is not None and expert > 1:
        sent = 4 * count * hidden * shape.experts.top_k * (expert - 1) / expert / tensor
        seconds += sent / shape.experts.every / _link(cluster, tensor * expert)
    return seconds


def _between_stages(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> float:
    """Seconds per micro-batch to send data to the next stage and back, for each chunk."""
    if layout.pipeline == 1:
        return 0.0
    sent = 2 * 2.0 * tokens(shape, layout) * shape.hidden / layout.tensor * (layout.virtual or 1)
    return _SENDS_SEEN * sent / _link(cluster, layout.world)


def _gradients(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> float:
    ranks = layout.data * layout.context
    if layout.fully_sharded:  # gathered twice, reduced once, for every micro-batch
        moved = 6.0 * parameters.total(shape) * layout.microbatches * (ranks - 1) / ranks
        return _GRADIENTS_SEEN * moved / _link(cluster, ranks)
    held = parameters.on_stage(shape, layout, 0).dense
    # Rank order: TP varies fastest, then CP and DP, PP slowest.
    reach = layout.tensor * ranks
    return _GRADIENTS_SEEN * 6.0 * held * (ranks - 1) / ranks / _link(cluster, reach)
