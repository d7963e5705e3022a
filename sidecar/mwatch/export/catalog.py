# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of metrics: what Prometheus, OTLP and `docs/metrics.md` are made from.

Moments, not ages; base units; no value where nothing is known. An iteration is a value and never
a label. `job`, `namespace`, `pod` and `instance` come from the scrape and are never ours.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]
LABELS = frozenset(
    {
        "run", "rank", "gpu", "UUID", "loss", "phase", "finding", "severity", "cause", "action",
        "reason", "kind", "source",
    }
)  # fmt: skip
"""All that may ever be a label; a controller adds `run_namespace` and `run_pod`."""


class Metric(NamedTuple):
    name: str
    kind: Kind
    unit: str
    """Of the value, for people; the name carries it where Prometheus wants it to."""
    labels: tuple[str, ...]
    """After `run`, which all have."""
    help: str


def _gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}", "gauge", unit, labels, help)


def _counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}_total", "counter", unit, labels, help)


ITERATION = _gauge("iteration", "iterations", "Iterations finished, by the log or by the probe.")
TOTAL_ITERATIONS = _gauge(
    "planned_iterations", "iterations", "Iterations that the run is to do (train_iters)."
)
ATTEMPT = _gauge("attempt", "number", "Number of the attempt that is watched, from 1.")
ATTEMPT_STARTED = _gauge(
    "attempt_start_timestamp_seconds", "seconds since 1970", "When this attempt was started."
)
WORLD_SIZE = _gauge("world_size", "ranks", "Ranks of the job.")
LOSS = _gauge(
    "loss",
    "nats",
    "Each loss of the newest iteration line, such as lm loss. A loss that is not printed has no "
    "value: so Megatron shows NaN.",
    "loss",
)
LOSS_SCALE = _gauge("loss_scale", "ratio", "Loss scale of the newest iteration line.")
GRAD_NORM = _gauge("grad_norm", "norm", "Gradient norm of the newest iteration line.")
LEARNING_RATE = _gauge("learning_rate", "ratio", "Learning rate of the newest iteration line.")
STEP_SECONDS = _gauge(
    "step_seconds", "seconds", "Time of one iteration (elapsed time per iteration)."
)
THROUGHPUT = _gauge(
    "throughput_tflops", "TFLOP/s for each GPU", "As printed with --log-throughput."
)
TOKENS = _gauge(
    "tokens_per_second",
    "tokens/s",
    "Global batch size times sequence length by the time of an iteration.",
)
CONSUMED_SAMPLES = _gauge(
    "consumed_samples", "samples", "Samples consumed, as the newest iteration line says."
)
SKIPPED = _counter(
    "skipped_iterations",
    "iterations",
    "Iterations whose update was skipped, in this attempt; what two lines tell twice is counted "
    "once.",
)
NAN = _counter(
    "nan_iterations", "iterations", "Iterations that Megatron counted as NaN, in this attempt."
)
PHASE = _gauge("phase", "0 or 1", "1 for the phase that the job is in, 0 for the others.", "phase")
LAST_PROGRESS = _gauge(
    "last_progress_timestamp_seconds",
    "seconds since 1970",
    "When the iteration last rose or the phase last changed.",
)
HANG_DEADLINE = _gauge(
    "hang_deadline_seconds",
    "seconds",
    "How long the job may be silent in its phase before it counts as stalled.",
)
FINDING = _gauge(
    "finding",
    "0 or 1",
    "1 for each thing that is wrong now, by its worst severity.",
    "finding",
    "severity",
)
INCIDENTS = _counter(
    "incidents",
    "incidents",
    "Incidents that are over or were acted on. action is what was done, or would have been.",
    "cause",
    "action",
)
RESTARTS_LEFT = _gauge(
    "restart_budget_remaining", "restarts", "Restarts that the budget still has in its window."
)
CHECKPOINT_ITERATION = _gauge(
    "checkpoint_iteration",
    "iterations",
    "Iteration of the newest checkpoint (latest), and of the newest that is whole and of the line "
    "that is being continued (good).",
    "kind",
)
CHECKPOINT_TIME = _gauge(
    "checkpoint_timestamp_seconds",
    "seconds since 1970",
    "When that checkpoint was written.",
    "kind",
)
GOODPUT = _gauge(
    "goodput_ratio",
    "ratio",
    "Share of wall time that went into iterations done for the first time.",
)
BADPUT = _counter(
    "badput_seconds", "seconds", "Wall time that was lost, by what it went into.", "reason"
)
RANK_ITERATION = _gauge(
    "rank_iteration", "iterations", "Iterations that this rank's probe has seen finished.", "rank"
)
RANK_BEAT = _gauge(
    "rank_beat_timestamp_seconds",
    "seconds since 1970",
    "When this rank's probe last wrote. One that no longer writes is stopped or holds the GIL.",
    "rank",
)
GPU_UTILIZATION = _gauge(
    "gpu_utilization_ratio",
    "ratio",
    "Share of time that a kernel was resident. One that waits for another rank reads 1 too.",
    "rank", "gpu", "UUID",
)  # fmt: skip
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "bytes", "Memory in use.", "rank", "gpu", "UUID")
GPU_MEMORY = _gauge("gpu_memory_total_bytes", "bytes", "Memory there is.", "rank", "gpu", "UUID")
GPU_POWER = _gauge("gpu_power_watts", "watts", "Power drawn.", "rank", "gpu", "UUID")
GPU_TEMPERATURE = _gauge(
    "gpu_temperature_celsius", "degrees Celsius", "Temperature of the chip.", "rank", "gpu", "UUID"
)
GPU_CLOCK = _gauge("gpu_sm_clock_hertz", "hertz", "Clock of the SMs.", "rank", "gpu", "UUID")
GPU_THROTTLED = _gauge(
    "gpu_throttled",
    "0 or 1",
    "1 for each reason that the clocks are held down now. The power cap is usual at full load.",
    "rank", "gpu", "UUID", "reason",
)  # fmt: skip
GPU_ECC = _counter(
    "gpu_ecc_uncorrected_errors",
    "errors",
    "Uncorrectable memory errors since the driver was loaded.",
    "rank", "gpu", "UUID",
)  # fmt: skip
GPU_XID = _gauge("gpu_last_xid", "Xid", "The last Xid of this GPU.", "rank", "gpu", "UUID")
SOURCE_UP = _gauge(
    "source_up", "0 or 1", "1 while this source can be read, 0 while it cannot.", "source"
)
SOURCE_READ = _gauge(
    "source_read_timestamp_seconds",
    "seconds since 1970",
    "When this source was last read well.",
    "source",
)
BLIND = _gauge("blind", "0 or 1", "1 while mwatch cannot see how the job is.")
LOOK = _gauge(
    "last_look_timestamp_seconds",
    "seconds since 1970",
    "When mwatch last looked at the job: it stands still when its own loop does.",
)

ALL: tuple[Metric, ...] = (
    ITERATION, TOTAL_ITERATIONS, ATTEMPT, ATTEMPT_STARTED, WORLD_SIZE, LOSS, LOSS_SCALE, GRAD_NORM,
    LEARNING_RATE, STEP_SECONDS, THROUGHPUT, TOKENS, CONSUMED_SAMPLES, SKIPPED, NAN, PHASE,
    LAST_PROGRESS, HANG_DEADLINE, FINDING, INCIDENTS, RESTARTS_LEFT, CHECKPOINT_ITERATION,
    CHECKPOINT_TIME, GOODPUT, BADPUT, RANK_ITERATION, RANK_BEAT, GPU_UTILIZATION, GPU_MEMORY_USED,
    GPU_MEMORY, GPU_POWER, GPU_TEMPERATURE, GPU_CLOCK, GPU_THROTTLED, GPU_ECC, GPU_XID, SOURCE_UP,
    SOURCE_READ, BLIND, LOOK,
)  # fmt: skip
