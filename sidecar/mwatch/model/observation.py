# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Observations besides log lines, and `Observed`, the only input of the core.

An `Observed` has a time, a stream and an event or observation. A stream is one pod's view (a log
file, a probe, a sidecar). Times are seconds since 1970 by the clock of the stream;
`mwatch.state.merge` aligns the clocks of several streams.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from mwatch.model.event import Event

HERE = "local"  # the stream of a run on this machine, which has no pods


class Beat(NamedTuple):
    """One probe record: what one rank's main thread is doing.

    `iteration` counts finished iterations. A process that is stopped or holds the GIL writes no
    record, and no further Beat of its rank arrives.
    """

    rank: int
    world_size: int | None
    iteration: int | None
    phase: str  # a value of JobPhase, or `collective`, `data`, `compute` while training
    stack: str  # hash of the main thread's stack: it changes while the thread moves
    pid: int | None
    attempt: int | None


class SignSource(StrEnum):
    """The kinds of independent witnesses of whether a job makes progress."""

    PROCESS = "process"
    CPU_TIME = "cpu_time"
    GPU_ACTIVITY = "gpu_activity"
    NCCL_RAS = "nccl_ras"
    FLIGHT_RECORDER = "flight_recorder"
    STACKS = "stacks"
    TENSORBOARD = "tensorboard"


class SignState(StrEnum):
    MOVING = "moving"
    FLAT = "flat"  # nothing moves: frozen counts, flat power or tensor activity, no CPU time
    STOPPED = "stopped"
    SUSPENDED = "suspended"  # a signal has stopped every process of the pod, mostly by a person
    TRACED = "traced"  # a debugger has stopped it
    DEAD = "dead"
    NEVER_JOINED = "never_joined"
    STUCK = "stuck"  # joined the collective and does not leave it
    BEHIND = "behind"
    OUT_OF_STEP = "out_of_step"  # in another collective than its group: it cannot recover
    ALL_EQUAL = "all_equal"  # all ranks are at the same point: check the fabric or the storage
    UNKNOWN = "unknown"


class Sign(NamedTuple):
    """Report of an independent witness; a later one of the same source and rank replaces it."""

    source: SignSource
    state: SignState
    rank: int | None  # None: the whole job, or the whole pod of the stream
    text: str


class StackKind(StrEnum):
    """The activity of a rank's main thread, by the functions on its stack."""

    COLLECTIVE = "collective"
    DATA = "data"
    GPU = "gpu"  # it waits for the device
    SAVING = "saving"
    LOADING = "loading"
    CODE = "code"
    STOPPED = "stopped"  # by a signal: it cannot write its stack


class RankStack(NamedTuple):
    """Where the main thread of a rank was when all stacks were dumped, and what /proc and the
    driver reported about the rank at that time."""

    rank: int
    kind: StackKind
    what: str = ""  # `all_reduce`, `DataLoader.__next__`, `time.sleep(60)`; empty: unknown
    place: str = ""  # `training.py:3532 in train_step`: the innermost line outside of libraries
    frames: tuple[str, ...] = ()  # `train_step (training/training.py:3532)`; innermost first
    state: str = ""  # of its process, as in /proc
    wchan: str = ""  # where the kernel blocks it; empty: unknown
    gpu_utilization: float | None = None  # 0 to 1: share of time that a kernel was resident
    tensor_active: float | None = None  # 0 to 1
    holds_gil: bool = False  # its stack was written by a signal: the probe could not answer


class ProcessExit(NamedTuple):
    """The end of the training command in this stream's pod, as its parent or Kubernetes reports."""

    exit_code: int | None
    signal: str | None
    reason: str | None  # `OOMKilled`, `Evicted`, `Preempted`, `deleted`… if known


class AttemptStart(NamedTuple):
    """The wrapper (or Kubernetes) starts the command again in this stream's pod."""

    attempt: int | None
    resume_from: int | None
    world_size: int | None
    late_seconds: float | None = None  # how long ago it began: it was observed late


class StoredCheckpoint(Struct, frozen=True):
    iteration: int
    state: str  # `complete`, `unverified` or `incomplete`: see `mwatch_trainer.checkpoint.listing`
    reason: str | None = None
    size_bytes: int | None = None
    written_at: float | None = None


class StoredCheckpoints(NamedTuple):
    """The content of the checkpoint folder."""

    folder: str
    checkpoints: tuple[StoredCheckpoint, ...]


class Source(StrEnum):
    """Inputs. A detector gives no verdict unless one of its sources is up."""

    LOG = "log"
    PROBE = "probe"
    PROCESS = "process"
    GPU = "gpu"
    NCCL = "nccl"
    FABRIC = "fabric"
    CHECKPOINTS = "checkpoints"


class SourceStatusChange(NamedTuple):
    """A source came up or went down; `reason` is for people."""

    source: Source
    is_up: bool
    reason: str


class Unreachable(NamedTuple):
    """This stream's pod cannot be reached until its next beat: its ranks do not count as silent."""

    reason: str


Observation = (
    Beat
    | Sign
    | RankStack
    | ProcessExit
    | AttemptStart
    | StoredCheckpoints
    | SourceStatusChange
    | Unreachable
)


class Observed(NamedTuple):
    at: float
    stream: str
    what: Event | Observation
