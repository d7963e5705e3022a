# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of all metrics: Prometheus, OTLP and `docs/metrics.md` are made from it.

Times of events, not ages; base units; no value where it is unknown. An iteration is a value and
never a label. `job`, `namespace`, `pod` and `instance` are added by the scrape.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]
LABELS = frozenset(
    {
        "run", "rank", "gpu", "UUID", "device", "loss", "phase", "finding", "severity", "cause",
        "action", "reason", "kind", "source", "state", "resource",
    }
)  # fmt: skip
"""All labels there are; a controller adds `run_namespace` and `run_pod`."""


class Metric(NamedTuple):
    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    """Besides `run`."""
    help: str


def gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}", "gauge", unit, labels, help)


def counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}_total", "counter", unit, labels, help)


class Value(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    """In the order of the metric's labels, without `run`."""
    value: float


def _defined(*earlier: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """Return the metrics defined so far, without those of `earlier`."""
    known = {each for group in earlier for each in group}
    metrics = (each for each in globals().values() if isinstance(each, Metric))
    return tuple(each for each in metrics if each not in known)


# Of what a job runs on. Where dcgm-exporter runs too, these add the rank of each GPU.

_GPU = ("rank", "gpu", "UUID")

RANK_ITERATION = gauge(
    "rank_iteration", "iterations", "Iterations that this rank's probe has seen finished.", "rank"
)
RANK_BEAT = gauge(
    "rank_beat_timestamp_seconds",
    "seconds since 1970",
    "When this rank's probe last wrote. One that no longer writes is stopped or holds the GIL.",
    "rank",
)
GPU_UTILIZATION = gauge(
    "gpu_utilization_ratio",
    "ratio",
    "Share of time that a kernel was resident. One that waits for another rank reads 1 too.",
    *_GPU,
)
GPU_MEMORY_USED = gauge("gpu_memory_used_bytes", "bytes", "Memory in use.", *_GPU)
GPU_MEMORY = gauge("gpu_memory_total_bytes", "bytes", "Memory there is.", *_GPU)
GPU_POWER = gauge("gpu_power_watts", "watts", "Power drawn.", *_GPU)
GPU_TEMPERATURE = gauge(
    "gpu_temperature_celsius", "degrees Celsius", "Temperature of the chip.", *_GPU
)
GPU_CLOCK = gauge("gpu_sm_clock_hertz", "hertz", "Clock of the SMs.", *_GPU)
GPU_THROTTLED = gauge(
    "gpu_throttled",
    "0 or 1",
    "1 for each reason that currently reduces the clocks. The power cap is usual at full load.",
    *_GPU,
    "reason",
)
GPU_ECC = counter(
    "gpu_ecc_uncorrected_errors",
    "errors",
    "Uncorrectable memory errors since the driver was loaded.",
    *_GPU,
)
GPU_XID = gauge("gpu_last_xid", "Xid", "The last Xid of this GPU.", *_GPU)
GPU_UP = gauge("gpu_up", "0 or 1", "0 while the driver no longer reaches this GPU.", *_GPU)
GPU_TENSOR = gauge(
    "gpu_tensor_active_ratio",
    "ratio",
    "Share of time that the tensor cores worked (Hopper and newer).",
    *_GPU,
)
GPU_POWER_LIMIT = gauge("gpu_power_limit_watts", "watts", "Power that it may draw.", *_GPU)
GPU_ECC_CORRECTED = counter(
    "gpu_ecc_corrected_errors",
    "errors",
    "Memory errors that were corrected since the driver was loaded.",
    *_GPU,
)
GPU_REMAPPED = gauge(
    "gpu_remapped_rows",
    "rows",
    "Rows of memory that were replaced, by the kind of error that made it necessary.",
    *_GPU,
    "kind",
)
GPU_REMAP_PENDING = gauge(
    "gpu_row_remap_pending", "0 or 1", "1 while a row waits for a reset to be replaced.", *_GPU
)
GPU_REMAP_FAILED = gauge(
    "gpu_row_remap_failed", "0 or 1", "1 if a row could not be replaced: replace the GPU.", *_GPU
)
GPU_RECOVERY = gauge(
    "gpu_recovery_action",
    "code",
    "What the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peers, "
    "4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
    *_GPU,
)
GPU_NVLINK_ERRORS = counter(
    "gpu_nvlink_errors", "errors", "Errors of all NVLinks, by kind.", *_GPU, "reason"
)
GPU_PCIE_REPLAYS = counter(
    "gpu_pcie_replays", "packets", "Packets that had to be sent again over PCIe.", *_GPU
)
GPU_THROTTLED_SECONDS = counter(
    "gpu_throttled_seconds",
    "seconds",
    "Time with reduced clocks since the driver was loaded, by reason.",
    *_GPU,
    "reason",
)
RANK_CPU = counter(
    "rank_cpu_seconds",
    "seconds",
    "CPU time of this rank's process and all below it, in this attempt.",
    "rank",
)
RANK_MEMORY = gauge(
    "rank_resident_bytes", "bytes", "Host memory of this rank's process and all below it.", "rank"
)
RANK_THREADS = gauge("rank_threads", "threads", "Threads of this rank's process.", "rank")
RANK_SECONDS = counter(
    "rank_seconds",
    "seconds",
    "Where this rank's main thread was seen, by its stack: collective, data, compute, "
    "or the phase of the job.",
    "rank",
    "phase",
)
NCCL_COMMUNICATORS = gauge(
    "nccl_communicators", "communicators", "Communicators that NCCL's RAS knows."
)
NCCL_MISSING = gauge("nccl_missing_ranks", "ranks", "Ranks that no longer answer to NCCL's RAS.")
NCCL_MISMATCHED = gauge(
    "nccl_mismatched_communicators",
    "communicators",
    "Communicators whose ranks have been at different operations for longer than a moment.",
)
NCCL_OPERATIONS = counter(
    "nccl_operations",
    "operations",
    "Collectives begun by the slowest rank of each communicator, summed.",
)
FABRIC_UP = gauge("fabric_port_up", "0 or 1", "1 while this port of a card is active.", "device")
FABRIC_RECEIVED = counter("fabric_received_bytes", "bytes", "Received over this port.", "device")
FABRIC_SENT = counter("fabric_sent_bytes", "bytes", "Sent over this port.", "device")
FABRIC_ERRORS = counter(
    "fabric_errors",
    "errors",
    "Error counters of this port, by the kernel's name for each.",
    "device",
    "reason",
)

HARDWARE = _defined()

# Of mwatch itself.

SOURCE_UP = gauge(
    "source_up", "0 or 1", "1 while this source can be read, 0 while it cannot.", "source"
)
SOURCE_READ = gauge(
    "source_read_timestamp_seconds",
    "seconds since 1970",
    "When this source was last read successfully.",
    "source",
)
BLIND = gauge("blind", "0 or 1", "1 while mwatch has no data on the progress of the job.")
LOOK = gauge(
    "last_look_timestamp_seconds",
    "seconds since 1970",
    "When mwatch last evaluated the job: it stops rising when the loop is stuck.",
)

ACTING = gauge("acting", "0 or 1", "1 if mwatch may act on this run, 0 if it only observes.")
STARTED = gauge("start_timestamp_seconds", "seconds since 1970", "When this process was started.")
LOG_LINES = counter("log_lines", "lines", "Lines of the trainer's log that were read.")
LOG_BYTES = counter("log_bytes", "bytes", "Bytes of the trainer's log that were read.")
DROPPED = counter(
    "dropped",
    "items",
    "Data dropped before it was processed, in the unit of the source: bytes of the log, samples.",
    "source",
)
OWN_ERRORS = counter("own_errors", "errors", "Internal errors of mwatch that it recovered from.")
OWN_CPU = counter("own_cpu_seconds", "seconds", "CPU time of this process.")
OWN_MEMORY = gauge("own_resident_bytes", "bytes", "Memory of this process.")

OWN = _defined(HARDWARE)

# Of the job.

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
    "Iterations whose update was skipped, in this attempt; a step that two lines report is "
    "counted once.",
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
    "finding", "0 or 1", "1 for each current finding, by its worst severity.", "finding", "severity"
)
INCIDENTS = counter(
    "incidents",
    "incidents",
    "Incidents that are over. action is what was done, or would have been.",
    "cause",
    "action",
)
RESTARTS_LEFT = gauge(
    "restart_budget_remaining", "restarts", "Restarts that the budget still has in its window."
)
CHECKPOINT_ITERATION = gauge(
    "checkpoint_iteration",
    "iterations",
    "Iteration of the newest checkpoint (latest), and of the newest complete one that "
    "was not rolled back (good).",
    "kind",
)
CHECKPOINT_TIME = gauge(
    "checkpoint_timestamp_seconds",
    "seconds since 1970",
    "When that checkpoint was written.",
    "kind",
)
GOODPUT = gauge(
    "goodput_ratio", "ratio", "Share of wall time in sound iterations done for the first time."
)
BADPUT = counter("badput_seconds", "seconds", "Lost wall time, by what it was spent on.", "reason")
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

ALL = _defined(HARDWARE, OWN) + HARDWARE + OWN

# Of the controller itself: these have no label `run`.

CONTROLLER_LEADER = gauge(
    "controller_leader", "0 or 1", "1 while this controller is the leader and may act, else 0."
)
CONTROLLER_JOBS = gauge(
    "controller_jobs", "jobs", "Watched jobs, by whether they are acted on.", "state"
)
CONTROLLER_ACTIONS = gauge(
    "controller_actions",
    "jobs",
    "Watched jobs, by the action in progress, and for `held` by what holds it.",
    "state",
    "reason",
)
CONTROLLER_LEDGER_ERRORS = counter(
    "controller_ledger_errors",
    "errors",
    "Failed reads and writes of the ledger; without it no action is taken.",
)
CONTROLLER_PODS = gauge(
    "controller_pods", "pods", "Running pods of watched jobs, by whether they answer.", "state"
)
CONTROLLER_POLLS = counter("controller_polls", "polls", "Requests to sidecars.")
CONTROLLER_POLL_FAILURES = counter(
    "controller_poll_failures", "polls", "Failed requests to sidecars.", "reason"
)
CONTROLLER_API_CALLS = counter(
    "controller_api_calls", "calls", "Calls to the API server, retries included."
)
CONTROLLER_VIEW_AGE = gauge(
    "controller_view_age_seconds",
    "seconds",
    "Age of the cached view of these objects; absent if they were never read.",
    "resource",
)
CONTROLLER_OLD_VIEW_AGE = gauge(
    "controller_sight_age_seconds",
    "seconds",
    "Deprecated, removed in 0.3: use mwatch_controller_view_age_seconds.",
    "resource",
)
CONTROLLER_RELISTS = counter(
    "controller_relists", "lists", "Lists of objects that had to be read as a whole."
)
CONTROLLER_LOOP = gauge(
    "controller_loop_seconds", "seconds", "Duration of the last turn of the loop."
)
CONTROLLER_LOOP_LONGEST = gauge(
    "controller_loop_longest_seconds", "seconds", "The longest turn of the last five minutes."
)
CONTROLLER_STARTED = gauge(
    "controller_start_timestamp_seconds", "seconds since 1970", "When it was started."
)
CONTROLLER_ERRORS = counter(
    "controller_errors", "errors", "Internal errors that the controller survived."
)
CONTROLLER_CPU = counter("controller_cpu_seconds", "seconds", "CPU time of the controller.")
CONTROLLER_MEMORY = gauge("controller_resident_bytes", "bytes", "Memory of the controller.")

CONTROLLER = _defined(ALL)
