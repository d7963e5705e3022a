# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a snapshot to values of the metrics in `catalog`, shared by all exporters.

Unknown quantities have no value. Series whose labels are known in advance start at zero, so that
the first increase is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import Metric, Value
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Culprit, Severity
from mwatch.model.goodput import Spent
from mwatch.model.machines import peak_tflops
from mwatch.model.observation import HERE
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl
from mwatch.model.snapshot.snapshot import RankSnapshot, Snapshot
from mwatch.stats import MonotonicCounters
from mwatch_trainer.scrub.scrubber import Scrubber

HELD = frozenset({catalog.BADPUT.name})
_MAX_NAMES = 8192
_MAX_NAME = 253
"""Maximum characters of a name, which is the limit of Kubernetes."""


def counter_value(highest: MonotonicCounters, run: str, value: Value) -> float:
    """Return the value, kept monotonic for goodput, which may move time between its kinds."""
    if value.metric.name not in HELD:
        return float(value.value)
    return highest.raised(run, (value.metric.name, value.labels), value.value)


@lru_cache(_MAX_NAMES)
def clean_name(name: str) -> str:
    """Remove secrets and invalid UTF-8 from a name, such as that of a loss or a run."""
    return Scrubber().text(name).encode("utf-8", "replace").decode()


def _rank(each: RankSnapshot) -> Iterator[Value]:
    rank, facts = str(each.rank), each.facts
    yield Value(catalog.RANK_BEAT, (rank,), each.beat_at)
    found = (
        (catalog.RANK_ITERATION, each.iteration),
        (catalog.RANK_CPU, facts.cpu_seconds),
        (catalog.RANK_MEMORY, facts.resident_bytes),
        (catalog.RANK_THREADS, facts.threads),
    )
    yield from _known((rank,), found)
    for phase, seconds in facts.seconds.items():
        yield Value(catalog.RANK_SECONDS, (rank, phase), seconds)


_GPU: tuple[tuple[Metric, Callable[[Gpu], float | None]], ...] = (
    (catalog.GPU_UP, lambda gpu: gpu.is_up),
    (catalog.GPU_UTILIZATION, lambda gpu: gpu.utilization),
    (catalog.GPU_TENSOR, lambda gpu: gpu.tensor_active),
    (catalog.GPU_MEMORY_USED, lambda gpu: gpu.memory_used_bytes),
    (catalog.GPU_MEMORY, lambda gpu: gpu.memory_total_bytes),
    (catalog.GPU_POWER, lambda gpu: gpu.power_watts),
    (catalog.GPU_POWER_LIMIT, lambda gpu: gpu.power_limit_watts),
    (catalog.GPU_TEMPERATURE, lambda gpu: gpu.temperature_celsius),
    (catalog.GPU_CLOCK, lambda gpu: gpu.sm_clock_hz),
    (catalog.GPU_ECC, lambda gpu: gpu.ecc_uncorrected),
    (catalog.GPU_ECC_CORRECTED, lambda gpu: gpu.ecc_corrected),
    (catalog.GPU_REMAP_PENDING, lambda gpu: gpu.remap_pending),
    (catalog.GPU_REMAP_FAILED, lambda gpu: gpu.remap_failed),
    (catalog.GPU_RECOVERY, lambda gpu: gpu.recovery_action),
    (catalog.GPU_PCIE_REPLAYS, lambda gpu: gpu.pcie_replays),
    (catalog.GPU_XID, lambda gpu: gpu.xid),
    (catalog.GPU_PEAK, lambda gpu: peak_tflops(gpu.name)),
)


def _gpu(gpu: Gpu) -> Iterator[Value]:
    labels = ("" if gpu.rank is None else str(gpu.rank), str(gpu.number), gpu.uuid)
    yield from _known(labels, ((metric, read(gpu)) for metric, read in _GPU))
    for reason in gpu.throttle:
        yield Value(catalog.GPU_THROTTLED, (*labels, reason), 1)
    for reason, seconds in gpu.throttled_seconds.items():
        yield Value(catalog.GPU_THROTTLED_SECONDS, (*labels, reason), seconds)
    for kind, rows in gpu.remapped_rows.items():
        yield Value(catalog.GPU_REMAPPED, (*labels, kind), rows)
    for reason, count in gpu.nvlink_errors.items():
        yield Value(catalog.GPU_NVLINK_ERRORS, (*labels, reason), count)


def _nccl(nccl: Nccl) -> Iterator[Value]:
    yield Value(catalog.NCCL_COMMUNICATORS, (), nccl.communicators)
    yield Value(catalog.NCCL_MISSING, (), nccl.missing_ranks)
    yield Value(catalog.NCCL_MISMATCHED, (), nccl.mismatched)
    yield from _known((), ((catalog.NCCL_OPERATIONS, nccl.operations),))


def _port(port: FabricPort) -> Iterator[Value]:
    found = (
        (catalog.FABRIC_UP, port.is_up),
        (catalog.FABRIC_RECEIVED, port.received_bytes),
        (catalog.FABRIC_SENT, port.sent_bytes),
    )
    yield from _known((port.device,), found)
    for reason, count in port.errors.items():
        yield Value(catalog.FABRIC_ERRORS, (port.device, reason), count)


def _known(
    labels: tuple[str, ...], found: Iterable[tuple[Metric, float | None]]
) -> Iterator[Value]:
    for metric, value in found:
        if value is not None:
            yield Value(metric, labels, value)


