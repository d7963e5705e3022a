# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What mwatch is told besides log lines, and how everything it is told is addressed.

`Observed` is the only input of the core: a moment, the stream it came from, and what was seen.
A stream is one pod's view (a log file, a probe, a sidecar). Moments are seconds since 1970 by
the clock of the stream; `mwatch.state.merge` brings the clocks of several streams together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from mwatch.model.event import Event

HERE = "local"  # The stream of a run on this machine, which has no pods


class Beat(NamedTuple):
    """One probe record: what one rank's main thread is doing.

    `iteration` counts finished iterations. A record that is no longer written means that the
    process is stopped or holds the GIL; then no further Beat of that rank arrives.
    """

    rank: int
    world_size: int | None
    iteration: int | None
    phase: str  # A value of JobPhase, or `collective`, `data`, `compute` while training
    stack: str  # A hash of the main thread's stack: it changes as long as the thread moves
    pid: int | None
    attempt: int | None


class SignSource(StrEnum):
    """An independent witness of whether a job moves."""

    PROCESS = "process"
    CPU_TIME = "cpu_time"
    GPU_ACTIVITY = "gpu_activity"
    NCCL_RAS = "nccl_ras"
    FLIGHT_RECORDER = "flight_recorder"
    STACKS = "stacks"
    TENSORBOARD = "tensorboard"


class SignState(StrEnum):
    MOVING = "moving"
    FLAT = "flat"  # Nothing moves: frozen counts, flat power or tensor activity, no CPU time
    STOPPED = "stopped"
    DEAD = "dead"
    NEVER_JOINED = "never_joined"
    STUCK = "stuck"  # Joined the collective and does not come out of it
    BEHIND = "behind"
    OUT_OF_STEP = "out_of_step"  # In another collective than its group: it cannot heal
    ALL_EQUAL = "all_equal"  # Every rank is in the same place: look at the fabric or the storage
    UNKNOWN = "unknown"


class Sign(NamedTuple):
    """What an independent witness says now; a later one of the same source and rank replaces it."""

    source: SignSource
    state: SignState
    rank: int | None  # None: the whole job, or the whole pod of the stream
    text: str


class ProcessExit(NamedTuple):
    """The training command of this stream's pod has ended, as its parent or Kubernetes saw it."""

    exit_code: int | None
    signal: str | None
    reason: str | None  # `OOMKilled`, `Evicted`, `Preempted`, `deleted`… where somebody said so


class AttemptStart(NamedTuple):
    """The wrapper (or Kubernetes) starts the command once more in this stream's pod."""

    attempt: int | None
    resume_from: int | None
    world_size: int | None
    late_seconds: float | None = None
    """It began so long before the moment of this: who tells of it came later."""


class StoredCheckpoint(Struct, frozen=True):
    iteration: int
    state: str  # `complete`, `unverified` or `incomplete`: see `mwatch_trainer.checkpoint.listing`
    reason: str | None = None
    size_bytes: int | None = None
    written_at: float | None = None


class StoredCheckpoints(NamedTuple):
    """A look into the checkpoint folder: everything that is there now."""

    folder: str
    checkpoints: tuple[StoredCheckpoint, ...]


class Source(StrEnum):
    """What can be seen at all. Without its sight a detector gives no verdict."""

    LOG = "log"
    PROBE = "probe"
    PROCESS = "process"
    GPU = "gpu"
    NCCL = "nccl"
    FABRIC = "fabric"
    CHECKPOINTS = "checkpoints"


class SourceStatusChange(NamedTuple):
    """A source came up, or went down; why is for people."""

    source: Source
    is_up: bool
    reason: str


class Unreachable(NamedTuple):
    """Nobody can look at this stream's pod now, until it beats again: its ranks are not silent."""

    reason: str


Observation = (
    Beat | Sign | ProcessExit | AttemptStart | StoredCheckpoints | SourceStatusChange | Unreachable
)


class Observed(NamedTuple):
    at: float
    stream: str
    what: Event | Observation
