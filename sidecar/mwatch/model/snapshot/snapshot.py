# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An immutable snapshot of a run at one moment, which every exporter reads.

The loop that owns the job takes it, so that a scrape in another thread never sees a job in the
middle of a change. None: not known, and not exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.goodput import Spent
from mwatch.model.incident import IncidentStage
from mwatch.model.job import Job, KnownCheckpoint
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl
from mwatch.model.step import Step

MAX_RANKS = 1024
MAX_LOSSES = 32


class SourceState(NamedTuple):
    is_up: bool
    read_at: float | None  # last successful read


class RankFacts(NamedTuple):
    """Facts that the probe and the kernel report about a rank besides its progress."""

    cpu_seconds: float | None = None  # of its process tree, in this attempt
    resident_bytes: float | None = None
    threads: int | None = None
    seconds: Mapping[str, float] = MappingProxyType({})
    """Seconds in this attempt, by activity of the rank's main thread."""


class RankSnapshot(NamedTuple):
    rank: int
    iteration: int | None
    beat_at: float
    facts: RankFacts = RankFacts()
    phase: str | None = None  # of its main thread
    progressed_at: float | None = None  # when its iteration last changed


class Storage(Struct, frozen=True, omit_defaults=True):
    """The file system of the checkpoints."""

    free_bytes: int | None = None
    size_bytes: int | None = None


class OwnUsage(NamedTuple):
    """Resources of the watcher itself."""

    started_at: float
    cpu_seconds: float
    resident_bytes: float | None
    log_lines: int = 0
    log_bytes: int = 0
    dropped: Mapping[str, int] = MappingProxyType({})
    """Lost before it was read, by source, in that source's unit."""
    errors: int = 0  # internal errors that were survived


class OpenIncident(NamedTuple):
    """An incident that is not over."""

    cause: Cause
    detector: str
    severity: Severity
    action: Action  # taken or due; in mode observe, proposed
    stage: IncidentStage
    culprit: Culprit | None = None


class SavedCheckpoint(NamedTuple):
    iteration: int
    written_at: float | None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Values of the newest line. Megatron leaves out a loss that is NaN."""

    losses: Mapping[str, float] = field(default_factory=dict)
    loss_scale: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    throughput_tflops: float | None = None
    tokens_per_second: float | None = None
    consumed_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    run: str
    at: float
    attempt: int
    attempt_started_at: float | None
    phase: JobPhase | None  # None: nothing was observed
    iteration: int | None
    total_iterations: int | None
    world_size: int | None
    progress_at: float | None
    hang_deadline_seconds: float | None
    numbers: Numbers
    skipped: int  # in this attempt, as `nan`
    nan: int
    findings: tuple[Finding, ...]
    decision: Decision | None
    incidents: Mapping[tuple[Cause, Action], int]  # ended or acted on since this watcher started
    restarts_left: int | None
    latest_checkpoint: SavedCheckpoint | None
    good_checkpoint: SavedCheckpoint | None
    """The newest that is complete and on the current line of history."""
    goodput: float | None
    spent_seconds: Mapping[Spent, float]
    ranks: tuple[RankSnapshot, ...]
    gpus: tuple[Gpu, ...]
    sources: Mapping[str, SourceState]
    is_acting: bool | None = None  # whether any watcher may act on this run; None: unknown
    nccl: Nccl | None = None
    fabric: tuple[FabricPort, ...] = ()
    storage: Storage | None = None
    tensorboard_iteration: int | None = None
    own: OwnUsage | None = None
    open_incidents: tuple[OpenIncident, ...] = ()

    @property
    def is_blind(self) -> bool:
        return any(finding.cause is Cause.BLIND for finding in self.findings)

    @property
    def severities(self) -> dict[str, Severity]:
        """The worst severity of each detector with a finding."""
        order = list(Severity)
        worst: dict[str, Severity] = {}
        for each in self.findings:
            known = worst.get(each.detector, each.severity)
            worst[each.detector] = max(known, each.severity, key=order.index)
        return worst


@dataclass(frozen=True, slots=True)
class Inputs:
    """Facts that the job itself does not hold."""

    goodput: float | None = None
    spent_seconds: Mapping[Spent, float] = field(default_factory=dict)
    """Wall time so far, as counters that never decrease."""
    findings: tuple[Finding, ...] = ()
    decision: Decision | None = None
    hang_deadline_seconds: float | None = None
    incidents: Mapping[tuple[Cause, Action], int] = field(default_factory=dict)
    restarts_left: int | None = None
    gpus: tuple[Gpu, ...] = ()
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    is_acting: bool | None = None
    ranks: Mapping[int, RankFacts] = field(default_factory=dict)
    nccl: Nccl | None = None
    fabric: tuple[FabricPort, ...] = ()
    storage: Storage | None = None
    checkpoint_sizes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each checkpoint by iteration, if the folder was read."""
    tensorboard_iteration: int | None = None
    own: OwnUsage | None = None
    open_incidents: tuple[OpenIncident, ...] = ()