def measure(snapshot: Snapshot) -> Iterator[Value]:
    yield from _known((), _plain(snapshot))
    for name, loss in snapshot.numbers.losses.items():
        yield Value(catalog.LOSS, (name[:64],), loss)
    yield from _states(snapshot)
    yield from _checkpoints(snapshot)
    yield from _totals(snapshot)
    yield from _open_incidents(snapshot)
    for rank in snapshot.ranks:
        yield from _rank(rank)
    for gpu in snapshot.gpus:
        yield from _gpu(gpu)
    if snapshot.nccl is not None:
        yield from _nccl(snapshot.nccl)
    for port in snapshot.fabric:
        yield from _port(port)
    yield from _sources(snapshot)
    yield from _own(snapshot)


def _plain(snapshot: Snapshot) -> Iterator[tuple[Metric, float | None]]:
    numbers = snapshot.numbers
    yield catalog.ITERATION, snapshot.iteration
    yield catalog.TOTAL_ITERATIONS, snapshot.total_iterations
    yield catalog.ATTEMPT, snapshot.attempt
    yield catalog.ATTEMPT_STARTED, snapshot.attempt_started_at
    yield catalog.WORLD_SIZE, snapshot.world_size
    yield catalog.LOSS_SCALE, numbers.loss_scale
    yield catalog.GRAD_NORM, numbers.grad_norm
    yield catalog.LEARNING_RATE, numbers.learning_rate
    yield catalog.STEP_SECONDS, numbers.step_seconds
    yield catalog.THROUGHPUT, numbers.throughput_tflops
    yield catalog.TOKENS, numbers.tokens_per_second
    yield catalog.CONSUMED_SAMPLES, numbers.consumed_samples
    yield catalog.SKIPPED, snapshot.skipped
    yield catalog.NAN, snapshot.nan
    yield catalog.LAST_PROGRESS, snapshot.progress_at
    yield catalog.HANG_DEADLINE, snapshot.hang_deadline_seconds
    yield catalog.RESTARTS_LEFT, snapshot.restarts_left
    yield catalog.GOODPUT, snapshot.goodput
    yield catalog.BLIND, snapshot.is_blind
    yield catalog.TENSORBOARD_ITERATION, snapshot.tensorboard_iteration
    if snapshot.storage is not None:
        yield catalog.STORAGE_FREE, snapshot.storage.free_bytes
        yield catalog.STORAGE_SIZE, snapshot.storage.size_bytes
    yield catalog.LOOK, snapshot.at
    yield catalog.ACTING, snapshot.is_acting


def _states(snapshot: Snapshot) -> Iterator[Value]:
    if snapshot.phase is not None:
        for phase in JobPhase:
            yield Value(catalog.PHASE, (phase.value,), phase is snapshot.phase)
    for detector, severity in sorted(snapshot.severities.items()):
        for each in Severity:
            yield Value(catalog.FINDING, (detector, each.value), each is severity)


def _checkpoints(snapshot: Snapshot) -> Iterator[Value]:
    both = (("latest", snapshot.latest_checkpoint), ("good", snapshot.good_checkpoint))
    for kind, checkpoint in both:
        if checkpoint is None:
            continue
        found = (
            (catalog.CHECKPOINT_ITERATION, checkpoint.iteration),
            (catalog.CHECKPOINT_TIME, checkpoint.written_at),
            (catalog.CHECKPOINT_SIZE, checkpoint.size_bytes),
        )
        yield from _known((kind,), found)


_ALWAYS = [
    (cause, action)
    for cause in (Cause.HANG, Cause.CRASH, Cause.KILLED, Cause.HARDWARE, Cause.NAN)
    for action in (Action.NONE, Action.RESTART)
]


def _totals(snapshot: Snapshot) -> Iterator[Value]:
    counts = dict.fromkeys(_ALWAYS, 0) | dict(snapshot.incidents)
    for (cause, action), count in counts.items():
        yield Value(catalog.INCIDENTS, (cause.value, action.value), count)
    for spent, seconds in snapshot.spent_seconds.items():
        if spent is not Spent.TRAINING:
            yield Value(catalog.BADPUT, (spent.value,), seconds)


def _open_incidents(snapshot: Snapshot) -> Iterator[Value]:
    """Yield open incidents; the label is `culprit_pod`, because the scrape adds `pod`."""
    for each in snapshot.open_incidents:
        one = each.culprit or Culprit()
        where = (
            "" if one.rank is None else str(one.rank),
            "" if one.pod == HERE else one.pod or "",
            one.node or "",
            one.gpu_uuid or "",
        )
        what = (each.cause, each.detector, each.severity, each.action, each.stage)
        labels = (*map(str, what), *(name[:_MAX_NAME] for name in where))
        yield Value(catalog.INCIDENT_INFO, labels, 1)


def _sources(snapshot: Snapshot) -> Iterator[Value]:
    for name, state in sorted(snapshot.sources.items()):
        yield Value(catalog.SOURCE_UP, (name,), state.is_up)
        if state.read_at is not None:
            yield Value(catalog.SOURCE_READ, (name,), state.read_at)


def _own(snapshot: Snapshot) -> Iterator[Value]:
    own = snapshot.own
    if own is None:
        return
    found = (
        (catalog.STARTED, own.started_at),
        (catalog.LOG_LINES, own.log_lines),
        (catalog.LOG_BYTES, own.log_bytes),
        (catalog.OWN_ERRORS, own.errors),
        (catalog.OWN_CPU, own.cpu_seconds),
        (catalog.OWN_MEMORY, own.resident_bytes),
    )
    yield from _known((), found)
    for source, amount in sorted(own.dropped.items()):
        yield Value(catalog.DROPPED, (source,), amount)
