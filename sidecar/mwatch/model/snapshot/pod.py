# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the sidecar of a pod knows besides the log: identity, wrapper, data files, mounts, GPUs,
NCCL communicators and network ports. None: not available here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field


class DataFile(Struct, frozen=True, omit_defaults=True, rename={"is_unobservable": "is_unseen"}):
    """One prefix of `--data-path`: Megatron reads `PREFIX.bin` and `PREFIX.idx`."""

    prefix: str
    bin_bytes: int | None = None
    """None: it is not there, or (`is_unobservable`) nobody here can say."""
    idx_bytes: int | None = None
    is_unobservable: bool = False  # Not even its folder is mounted here


class Mount(Struct, frozen=True, omit_defaults=True):
    path: str  # The folder that was asked about
    point: str  # Where the file system that holds it is mounted
    kind: str  # `nfs4`, `lustre`, `overlay`…
    is_read_only: bool = False
    free_bytes: int | None = None
    size_bytes: int | None = None


class PodFacts(Struct, frozen=True, omit_defaults=True):
    data: tuple[DataFile, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tracker: str | None = None  # The trainer's own word on its newest checkpoint


class PodId(Struct, frozen=True, omit_defaults=True):
    """Whose snapshot it is."""

    run: str
    pod: str
    uid: str | None = None
    namespace: str | None = None
    node: str | None = None
    boot: str | None = None
    """The kernel's id of this boot: with it monotonic times of one machine compare."""
    mwatch: str | None = None
    started_at: float | None = None
    mode: str | None = None


class TrainerEnd(Struct, frozen=True, omit_defaults=True):
    at: float
    code: int | None = None
    signal: str | None = None  # By name: SIGKILL
    reason: str | None = None
    returned: int | None = None  # What the wrapper itself exits with
    asked: bool = False


class WrapperState(Struct, frozen=True, omit_defaults=True):
    attempt: int
    mode: str
    started_at: float
    pid: int | None = None
    host: str | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    changes: tuple[str, ...] = ()
    """What was, or when only observing would have been, changed about the command."""
    resume_from: int | None = None
    resume_reason: str | None = None
    save: str | None = None  # The checkpoint folder
    exit: TrainerEnd | None = None
    is_final: bool = False
    argv: tuple[str, ...] = ()  # As it was run, without secrets


class Gpu(Struct, frozen=True, omit_defaults=True):
    number: int  # The driver's index
    uuid: str
    name: str
    rank: int | None = None  # The rank that works on it, as far as can be told
    utilization: float | None = None
    """0 to 1: share of time that a kernel was resident. An NCCL kernel that spins reads 1."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None  # Since the driver was loaded
    xid: int | None = None  # The last one that was seen
    pids: tuple[int, ...] = ()
    is_up: bool = True  # False: the driver no longer reaches it, and nothing else of it is known
    tensor_active: float | None = None
    """0 to 1: share of time that the tensor cores worked (GPM, Hopper and newer)."""
    power_limit_watts: float | None = None
    ecc_corrected: int | None = None
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    """By the kind of error that made it necessary: `corrected`, `uncorrected`."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """The driver's own word on what would mend it: 0 nothing, 1 reset the GPU, 2 reboot …"""
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    """Over all links: `replay`, `recovery`, `crc`."""
    pcie_replays: int | None = None
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    """Since the driver was loaded, by reason."""


class Nccl(Struct, frozen=True, omit_defaults=True):
    communicators: int
    missing_ranks: int  # That no longer answer to RAS
    mismatched: int
    """Communicators whose ranks have been at different counts for longer than a moment."""
    operations: int | None = None
    """Collectives that the slowest rank of each communicator has begun, summed; None: not told
    in this form of the answer."""


class MissingRank(NamedTuple):
    rank: int
    process: str | None
    """Host, pid and GPU, by which a process is found again in another communicator."""
    is_dead: bool  # RAS has given it up, which it does after a minute, and never takes back


class Communicator(NamedTuple):
    hash: str
    size: int
    begun: Mapping[int, int]
    """Rank to collectives begun. From text, where only a difference is printed, the sum is of
    the kinds that differ; empty where none does."""
    processes: Mapping[int, str]
    missing: tuple[MissingRank, ...]
    missing_count: int  # Also of those that are not named
    is_settled: bool  # No rank is still entering or already leaving it


class RasAnswer(NamedTuple):
    version: str | None
    communicators: int
    reported: tuple[Communicator, ...]  # All of them; from text, those with something to say
    gpus: int | None  # Of the whole job, where the answer has it
    nodes: int | None
    counts_all: bool  # Whether the counts of every communicator are told


MAX_PORTS = 64
MAX_ERRORS = 24


class FabricPort(Struct, frozen=True, omit_defaults=True):
    device: str  # Card and port: `mlx5_0/1`
    is_up: bool | None = None
    """None: EFA's driver says so at all times, and some have no interface that would know."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    """Counters of trouble by the kernel's name for each, since the card was started."""
