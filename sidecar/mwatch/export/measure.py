# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot as values of the metrics in `catalog`: the same for every way out.

What is not known has no value. Series that are known beforehand are there from the start with a
zero, so that an increase from the first event on can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mwatch.export import catalog
from mwatch.export.catalog import Metric
from mwatch.model.decision import Action
from mwatch.model.finding import Cause, Severity
from mwatch.model.gpu import Gpu
from mwatch.model.ledger import Spent
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot import Snapshot


class Value(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    """In the order of the metric's labels."""
    value: float


def measure(snapshot: Snapshot) -> Iterator[Value]:
    """All values of one run; `run` itself is not among the labels."""
    for metric, value in _plain(snapshot):
        if value is not None:
            yield Value(metric, (), value)
    yield from _losses(snapshot)
    yield from _states(snapshot)
    yield from _checkpoints(snapshot)
    yield from _totals(snapshot)
    yield from _ranks(snapshot)
    for gpu in snapshot.gpus:
        yield from _gpu(gpu)
    yield from _sources(snapshot)


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
    yield catalog.LOOK, snapshot.at


def _losses(snapshot: Snapshot) -> Iterator[Value]:
    for name, value in snapshot.numbers.losses.items():
        yield Value(catalog.LOSS, (name[:64],), value)


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
        yield Value(catalog.CHECKPOINT_ITERATION, (kind,), checkpoint.iteration)
        if checkpoint.written_at is not None:
            yield Value(catalog.CHECKPOINT_TIME, (kind,), checkpoint.written_at)


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


def _ranks(snapshot: Snapshot) -> Iterator[Value]:
    for each in snapshot.ranks:
        rank = str(each.rank)
        yield Value(catalog.RANK_BEAT, (rank,), each.beat_at)
        if each.iteration is not None:
            yield Value(catalog.RANK_ITERATION, (rank,), each.iteration)


_GPU: tuple[tuple[Metric, Callable[[Gpu], float | None]], ...] = (
    (catalog.GPU_UTILIZATION, lambda gpu: gpu.utilization),
    (catalog.GPU_MEMORY_USED, lambda gpu: gpu.memory_used_bytes),
    (catalog.GPU_MEMORY, lambda gpu: gpu.memory_total_bytes),
    (catalog.GPU_POWER, lambda gpu: gpu.power_watts),
    (catalog.GPU_TEMPERATURE, lambda gpu: gpu.temperature_celsius),
    (catalog.GPU_CLOCK, lambda gpu: gpu.sm_clock_hz),
    (catalog.GPU_ECC, lambda gpu: gpu.ecc_uncorrected),
    (catalog.GPU_XID, lambda gpu: gpu.xid),
)


def _gpu(gpu: Gpu) -> Iterator[Value]:
    labels = ("" if gpu.rank is None else str(gpu.rank), str(gpu.number), gpu.uuid)
    for metric, read in _GPU:
        value = read(gpu)
        if value is not None:
            yield Value(metric, labels, value)
    for reason in gpu.throttle:
        yield Value(catalog.GPU_THROTTLED, (*labels, reason), 1)


def _sources(snapshot: Snapshot) -> Iterator[Value]:
    for name, state in sorted(snapshot.sources.items()):
        yield Value(catalog.SOURCE_UP, (name,), state.is_up)
        if state.read_at is not None:
            yield Value(catalog.SOURCE_READ, (name,), state.read_at)
