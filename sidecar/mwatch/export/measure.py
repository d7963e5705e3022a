# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot as values of the metrics in `catalog`: the same for every way out.

What is not known has no value. Series that are known beforehand are there from the start with a
zero, so that an increase from the first event on can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.export import catalog, catalog_own
from mwatch.export.measure_hardware import measure_hardware
from mwatch.export.metric import Metric
from mwatch.export.value import Value
from mwatch.model.decision import Action
from mwatch.model.finding import Cause, Severity
from mwatch.model.ledger import Spent
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot import Snapshot


def measure(snapshot: Snapshot) -> Iterator[Value]:
    """All values of one run; `run` itself is not among the labels."""
    for metric, value in _plain(snapshot):
        if value is not None:
            yield Value(metric, (), value)
    yield from _losses(snapshot)
    yield from _states(snapshot)
    yield from _checkpoints(snapshot)
    yield from _totals(snapshot)
    yield from measure_hardware(snapshot)
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
    yield catalog_own.BLIND, snapshot.is_blind
    yield catalog.TENSORBOARD_ITERATION, snapshot.tensorboard_iteration
    if snapshot.storage is not None:
        yield catalog.STORAGE_FREE, snapshot.storage.free_bytes
        yield catalog.STORAGE_SIZE, snapshot.storage.size_bytes
    yield catalog_own.LOOK, snapshot.at
    yield catalog_own.ACTING, snapshot.is_acting


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
        if checkpoint.size_bytes is not None:
            yield Value(catalog.CHECKPOINT_SIZE, (kind,), checkpoint.size_bytes)


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


def _sources(snapshot: Snapshot) -> Iterator[Value]:
    for name, state in sorted(snapshot.sources.items()):
        yield Value(catalog_own.SOURCE_UP, (name,), state.is_up)
        if state.read_at is not None:
            yield Value(catalog_own.SOURCE_READ, (name,), state.read_at)


def _own(snapshot: Snapshot) -> Iterator[Value]:
    own = snapshot.own
    if own is None:
        return
    yield Value(catalog_own.STARTED, (), own.started_at)
    yield Value(catalog_own.LOG_LINES, (), own.log_lines)
    yield Value(catalog_own.LOG_BYTES, (), own.log_bytes)
    yield Value(catalog_own.OWN_ERRORS, (), own.errors)
    yield Value(catalog_own.OWN_CPU, (), own.cpu_seconds)
    if own.resident_bytes is not None:
        yield Value(catalog_own.OWN_MEMORY, (), own.resident_bytes)
    for source, amount in sorted(own.dropped.items()):
        yield Value(catalog_own.DROPPED, (source,), amount)
