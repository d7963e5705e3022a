# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of what a job runs on: its ranks, GPUs, NCCL, and the network cards.

Where dcgm-exporter runs too, these add the rank that works on each GPU; its names are not used.
"""

from __future__ import annotations

from mwatch.export.metric import Metric, counter, gauge

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
    "1 for each reason that the clocks are held down now. The power cap is usual at full load.",
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
    "gpu_row_remap_failed", "0 or 1", "1 where a row could not be replaced: change the GPU.", *_GPU
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
    "Time with clocks held down since the driver was loaded, by reason.",
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
    "Counters of trouble of this port, by the kernel's name for each.",
    "device",
    "reason",
)

ALL: tuple[Metric, ...] = tuple(each for each in vars().copy().values() if isinstance(each, Metric))
