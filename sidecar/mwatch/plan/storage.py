# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints are written, how large they are, how often to save, and the resulting goodput.

Lustre services scale throughput with capacity: 16 TiB of AMLFS 125 take 2 GB/s, 512 TiB take 64.
Sources: the AKS document (AMLFS: 40 to 500 MB/s per TiB, from 48 to 4 TiB), AWS's API reference
(FSx for Lustre PERSISTENT_2: 125 to 1000, from 1.2 TiB), Azure's limit for a standard account (25
Gbit/s). A checkpoint takes 14 bytes per parameter: 16-bit weights, their fp32 copy and both moments
of Adam. That is 2.22 TiB for 175b; the AKS document says 2.3. The save interval is Young's (1974,
sqrt(2 C M)) and Daly's (2006, with terms for long saves), which assume independent failures at a
constant rate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mwatch.plan import parameters
from mwatch.plan.layout import ParallelLayout
from mwatch.plan.shape import ModelShape

TIB = 1024.0**4
BYTES_PER_PARAMETER = 14
SHARDED_BYTES_PER_PARAMETER = 12  # with FSDP, which has only fp32 weights
HOST_GBYTES = 10.0
"""GB/s from one of many GPUs to host memory; training waits for this copy in an async save."""
LEAST_STALL_SECONDS = 1.0
FAILURES_PER_1000_GPU_DAYS = 0.47
"""Llama 3 405B: 419 unexpected interruptions of 16,384 GPUs in 54 days."""
_LONGEST_EXPONENT = 50.0


class Tier(NamedTuple):
    name: str
    mbytes_per_tib: float | None  # MB/s per TiB; None: a fixed rate whatever the size
    least_tib: float
    flat_gbytes: float = 0.0
    usual_tib: float = 0.0  # default capacity; for AMLFS from the table in the AKS document

    def gbytes(self, tib: float) -> float:
        if self.mbytes_per_tib is None:
            return self.flat_gbytes
        return self.mbytes_per_tib * tib / 1000


TIERS: dict[str, Tier] = {
    each.name: each
    for each in (
        Tier("amlfs-40", 40, 48, usual_tib=480),
        Tier("amlfs-125", 125, 16, usual_tib=512),
        Tier("amlfs-250", 250, 8, usual_tib=512),
        Tier("amlfs-500", 500, 4, usual_tib=512),
        Tier("blob", None, 0, flat_gbytes=25 / 8),
        Tier("fsx-125", 125, 1.2, usual_tib=100.8),
        Tier("fsx-250", 250, 1.2, usual_tib=100.8),
        Tier("fsx-500", 500, 1.2, usual_tib=100.8),
        Tier("fsx-1000", 1000, 1.2, usual_tib=100.8),
    )
}


class Store(NamedTuple):
    """A tier with a capacity, or a measured rate."""

    name: str
    gbytes: float
    tib: float | None = None

    def seconds(self, size: float) -> float:
        """Least time to write or read `size` bytes."""
        return size / (self.gbytes * 1e9)

    @property
    def text(self) -> str:
        return self.name if self.tib is None else f"{self.name} {self.tib:g} TiB"


def store(tier: Tier, tib: float | None = None) -> Store:
    size = tier.usual_tib if tib is None else tib
    return Store(tier.name, tier.gbytes(size), size or None)


def usual_stores(cloud: str) -> tuple[Store, ...]:
    """Return the stores to compare if the user names none: those of the cloud, else all."""
    kinds = {"azure": ("amlfs", "blob"), "aws": ("fsx",)}.get(cloud, ("amlfs", "blob", "fsx"))
    return tuple(store(each) for name, each in TIERS.items() if name.startswith(kinds))


def size(shape: ModelShape, layout: ParallelLayout) -> int:
    each = SHARDED_BYTES_PER_PARAMETER if layout.fully_sharded else BYTES_PER_PARAMETER
    return each * parameters.total(shape, layout.tensor)


def async_stall_seconds(shape: ModelShape, layout: ParallelLayout) -> float:
    """Estimate the time to copy the share of the fullest GPU to host memory."""
    ends = {0, layout.pipeline - 1}
    most = max(_own(layout, parameters.on_stage(shape, layout, each)) for each in ends)
    return max(BYTES_PER_PARAMETER * most / (HOST_GBYTES * 1e9), LEAST_STALL_SECONDS)


def _own(layout: ParallelLayout, held: parameters.GpuParameters) -> float:
    """Parameters that this GPU saves: its own shard, or all it holds if nothing is sharded."""
    if layout.distributed_optimizer or layout.fully_sharded:
        return held.dense / (layout.data * layout.context) + held.expert / layout.expert_data
    return held.total


class Saving(NamedTuple):
    interval_seconds: float
    stall_seconds: float  # per save, during which training waits
    young_seconds: float
    goodput: float  # share of the time, 0 to 1, spent on new steps


def mean_time_between_failures(gpus: int, per_1000_gpu_days: float) -> float:
    return 86400.0 * 1000 / (gpus * per_1000_gpu_days)


def young(stall: float, between: float) -> float:
    return math.sqrt(2 * stall * between)


def daly(stall: float, between: float) -> float:
    """Optimal seconds of work from the end of one save to the start of the next."""
    if stall >= 2 * between:
        return between
    ratio = stall / (2 * between)
    return young(stall, between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def goodput(work: float, stall: float, between: float, recovery: float) -> float:
    """Work of one interval as a share of Daly's expected time for it, with failures and repeats."""
    if recovery / between > _LONGEST_EXPONENT or (work + stall) / between > _LONGEST_EXPONENT:
        return 0.0
    spent = between * math.exp(recovery / between) * math.expm1((work + stall) / between)
    return work / spent


def saving(stall: float, write: float, between: float, restart: float) -> Saving:
    """Optimal interval and goodput. `write` is the time to write the checkpoint; `stall` is the
    part of it during which training waits, all of it unless the save is in the background.

    A background save starts after the previous one has ended, and a failure during the write loses
    one more interval.
    """
    work = max(daly(stall, between), write - stall)
    behind = max(write - stall, 0.0)
    rate = goodput(work, stall, between, restart + behind)
    return Saving(work, stall, young(stall, between), rate)
