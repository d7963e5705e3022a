# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of all metrics: Prometheus, OTLP and `docs/metrics.md` are made from it.

Times of events, not ages; base units; no value where it is unknown. An iteration is a value and
never a label. `job`, `namespace`, `pod` and `instance` are added by the scrape.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]


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
    "rank_iteration", "iterations", "Finished iterations, from the probe of this rank.", "rank"
)
RANK_BEAT = gauge(
    "rank_beat_timestamp_seconds",
    "seconds since 1970",
    "Last record of this rank's probe; old if the process is stopped, dead or holds the GIL.",
    "rank",
)
GPU_UTILIZATION = gauge(
    "gpu_utilization_ratio",
    "ratio",
    "Share of time with a kernel on the GPU. It is also 1 while a kernel waits for another rank.",
    *_GPU,
)
GPU_MEMORY_USED = gauge("gpu_memory_used_bytes", "bytes", "GPU memory in use.", *_GPU)
GPU_MEMORY = gauge("gpu_memory_total_bytes", "bytes", "Total GPU memory.", *_GPU)
GPU_POWER = gauge("gpu_power_watts", "watts", "Power draw.", *_GPU)
GPU_TEMPERATURE = gauge(
    "gpu_temperature_celsius", "degrees Celsius", "Temperature of the GPU.", *_GPU
)
GPU_CLOCK = gauge("gpu_sm_clock_hertz", "hertz", "SM clock.", *_GPU)
GPU_THROTTLED = gauge(
    "gpu_throttled",
    "0 or 1",
    "1 for each reason that currently reduces the clocks. The power cap is normal at full load.",
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
GPU_UP = gauge("gpu_up", "0 or 1", "0 while the driver cannot reach this GPU.", *_GPU)
GPU_TENSOR = gauge(
    "gpu_tensor_active_ratio",
    "ratio",
    "Share of time with active tensor cores (Hopper and newer).",
    *_GPU,
)
GPU_POWER_LIMIT = gauge("gpu_power_limit_watts", "watts", "Power limit.", *_GPU)
GPU_ECC_CORRECTED = counter(
    "gpu_ecc_corrected_errors",
    "errors",
    "Corrected memory errors since the driver was loaded.",
    *_GPU,
)
GPU_REMAPPED = gauge(
    "gpu_remapped_rows",
    "rows",
    "Remapped memory rows, by the kind of error that caused it.",
    *_GPU,
    "kind",
)
GPU_REMAP_PENDING = gauge(
    "gpu_row_remap_pending", "0 or 1", "1 while a row waits for a reset to be remapped.", *_GPU
)
GPU_REMAP_FAILED = gauge(
    "gpu_row_remap_failed", "0 or 1", "1 if a row could not be remapped: replace the GPU.", *_GPU
)
GPU_RECOVERY = gauge(
    "gpu_recovery_action",
    "code",
    "Recovery action requested by the driver: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain "
    "peers, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
    *_GPU,
)
GPU_NVLINK_ERRORS = counter(
    "gpu_nvlink_errors", "errors", "Errors of all NVLinks, by kind.", *_GPU, "reason"
)
GPU_PCIE_REPLAYS = counter("gpu_pcie_replays", "packets", "Packets sent again over PCIe.", *_GPU)
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
    "CPU time of this rank's process and its children, in this attempt.",
    "rank",
)
RANK_MEMORY = gauge(
    "rank_resident_bytes", "bytes", "Host memory of this rank's process and its children.", "rank"
)
RANK_THREADS = gauge("rank_threads", "threads", "Threads of this rank's process.", "rank")
RANK_SECONDS = counter(
    "rank_seconds",
    "seconds",
    "Time of the main thread by its stack: collective, data, compute, or the phase of the job.",
    "rank",
    "phase",
)
NCCL_COMMUNICATORS = gauge(
    "nccl_communicators", "communicators", "Communicators known to NCCL RAS."
)
NCCL_MISSING = gauge("nccl_missing_ranks", "ranks", "Ranks that do not answer NCCL RAS.")
NCCL_MISMATCHED = gauge(
    "nccl_mismatched_communicators",
    "communicators",
    "Communicators whose ranks have been at different operations for some time.",
)
NCCL_OPERATIONS = counter(
    "nccl_operations",
    "operations",
    "Collectives started by the slowest rank of each communicator, summed.",
)
FABRIC_UP = gauge("fabric_port_up", "0 or 1", "1 while this network port is active.", "device")
FABRIC_RECEIVED = counter("fabric_received_bytes", "bytes", "Bytes received.", "device")
FABRIC_SENT = counter("fabric_sent_bytes", "bytes", "Bytes sent.", "device")
FABRIC_ERRORS = counter(
    "fabric_errors",
    "errors",
    "Error counters of this port, by their kernel name.",
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
    "Time of the last successful read of this source.",
    "source",
)
BLIND = gauge("blind", "0 or 1", "1 while mwatch has no data on the progress of the job.")
LOOK = gauge(
    "last_look_timestamp_seconds",
    "seconds since 1970",
    "Time of the last evaluation of the job; it stops rising if the loop is stuck.",
)

