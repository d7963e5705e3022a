# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of metrics: what Prometheus, OTLP and `docs/metrics.md` are made from.

Moments, not ages; base units; no value where nothing is known. An iteration is a value and never
a label. `job`, `namespace`, `pod` and `instance` come from the scrape and are never ours.
"""

from __future__ import annotations

from mwatch.export import catalog_hardware, catalog_own
from mwatch.export.metric import Metric, counter, gauge

ITERATION = gauge("iteration", "iterations", "Iterations finished, by the log or by the probe.")
TOTAL_ITERATIONS = gauge(
    "planned_iterations", "iterations", "Iterations that the run is to do (train_iters)."
)
ATTEMPT = gauge("attempt", "number", "Number of the attempt that is watched, from 1.")
ATTEMPT_STARTED = gauge(
    "attempt_start_timestamp_seconds", "seconds since 1970", "When this attempt was started."
)
WORLD_SIZE = gauge("world_size", "ranks", "Ranks of the job.")
LOSS = gauge(
    "loss",
    "nats",
    "Each loss of the newest iteration line, such as lm loss. A loss that is not printed has no "
    "value: so Megatron shows NaN.",
    "loss",
)
LOSS_SCALE = gauge("loss_scale", "ratio", "Loss scale of the newest iteration line.")
GRAD_NORM = gauge("grad_norm", "norm", "Gradient norm of the newest iteration line.")
LEARNING_RATE = gauge("learning_rate", "ratio", "Learning rate of the newest iteration line.")
STEP_SECONDS = gauge(
    "step_seconds", "seconds", "Time of one iteration (elapsed time per iteration)."
)
THROUGHPUT = gauge("throughput_tflops", "TFLOP/s for each GPU", "As printed with --log-throughput.")
TOKENS = gauge(
    "tokens_per_second",
    "tokens/s",
    "Global batch size times sequence length by the time of an iteration.",
)
CONSUMED_SAMPLES = gauge(
    "consumed_samples", "samples", "Samples consumed, as the newest iteration line says."
)
SKIPPED = counter(
    "skipped_iterations",
    "iterations",
    "Iterations whose update was skipped, in this attempt; what two lines tell twice is counted "
    "once.",
)
NAN = counter(
    "nan_iterations", "iterations", "Iterations that Megatron counted as NaN, in this attempt."
)
PHASE = gauge("phase", "0 or 1", "1 for the phase that the job is in, 0 for the others.", "phase")
LAST_PROGRESS = gauge(
    "last_progress_timestamp_seconds",
    "seconds since 1970",
    "When the iteration last rose or the phase last changed.",
)
HANG_DEADLINE = gauge(
    "hang_deadline_seconds",
    "seconds",
    "How long the job may be silent in its phase before it counts as stalled.",
)
FINDING = gauge(
    "finding",
    "0 or 1",
    "1 for each thing that is wrong now, by its worst severity.",
    "finding",
    "severity",
)
INCIDENTS = counter(
    "incidents",
    "incidents",
    "Incidents that are over or were acted on. action is what was done, or would have been.",
    "cause",
    "action",
)
RESTARTS_LEFT = gauge(
    "restart_budget_remaining", "restarts", "Restarts that the budget still has in its window."
)
CHECKPOINT_ITERATION = gauge(
    "checkpoint_iteration",
    "iterations",
    "Iteration of the newest checkpoint (latest), and of the newest that is whole and of the line "
    "that is being continued (good).",
    "kind",
)
CHECKPOINT_TIME = gauge(
    "checkpoint_timestamp_seconds",
    "seconds since 1970",
    "When that checkpoint was written.",
    "kind",
)
GOODPUT = gauge(
    "goodput_ratio",
    "ratio",
    "Share of wall time that went into iterations done for the first time.",
)
BADPUT = counter(
    "badput_seconds", "seconds", "Wall time that was lost, by what it went into.", "reason"
)
CHECKPOINT_SIZE = gauge("checkpoint_size_bytes", "bytes", "Size of that checkpoint.", "kind")
STORAGE_FREE = gauge(
    "storage_free_bytes", "bytes", "Free space of the file system that holds the checkpoints."
)
STORAGE_SIZE = gauge(
    "storage_size_bytes", "bytes", "Size of the file system that holds the checkpoints."
)
TENSORBOARD_ITERATION = gauge(
    "tensorboard_iteration",
    "iterations",
    "Newest step in TensorBoard's event files: a second witness of progress.",
)

_JOB: tuple[Metric, ...] = tuple(
    each for each in vars().copy().values() if isinstance(each, Metric)
)
ALL: tuple[Metric, ...] = _JOB + catalog_hardware.ALL + catalog_own.ALL
