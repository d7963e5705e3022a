# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How large a checkpoint is, and how long all GPUs stand still for it.

14 bytes a parameter: the weights in 16 bits, their fp32 copy and both moments of Adam. That is
2.22 TiB for 175b, which the document about AKS calls 2.3.
"""

from __future__ import annotations

from mwatch.plan import parameters
from mwatch.plan.layout import Layout
from mwatch.plan.shape import Shape

BYTES_PER_PARAMETER = 14
SHARDED_BYTES_PER_PARAMETER = 12
"""Of FSDP: the fp32 weights are the only ones."""
HOST_GBYTES = 10.0
"""GB/s from one GPU to its machine's memory, with many GPUs at it: what an async save waits for."""
LEAST_STALL_SECONDS = 1.0


def size(shape: Shape, layout: Layout) -> int:
    """With the optimizer."""
    each = SHARDED_BYTES_PER_PARAMETER if layout.fully_sharded else BYTES_PER_PARAMETER
    return each * parameters.total(shape, layout.tensor)


def async_stall_seconds(shape: Shape, layout: Layout) -> float:
    """An estimate: the fullest GPU's own part, copied to the host before training goes on."""
    ends = {0, layout.pipeline - 1}
    most = max(_own(layout, parameters.on_stage(shape, layout, each)) for each in ends)
    return max(BYTES_PER_PARAMETER * most / (HOST_GBYTES * 1e9), LEAST_STALL_SECONDS)


def _own(layout: Layout, held: parameters.Held) -> float:
    """What no other GPU has, or what it writes though others have it too."""
    if layout.distributed_optimizer or layout.fully_sharded:
        return held.dense / (layout.data * layout.context) + held.expert / layout.expert_data
    return held.total
