# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The values of what a job runs on: ranks, GPUs, NCCL and network cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mwatch.export import catalog_hardware as catalog
from mwatch.export.metric import Metric
from mwatch.export.value import Value
from mwatch.model.fabric import FabricPort
from mwatch.model.gpu import Gpu
from mwatch.model.nccl import Nccl
from mwatch.model.snapshot import RankSnapshot, Snapshot


def measure_hardware(snapshot: Snapshot) -> Iterator[Value]:
    for rank in snapshot.ranks:
        yield from _rank(rank)
    for gpu in snapshot.gpus:
        yield from _gpu(gpu)
    if snapshot.nccl is not None:
        yield from _nccl(snapshot.nccl)
    for port in snapshot.fabric:
        yield from _port(port)


def _rank(each: RankSnapshot) -> Iterator[Value]:
    rank, facts = str(each.rank), each.facts
    yield Value(catalog.RANK_BEAT, (rank,), each.beat_at)
    found: tuple[tuple[Metric, float | None], ...] = (
        (catalog.RANK_ITERATION, each.iteration),
        (catalog.RANK_CPU, facts.cpu_seconds),
        (catalog.RANK_MEMORY, facts.resident_bytes),
        (catalog.RANK_THREADS, facts.threads),
    )
    for metric, value in found:
        if value is not None:
            yield Value(metric, (rank,), value)
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
)


def _gpu(gpu: Gpu) -> Iterator[Value]:
    labels = ("" if gpu.rank is None else str(gpu.rank), str(gpu.number), gpu.uuid)
    for metric, read in _GPU:
        value = read(gpu)
        if value is not None:
            yield Value(metric, labels, value)
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
    if nccl.operations is not None:
        yield Value(catalog.NCCL_OPERATIONS, (), nccl.operations)


def _port(port: FabricPort) -> Iterator[Value]:
    found: tuple[tuple[Metric, float | None], ...] = (
        (catalog.FABRIC_UP, port.is_up),
        (catalog.FABRIC_RECEIVED, port.received_bytes),
        (catalog.FABRIC_SENT, port.sent_bytes),
    )
    for metric, value in found:
        if value is not None:
            yield Value(metric, (port.device,), value)
    for reason, count in port.errors.items():
        yield Value(catalog.FABRIC_ERRORS, (port.device, reason), count)
