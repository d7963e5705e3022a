# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of all metrics, from which Prometheus, OTLP and `docs/metrics.md` are generated.

Conventions: times of events instead of ages, base units, and no value for an unknown quantity. An
iteration is a value and never a label. `job`, `namespace`, `pod` and `instance` are added by the
scrape.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]


class Metric(NamedTuple):
    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


def gauge(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    """Without `unit`, the last word of the name is the unit."""
    return Metric(f"mwatch_{name}", "gauge", unit or _unit(name), labels, help)


def flag(name: str, help: str, *labels: str) -> Metric:
    return gauge(name, help, *labels, unit="0 or 1")


def counter(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    return Metric(f"mwatch_{name}_total", "counter", unit or _unit(name), labels, help)


def _unit(name: str) -> str:
    if name.endswith("_timestamp_seconds"):
        return "seconds since 1970"
    word = name.rpartition("_")[2]
    return {"celsius": "degrees Celsius", "iteration": "iterations"}.get(word, word)


class Value(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    """Label values in the order of the metric's labels, without `run`."""
    value: float


def _defined(*earlier: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """Return the metrics defined so far, without those of `earlier`."""
    known = {each for group in earlier for each in group}
    metrics = (each for each in globals().values() if isinstance(each, Metric))
    return tuple(each for each in metrics if each not in known)


# Hardware of a job. If dcgm-exporter also runs, these metrics add the rank of each GPU.

_GPU = ("rank", "gpu", "UUID")

RANK_ITERATION = gauge(
    "rank_iteration", "Finished iterations, from the probe of this rank.", "rank"
)
RANK_BEAT = gauge(
    "rank_beat_timestamp_seconds",
    "Last record of this rank's probe; old if the process is stopped, dead or holds the GIL.",
    "rank",
)
GPU_UTILIZATION = gauge(
    "gpu_utilization_ratio",
    "Share of time with a kernel on the GPU. It is also 1 while a kernel waits for another rank.",
    *_GPU,
)
GPU_MEMORY_USED = gauge("gpu_memory_used_bytes", "GPU memory in use.", *_GPU)
GPU_MEMORY = gauge("gpu_memory_total_bytes", "Total GPU memory.", *_GPU)
GPU_POWER = gauge("gpu_power_watts", "Power draw.", *_GPU)
GPU_TEMPERATURE = gauge("gpu_temperature_celsius", "Temperature of the GPU.", *_GPU)
GPU_CLOCK = gauge("gpu_sm_clock_hertz", "SM clock.", *_GPU)
GPU_THROTTLED = flag(
    "gpu_throttled",
    "1 for each reason that currently reduces the clocks. The power cap is normal at full load.",
    *_GPU,
    "reason",
)
GPU_ECC = counter(
    "gpu_ecc_uncorrected_errors", "Uncorrectable memory errors since the driver was loaded.", *_GPU
)
GPU_XID = gauge("gpu_last_xid", "The last Xid of this GPU.", *_GPU, unit="Xid")
GPU_UP = flag("gpu_up", "0 while the driver cannot reach this GPU.", *_GPU)
GPU_TENSOR = gauge(
    "gpu_tensor_active_ratio", "Share of time with active tensor cores (Hopper and newer).", *_GPU
)
GPU_PEAK = gauge(
    "gpu_peak_tflops",
    "Peak of the GPU in dense 16-bit arithmetic, by its name. Absent for a GPU that mwatch does "
    "not know. mwatch_throughput_tflops divided by it is the MFU.",
    *_GPU,
    unit="TFLOP/s",
)
GPU_POWER_LIMIT = gauge("gpu_power_limit_watts", "Power limit.", *_GPU)
GPU_ECC_CORRECTED = counter(
    "gpu_ecc_corrected_errors", "Corrected memory errors since the driver was loaded.", *_GPU
)
GPU_REMAPPED = gauge(
    "gpu_remapped_rows", "Remapped memory rows, by the kind of error that caused it.", *_GPU, "kind"
)
GPU_REMAP_PENDING = flag(
    "gpu_row_remap_pending", "1 while a row waits for a reset to be remapped.", *_GPU
)
GPU_REMAP_FAILED = flag(
    "gpu_row_remap_failed", "1 if a row could not be remapped: replace the GPU.", *_GPU
)
GPU_RECOVERY = gauge(
    "gpu_recovery_action",
    "Recovery action requested by the driver: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain "
    "peers, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
    *_GPU,
    unit="code",
)
GPU_NVLINK_ERRORS = counter("gpu_nvlink_errors", "Errors of all NVLinks, by kind.", *_GPU, "reason")
GPU_PCIE_REPLAYS = counter(
    "gpu_pcie_replays", "Packets sent again over PCIe.", *_GPU, unit="packets"
)
GPU_THROTTLED_SECONDS = counter(
    "gpu_throttled_seconds",
    "Time with reduced clocks since the driver was loaded, by reason.",
    *_GPU,
    "reason",
)
RANK_CPU = counter(
    "rank_cpu_seconds", "CPU time of this rank's process and its children, in this attempt.", "rank"
)
RANK_MEMORY = gauge(
    "rank_resident_bytes", "Host memory of this rank's process and its children.", "rank"
)
RANK_THREADS = gauge("rank_threads", "Threads of this rank's process.", "rank")
RANK_SECONDS = counter(
    "rank_seconds",
    "Time of the main thread by its stack: collective, data, compute, or the phase of the job.",
    "rank",
    "phase",
)
NCCL_COMMUNICATORS = gauge("nccl_communicators", "Communicators known to NCCL RAS.")
NCCL_MISSING = gauge("nccl_missing_ranks", "Ranks that do not answer NCCL RAS.")
NCCL_MISMATCHED = gauge(
    "nccl_mismatched_communicators",
    "Communicators whose ranks have been at different operations for some time.",
)
NCCL_OPERATIONS = counter(
    "nccl_operations", "Collectives started by the slowest rank of each communicator, summed."
)
FABRIC_UP = flag("fabric_port_up", "1 while this network port is active.", "device")
FABRIC_RECEIVED = counter("fabric_received_bytes", "Bytes received.", "device")
FABRIC_SENT = counter("fabric_sent_bytes", "Bytes sent.", "device")
FABRIC_ERRORS = counter(
    "fabric_errors", "Error counters of this port, by their kernel name.", "device", "reason"
)

HARDWARE = _defined()

# mwatch itself.

SOURCE_UP = flag("source_up", "1 while this source can be read, 0 while it cannot.", "source")
SOURCE_READ = gauge(
    "source_read_timestamp_seconds", "Time of the last successful read of this source.", "source"
)
BLIND = flag("blind", "1 while mwatch has no data on the progress of the job.")
LOOK = gauge(
    "last_look_timestamp_seconds",
    "Time of the last evaluation of the job; it stops rising if the loop is stuck.",
)

ACTING = flag("acting", "1 if mwatch may act on this run, 0 if it only observes.")
STARTED = gauge("start_timestamp_seconds", "Start of this process.")
LOG_LINES = counter("log_lines", "Lines read from the training log.")
LOG_BYTES = counter("log_bytes", "Bytes read from the training log.")
DROPPED = counter(
    "dropped",
    "Data dropped before it was processed, in the unit of the source: bytes of the log, samples.",
    "source",
    unit="items",
)
OWN_ERRORS = counter("own_errors", "Internal errors of mwatch that it recovered from.")
OWN_CPU = counter("own_cpu_seconds", "CPU time of this process.")
OWN_MEMORY = gauge("own_resident_bytes", "Memory of this process.")

OWN = _defined(HARDWARE)

# The job.

ITERATION = gauge("iteration", "Finished iterations, from the log or the probe.")
TOTAL_ITERATIONS = gauge("planned_iterations", "Planned iterations of the run (train_iters).")
ATTEMPT = gauge("attempt", "Number of the current attempt, starting at 1.", unit="number")
ATTEMPT_STARTED = gauge("attempt_start_timestamp_seconds", "Start of this attempt.")
WORLD_SIZE = gauge("world_size", "Number of ranks of the job.", unit="ranks")
LOSS = gauge(
    "loss",
    "Each loss of the newest iteration line, such as lm loss. Absent if NaN: Megatron omits it.",
    "loss",
    unit="nats",
)
LOSS_SCALE = gauge("loss_scale", "Loss scale of the newest iteration line.", unit="ratio")
GRAD_NORM = gauge("grad_norm", "Gradient norm of the newest iteration line.")
LEARNING_RATE = gauge("learning_rate", "Learning rate of the newest iteration line.", unit="ratio")
STEP_SECONDS = gauge("step_seconds", "Time of one iteration (elapsed time per iteration).")
THROUGHPUT = gauge(
    "throughput_tflops", "As printed with --log-throughput.", unit="TFLOP/s for each GPU"
)
TOKENS = gauge(
    "tokens_per_second",
    "Global batch size times sequence length, divided by the time of an iteration.",
    unit="tokens/s",
)
CONSUMED_SAMPLES = gauge("consumed_samples", "Consumed samples, from the newest iteration line.")
SKIPPED = counter(
    "skipped_iterations",
    "Iterations of this attempt whose update was skipped; a step in two lines is counted once.",
)
NAN = counter("nan_iterations", "Iterations of this attempt that Megatron counted as NaN.")
PHASE = flag("phase", "1 for the current phase of the job, 0 for the others.", "phase")
LAST_PROGRESS = gauge(
    "last_progress_timestamp_seconds",
    "Time of the last progress: the iteration rose or the phase changed.",
)
HANG_DEADLINE = gauge(
    "hang_deadline_seconds",
    "Time without progress in this phase after which the job counts as stalled.",
)
FINDING = flag(
    "finding", "1 for each current finding, by its worst severity.", "finding", "severity"
)
INCIDENTS = counter(
    "incidents",
    "Closed incidents. action is the action taken, or proposed in mode observe.",
    "cause",
    "action",
)
INCIDENT_INFO = flag(
    "incident_info",
    "1 for each open incident: its cause, its action (taken or due; in mode observe, proposed), "
    "and the culprit as far as it is known. The series ends when the incident is over.",
    "cause",
    "finding",
    "severity",
    "action",
    "stage",
    "rank",
    "culprit_pod",
    "culprit_node",
    "UUID",
)
RESTARTS_LEFT = gauge(
    "restart_budget_remaining", "Restarts left in the budget window.", unit="restarts"
)
CHECKPOINT_ITERATION = gauge(
    "checkpoint_iteration",
    "Iteration of the newest checkpoint (latest), and of the newest complete one that "
    "was not rolled back (good).",
    "kind",
)
CHECKPOINT_TIME = gauge(
    "checkpoint_timestamp_seconds", "Time when that checkpoint was written.", "kind"
)
GOODPUT = gauge("goodput_ratio", "Share of wall time spent on valid iterations, repeats excluded.")
BADPUT = counter("badput_seconds", "Lost wall time, by reason.", "reason")
CHECKPOINT_SIZE = gauge("checkpoint_size_bytes", "Size of that checkpoint.", "kind")
STORAGE_FREE = gauge(
    "storage_free_bytes", "Free space of the file system that holds the checkpoints."
)
STORAGE_SIZE = gauge("storage_size_bytes", "Size of the file system that holds the checkpoints.")
TENSORBOARD_ITERATION = gauge(
    "tensorboard_iteration",
    "Newest step in TensorBoard's event files, an independent sign of progress.",
)

ALL = _defined(HARDWARE, OWN) + HARDWARE + OWN

# The controller itself: these metrics have no label `run`.

CONTROLLER_LEADER = flag(
    "controller_leader", "1 while this controller is the leader and may act, else 0."
)
CONTROLLER_JOBS = gauge("controller_jobs", "Watched jobs, by mode.", "state")
CONTROLLER_ACTIONS = gauge(
    "controller_actions",
    "Watched jobs by action in progress; for `held`, by the reason.",
    "state",
    "reason",
    unit="jobs",
)
CONTROLLER_LEDGER_ERRORS = counter(
    "controller_ledger_errors",
    "Failed reads and writes of the ledger; without it no action is taken.",
)
CONTROLLER_NOTIFICATIONS = counter(
    "controller_notifications",
    "Messages about incidents, by result (sent, failed), for each URL of --notify.",
    "result",
    unit="messages",
)
CONTROLLER_PODS = gauge(
    "controller_pods", "Running pods of watched jobs, by whether they answer.", "state"
)
CONTROLLER_POLLS = counter("controller_polls", "Answers of sidecars, and failed requests.")
CONTROLLER_POLL_FAILURES = counter(
    "controller_poll_failures", "Failed requests to sidecars.", "reason", unit="polls"
)
CONTROLLER_API_CALLS = counter("controller_api_calls", "Calls to the API server, retries included.")
CONTROLLER_VIEW_AGE = gauge(
    "controller_view_age_seconds",
    "Age of the cached view of these objects; absent if they were never read.",
    "resource",
)
CONTROLLER_OLD_VIEW_AGE = gauge(
    "controller_sight_age_seconds",
    "Deprecated, removed in 0.3: use mwatch_controller_view_age_seconds.",
    "resource",
)
CONTROLLER_RELISTS = counter(
    "controller_relists", "Full lists of objects read from the API server.", unit="lists"
)
CONTROLLER_LOOP = gauge("controller_loop_seconds", "Duration of the last loop.")
CONTROLLER_LOOP_LONGEST = gauge(
    "controller_loop_longest_seconds", "Longest loop in the last five minutes."
)
CONTROLLER_STARTED = gauge("controller_start_timestamp_seconds", "Start of the controller.")
CONTROLLER_ERRORS = counter(
    "controller_errors", "Internal errors of the controller that it recovered from."
)
CONTROLLER_CPU = counter("controller_cpu_seconds", "CPU time of the controller.")
CONTROLLER_MEMORY = gauge("controller_resident_bytes", "Memory of the controller.")

CONTROLLER = _defined(ALL)