_CONVERTED = frozenset({"incidents", "sources", "ranks", "checkpoint_sizes"})
_SAME = tuple(each.name for each in fields(Inputs) if each.name not in _CONVERTED)


def take(job: Job, around: Inputs, *, at: float, has_ranks: bool = True) -> Snapshot:
    attempt, layout, has_started = job.attempt, job.layout, job.has_started
    last = attempt.steps[-1] if attempt.steps else None
    known = job.checkpoints.values()
    return Snapshot(
        run=job.run,
        at=at,
        attempt=attempt.number,
        attempt_started_at=attempt.started_at if has_started else None,
        phase=attempt.phase if has_started else None,
        iteration=attempt.iteration,
        total_iterations=layout.total_iterations,
        world_size=layout.world_size,
        progress_at=attempt.progress_at if has_started else None,
        numbers=Numbers() if last is None else _numbers(last, layout.sequence_length),
        skipped=attempt.skipped,
        nan=attempt.nan,
        latest_checkpoint=_newest(known, around),
        good_checkpoint=_newest((each for each in known if _is_good(job, each)), around),
        ranks=take_ranks(job, sorted(job.attempt.ranks), around.ranks) if has_ranks else (),
        incidents=dict(around.incidents),
        sources=dict(around.sources),
        **{name: getattr(around, name) for name in _SAME},
    )


def _numbers(last: Step, sequence_length: int | None) -> Numbers:
    tokens = None
    if sequence_length and last.batch_size and last.seconds:
        tokens = last.batch_size * sequence_length / last.seconds
    return Numbers(
        losses=dict(list(last.losses.items())[:MAX_LOSSES]),
        loss_scale=last.loss_scale,
        grad_norm=last.grad_norm,
        learning_rate=last.learning_rate,
        step_seconds=last.seconds,
        throughput_tflops=last.throughput_tflops,
        tokens_per_second=tokens,
        consumed_samples=last.consumed_samples,
    )


def _newest(known: Iterable[KnownCheckpoint], around: Inputs) -> SavedCheckpoint | None:
    """The newest of the existing checkpoints, complete or not."""
    there = [each for each in known if _is_there(each)]
    if not there:
        return None
    newest = max(there, key=lambda each: each.iteration)
    size = around.checkpoint_sizes.get(newest.iteration)
    return SavedCheckpoint(newest.iteration, newest.made_at, size)


def _is_there(known: KnownCheckpoint) -> bool:
    return known.stored != "missing" if known.stored is not None else known.is_saved


def _is_good(job: Job, known: KnownCheckpoint) -> bool:
    is_whole = known.stored == "complete" if known.stored is not None else known.is_saved
    is_bad = known.is_abandoned or known.load_failed or job.timeline.is_suspect(known.iteration)
    return is_whole and not is_bad


def take_ranks(
    job: Job, numbers: Iterable[int], facts: Mapping[int, RankFacts] = MappingProxyType({})
) -> tuple[RankSnapshot, ...]:
    """Return snapshots of the first `MAX_RANKS` of these ranks; `facts`: by rank."""
    ranks, nothing = job.attempt.ranks, RankFacts()
    return tuple(
        RankSnapshot(
            number,
            (each := ranks[number]).iteration,
            each.at,
            facts.get(number, nothing),
            each.phase,
            each.progressed_at,
        )
        for number in islice(numbers, MAX_RANKS)
    )
