# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Snapshots for the tests of exporters."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.goodput import Spent, nothing
from mwatch.model.incident import IncidentStage
from mwatch.model.job import Job
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl
from mwatch.model.snapshot.snapshot import (
    Inputs,
    OpenIncident,
    OwnUsage,
    RankFacts,
    Snapshot,
    SourceState,
    Storage,
    take,
)
from support.builders import job as build

GPU = Gpu(
    0,
    "GPU-0",
    "NVIDIA H200",
    3,
    0.97,
    64e9,
    140e9,
    612.5,
    61.0,
    1.98e9,
    ("SwPowerCap",),
    2,
    79,
    tensor_active=0.41,
    power_limit_watts=700.0,
    ecc_corrected=5,
    remapped_rows={"corrected": 1, "uncorrected": 0},
    remap_pending=True,
    remap_failed=False,
    recovery_action=1,
    nvlink_errors={"crc": 4},
    pcie_replays=6,
    throttled_seconds={"power": 12.5},
)
SECOND_GPU = structs.replace(GPU, number=1, uuid="GPU-1", rank=None, power_watts=None, xid=None)
FACTS = RankFacts(321.5, 9e9, 48, {"collective": 30.0, "compute": 70.0})


def busy_job() -> Job:
    """A job in which everything is known."""
    steps = [build.step(number, throughput_tflops=412.0) for number in range(1, 11)]
    job = build.job(steps, skipped=3, nan=1)
    job.layout = replace(job.layout, sequence_length=4096)
    job.attempt.ranks = {number: build.rank(number, 10, at=build.START + 110) for number in (0, 1)}
    build.add_checkpoints(job, 4, 8, stored="complete")
    build.add_checkpoints(job, 10, stored="incomplete")
    return job


def busy_snapshot() -> Snapshot:
    stalled = Finding("stalled", Cause.HANG, Severity.CRITICAL, "no progress for 9 s")
    blind = Finding("blind", Cause.BLIND, Severity.WARNING, "nothing can be seen")
    culprit = Culprit(rank=1, pod="gpt-worker-0", node="node-17", gpu_uuid="GPU-1")
    hang = OpenIncident(
        Cause.HANG, "stalled", Severity.CRITICAL, Action.RESTART, IncidentStage.OPENED, culprit
    )
    around = Inputs(
        goodput=0.8,
        spent_seconds=nothing() | {Spent.TRAINING: 80.0, Spent.SAVING: 20.0},
        findings=(stalled, blind, replace(stalled, severity=Severity.WARNING)),
        hang_deadline_seconds=5.0,
        incidents={(Cause.HANG, Action.RESTART): 2},
        restarts_left=3,
        gpus=(GPU, SECOND_GPU),
        sources={"log": SourceState(True, 7.0), "gpus": SourceState(False, None)},
        is_acting=True,
        ranks={0: FACTS},
        nccl=Nccl(4, 1, 2, 9000),
        fabric=(FabricPort("mlx5_0/1", True, 10**12, 10**11, {"link_downed": 1}),),
        storage=Storage(3 * 10**12, 10**13),
        checkpoint_sizes={8: 5 * 10**9},
        tensorboard_iteration=9,
        open_incidents=(hang,),
        own=OwnUsage(build.START - 3, 1.5, 48e6, 2000, 10**6, {"log": 77}, 1),
    )
    return take(busy_job(), around, at=build.START + 120)


def empty_snapshot() -> Snapshot:
    """Nothing was ever seen."""
    return take(Job("run", {}), Inputs(), at=build.START)
