# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One GPU as it was last read. None: not to be had on this GPU, driver or route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Gpu(NamedTuple):
    number: int
    """The driver's index."""
    uuid: str
    name: str
    rank: int | None
    """The rank that works on it, as far as can be told."""
    utilization: float | None
    """0 to 1: share of time that a kernel was resident. An NCCL kernel that spins reads 1."""
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_hz: float | None
    throttle: tuple[str, ...]
    ecc_uncorrected: int | None
    """Since the driver was loaded."""
    xid: int | None
    """The last one that was seen."""
    pids: tuple[int, ...] = ()
    is_up: bool = True
    """False: the driver no longer reaches it, and nothing else of it is known."""
    tensor_active: float | None = None
    """0 to 1: share of time that the tensor cores worked (GPM, Hopper and newer)."""
    power_limit_watts: float | None = None
    ecc_corrected: int | None = None
    remapped_rows: Mapping[str, int] = MappingProxyType({})
    """By the kind of error that made it necessary: `corrected`, `uncorrected`."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """The driver's own word on what would mend it: 0 nothing, 1 reset the GPU, 2 reboot …"""
    nvlink_errors: Mapping[str, int] = MappingProxyType({})
    """Over all links: `replay`, `recovery`, `crc`."""
    pcie_replays: int | None = None
    throttled_seconds: Mapping[str, float] = MappingProxyType({})
    """Since the driver was loaded, by reason."""
