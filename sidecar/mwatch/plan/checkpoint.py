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
    held = parameters.on_stage(shape, layout, 0).total
    is_cut = layout.distributed_optimizer or layout.fully_sharded
    owners = layout.data * layout.context if is_cut else 1
    return max(BYTES_PER_PARAMETER * held / owners / (HOST_GBYTES * 1e9), LEAST_STALL_SECONDS)
