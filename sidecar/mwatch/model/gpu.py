# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One GPU as it was last read. None: not to be had on this GPU, driver or route."""

from __future__ import annotations

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
