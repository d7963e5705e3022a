# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar on hardware that this machine does not have: two GPUs, NCCL's RAS, a network card.

Everything that it serves passes through the real exporter; only the snapshot is made up. Its
counters rise with time, as those of a job at work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from msgspec import structs

from mwatch.export.http.server import Server, standard_pages
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.goodput import Spent
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl
from mwatch.model.snapshot.snapshot import (
    OwnUsage,
    RankFacts,
    RankSnapshot,
    SavedCheckpoint,
    Snapshot,
    SourceState,
)
from support.builders.snapshot import GPU, busy_snapshot

RUN = "fake-pod-run"
NAMESPACE = "team-a"
POD = "fake-worker-0"
HOT_SECONDS = 60.0
_RANKS = (0, 1)
_BUSY = busy_snapshot()
_SLOW = Finding("straggler", Cause.SLOW, Severity.WARNING, "rank 1 is slower than the others")


def fake_snapshot(began: float, now: float) -> Snapshot:
    """`began`: when the made-up job began to work."""
    passed = now - began
    facts = [_facts(rank, passed) for rank in _RANKS]
    ranks = tuple(RankSnapshot(rank, int(passed) + 10, now - 0.3, facts[rank]) for rank in _RANKS)
    gpus = tuple(_gpu(rank, passed) for rank in _RANKS)
    # As a GPU of which mwatch knows the rank but little else: dcgm-exporter fills the gaps.
    dumb = structs.replace(GPU, 
        number=2, uuid="GPU-2", rank=2, utilization=None, tensor_active=None, power_watts=None,
        temperature_celsius=None, xid=None,
    )  # fmt: skip
    bytes_passed = int(passed * 10**9)
    port = FabricPort(
        "mlx5_0/1", True, bytes_passed, bytes_passed, {"link_downed": int(passed / 10)}
    )
    saved = SavedCheckpoint(8, now - 30, 5 * 10**9)
    return replace(
        _BUSY,
        run=RUN,
        at=now,
        iteration=int(passed) + 10,
        total_iterations=100_000,
        attempt_started_at=began,
        findings=(_SLOW,),
        progress_at=now - 1,
        skipped=int(passed),
        nan=int(passed / 2),
        latest_checkpoint=saved,
        good_checkpoint=saved,
        spent_seconds={Spent.TRAINING: passed, Spent.SAVING: passed / 10, Spent.SLOW: passed / 20},
        sources={"log": SourceState(True, now), "gpus": SourceState(True, now)},
        ranks=ranks,
        gpus=(*gpus, dumb),
        nccl=Nccl(4, 0, 0, 9000 + int(passed * 100)),
        fabric=(port,),
        own=OwnUsage(
            began, passed / 100, 48e6, int(passed), int(passed * 200), {"log": int(passed)}, 1
        ),
    )


def _gpu(rank: int, passed: float) -> Gpu:
    """After a minute the second one grows hot, and slow."""
    wave = math.sin(passed / 4 + rank)
    is_hot = rank == 1 and passed > HOT_SECONDS
    return structs.replace(GPU, 
        number=rank, uuid=f"GPU-{rank}", rank=rank, ecc_corrected=int(passed / 20),
        utilization=0.9 + 0.05 * wave, tensor_active=(0.08 if is_hot else 0.4) + 0.03 * wave,
        power_watts=(330.0 if is_hot else 610.0) + 30 * wave,
        temperature_celsius=(86.0 if is_hot else 61.0) + wave,
        sm_clock_hz=1.2e9 if is_hot else 1.98e9,
        nvlink_errors={"crc": int(passed / 10)}, pcie_replays=int(passed / 5),
        throttled_seconds={"power": passed / 2, "thermal": max(0.0, passed - HOT_SECONDS)},
        throttle=("SwPowerCap", "HwThermalSlowdown") if is_hot else ("SwPowerCap",),
    )  # fmt: skip


def _facts(rank: int, passed: float) -> RankFacts:
    share = 0.3 if rank == 0 else 0.25
    seconds = {"collective": passed * share, "compute": passed * (1 - share)}
    return RankFacts(passed, 9e9, 48, seconds)


@contextmanager
def fake_pod() -> Iterator[str]:
    """The address that it serves on."""
    began = time.time()
    pages = standard_pages(
        snapshots=lambda: [fake_snapshot(began, time.time())], since_tick=lambda: 0.0
    )
    server = Server(pages, port=0)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()
