# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Facts that the sidecar of a pod reports besides the log: identity, wrapper, data files, mounts,
GPUs, NCCL communicators and network ports. None: not available here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field


class DataFile(Struct, frozen=True, omit_defaults=True, rename={"is_unobservable": "is_unseen"}):
    """One prefix of `--data-path`: Megatron reads `PREFIX.bin` and `PREFIX.idx`."""

    prefix: str
    bin_bytes: int | None = None  # None: missing, or unknown (`is_unobservable`)
    idx_bytes: int | None = None
    is_unobservable: bool = False  # its folder is not mounted here


class Mount(Struct, frozen=True, omit_defaults=True):
    path: str  # the requested folder
    point: str  # mount point of its file system
    kind: str  # `nfs4`, `lustre`, `overlay`…
    is_read_only: bool = False
    free_bytes: int | None = None
    size_bytes: int | None = None


class PodFacts(Struct, frozen=True, omit_defaults=True):
    data: tuple[DataFile, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tracker: str | None = None  # the trainer's own pointer to its newest checkpoint


class PodId(Struct, frozen=True, omit_defaults=True):
    """The identity of a snapshot's pod."""

    run: str
    pod: str
    uid: str | None = None
    namespace: str | None = None
    node: str | None = None
    boot: str | None = None  # the kernel's boot id: monotonic times of one boot are comparable
    mwatch: str | None = None
    started_at: float | None = None
    mode: str | None = None


class TrainerEnd(Struct, frozen=True, omit_defaults=True):
    at: float
    code: int | None = None
    signal: str | None = None  # name: SIGKILL
    reason: str | None = None
    returned: int | None = None  # exit code of the wrapper itself
    asked: bool = False


class WrapperState(Struct, frozen=True, omit_defaults=True):
    attempt: int
    mode: str
    started_at: float
    pid: int | None = None
    host: str | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    changes: tuple[str, ...] = ()  # changes to the command, made or (when only observing) proposed
    resume_from: int | None = None
    resume_reason: str | None = None
    save: str | None = None  # the checkpoint folder
    exit: TrainerEnd | None = None
    is_final: bool = False
    argv: tuple[str, ...] = ()  # as run, without secrets


class Gpu(Struct, frozen=True, omit_defaults=True):
    number: int  # the driver's index
    uuid: str
    name: str
    rank: int | None = None  # the rank that uses it, if known
    utilization: float | None = None
    """0 to 1: share of time that a kernel was resident. An NCCL kernel that spins reads 1."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None  # since the driver was loaded
    xid: int | None = None  # the last one observed
    pids: tuple[int, ...] = ()
    is_up: bool = True  # False: the driver no longer reaches it, and the rest is unknown
    tensor_active: float | None = None
    """0 to 1: share of time that the tensor cores worked (GPM, Hopper and newer)."""
    power_limit_watts: float | None = None
    ecc_corrected: int | None = None
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    """Number of remapped rows by the kind of error: `corrected`, `uncorrected`."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """The driver's recommendation: 0 nothing, 1 reset the GPU, 2 reboot …"""
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    """Errors summed over all links, by kind: `replay`, `recovery`, `crc`."""
    pcie_replays: int | None = None
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of throttling since the driver was loaded, by reason."""


class Nccl(Struct, frozen=True, omit_defaults=True):
    communicators: int
    missing_ranks: int  # ranks that no longer answer to RAS
    mismatched: int  # communicators whose ranks have differed in counts for some time
    operations: int | None = None
    """Collectives begun by the slowest rank of each communicator, summed; None: not reported."""


class MissingRank(NamedTuple):
    rank: int
    process: str | None  # host, pid and GPU, to find a process in another communicator
    is_dead: bool  # given up by RAS, after a minute and for good


class Communicator(NamedTuple):
    hash: str
    size: int
    begun: Mapping[int, int]
    """Collectives begun, by rank. Text answers print only differences: the sum is over the kinds
    that differ; empty if none does."""
    processes: Mapping[int, str]
    missing: tuple[MissingRank, ...]
    missing_count: int  # including unnamed ones
    is_settled: bool  # no rank is still entering or already leaving it


class RasAnswer(NamedTuple):
    version: str | None
    communicators: int
    reported: tuple[Communicator, ...]  # all of them; from text, those with something to report
    gpus: int | None  # of the whole job, if reported
    nodes: int | None
    counts_all: bool  # whether the counts of every communicator are reported


MAX_PORTS = 64
MAX_ERRORS = 24


class FabricPort(Struct, frozen=True, omit_defaults=True):
    device: str  # card and port: `mlx5_0/1`
    is_up: bool | None = None
    """None: unknown. EFA's driver always reports up, and some ports have no interface."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    """Error counters by their kernel names, since the card was started."""