ACTING = gauge("acting", "0 or 1", "1 if mwatch may act on this run, 0 if it only observes.")
STARTED = gauge("start_timestamp_seconds", "seconds since 1970", "Start of this process.")
LOG_LINES = counter("log_lines", "lines", "Lines read from the training log.")
LOG_BYTES = counter("log_bytes", "bytes", "Bytes read from the training log.")
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

ITERATION = gauge("iteration", "iterations", "Finished iterations, from the log or the probe.")
TOTAL_ITERATIONS = gauge(
    "planned_iterations", "iterations", "Planned iterations of the run (train_iters)."
)
ATTEMPT = gauge("attempt", "number", "Number of the current attempt, starting at 1.")
ATTEMPT_STARTED = gauge(
    "attempt_start_timestamp_seconds", "seconds since 1970", "Start of this attempt."
)
WORLD_SIZE = gauge("world_size", "ranks", "Number of ranks of the job.")
LOSS = gauge(
    "loss",
    "nats",
    "Each loss of the newest iteration line, such as lm loss. Absent if NaN: Megatron omits it.",
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
    "Global batch size times sequence length, divided by the time of an iteration.",
)
CONSUMED_SAMPLES = gauge(
    "consumed_samples", "samples", "Consumed samples, from the newest iteration line."
)
SKIPPED = counter(
    "skipped_iterations",
    "iterations",
    "Iterations of this attempt whose update was skipped; a step in two lines is counted once.",
)
NAN = counter(
    "nan_iterations", "iterations", "Iterations of this attempt that Megatron counted as NaN."
)
PHASE = gauge("phase", "0 or 1", "1 for the current phase of the job, 0 for the others.", "phase")
LAST_PROGRESS = gauge(
    "last_progress_timestamp_seconds",
    "seconds since 1970",
    "Time of the last progress: the iteration rose or the phase changed.",
)
HANG_DEADLINE = gauge(
    "hang_deadline_seconds",
    "seconds",
    "Time without progress in this phase after which the job counts as stalled.",
)
FINDING = gauge(
    "finding", "0 or 1", "1 for each current finding, by its worst severity.", "finding", "severity"
)
INCIDENTS = counter(
    "incidents",
    "incidents",
    "Closed incidents. action is the action taken, or proposed in mode observe.",
    "cause",
    "action",
)
RESTARTS_LEFT = gauge("restart_budget_remaining", "restarts", "Restarts left in the budget window.")
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
    "Time when that checkpoint was written.",
    "kind",
)
GOODPUT = gauge(
    "goodput_ratio", "ratio", "Share of wall time spent on valid iterations, repeats excluded."
)
BADPUT = counter("badput_seconds", "seconds", "Lost wall time, by reason.", "reason")
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
    "Newest step in TensorBoard's event files, an independent sign of progress.",
)

ALL = _defined(HARDWARE, OWN) + HARDWARE + OWN

# Of the controller itself: these have no label `run`.

CONTROLLER_LEADER = gauge(
    "controller_leader", "0 or 1", "1 while this controller is the leader and may act, else 0."
)
CONTROLLER_JOBS = gauge("controller_jobs", "jobs", "Watched jobs, by mode.", "state")
CONTROLLER_ACTIONS = gauge(
    "controller_actions",
    "jobs",
    "Watched jobs by action in progress; for `held`, by the reason.",
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
    "controller_relists", "lists", "Full lists of objects read from the API server."
)
CONTROLLER_LOOP = gauge("controller_loop_seconds", "seconds", "Duration of the last loop.")
CONTROLLER_LOOP_LONGEST = gauge(
    "controller_loop_longest_seconds", "seconds", "Longest loop in the last five minutes."
)
CONTROLLER_STARTED = gauge(
    "controller_start_timestamp_seconds", "seconds since 1970", "Start of the controller."
)
CONTROLLER_ERRORS = counter(
    "controller_errors", "errors", "Internal errors of the controller that it recovered from."
)
CONTROLLER_CPU = counter("controller_cpu_seconds", "seconds", "CPU time of the controller.")
CONTROLLER_MEMORY = gauge("controller_resident_bytes", "bytes", "Memory of the controller.")

CONTROLLER = _defined(ALL)
