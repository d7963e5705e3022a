# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Seeds for a fleet of pods, made by the sidecar's page from values instead of a volume."""

from __future__ import annotations

from benchmarks.cluster.fleet_page import Fleet, Place
from benchmarks.cluster.seeds import Seeds
from benchmarks.cluster.training import RANKS, Kind, Training
from msgspec import structs

from mwatch import json_codec
from mwatch.model.job import Job, SignSeen
from mwatch.model.observation import AttemptStart, Beat, Observed, Sign, SignSource, SignState
from mwatch.model.snapshot.pod import PodId, WrapperState
from mwatch.model.snapshot.snapshot import Inputs, Snapshot, take
from mwatch.sidecar.server import Evaluated, SnapshotPage
from mwatch.sources.probe import RankReading
from support.builders import job as build
from support.builders.events import events
from support.builders.snapshot import GPU

BEGAN = 1_800_000_000.0
_SIGNS = {
    Kind.MOVING: (SignSource.CPU_TIME, SignState.MOVING),
    Kind.WAITING: (SignSource.GPU_ACTIVITY, SignState.FLAT),
    Kind.STOPPED: (SignSource.PROCESS, SignState.STOPPED),
}
_LINE = (
    " iteration        1/ 500000 | consumed samples:    32 |"
    " elapsed time per iteration (ms): 1000.0 | learning rate: 1.000000E-04 |"
    " global batch size:    32 | lm loss: 3.000000E+00 |"
    " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
)
_WRAPPER = WrapperState(1, "act", 1.0, 9, "a", 0, 1, (), None, None, "/ckpt", None, False)


def seeds() -> Seeds:
    return Seeds({kind: _answer(kind) for kind in Kind}, b"a bundle")


def fleet(pods: int) -> Fleet:
    return Fleet("gpt", pods, 1, Training(BEGAN), seeds().answers)


def place(number: int) -> Place:
    address = f"198.18.{number // 256}.{number % 256}"
    return Place(number, f"gpt-worker-{number}", f"uid-{number}", "training", "a-17", address)


def _answer(kind: Kind) -> dict[str, object]:
    page = SnapshotPage(PodId("seed", "pod-0", None, None, None, None, "0", 1.0, None), "seed")
    page.observe(Observed(build.START, "pod-0", AttemptStart(1, None, None)))
    for event in events(_LINE):
        page.observe(Observed(build.START, "pod-0", event))
    page.update(_looked(kind), _WRAPPER, None)
    found: dict[str, object] = json_codec.decode(page.body())
    return found


def _looked(kind: Kind) -> Evaluated:
    source, state = _SIGNS[kind]
    beats = (Beat(rank, RANKS, 1, "collective", "00c0ffee", 100 + rank, None) for rank in range(8))
    probes = tuple(RankReading(beat, 0.5, True) for beat in beats)
    signs = [
        SignSeen(build.START, "pod-0", Sign(source, state, rank, f"rank {rank} (pid {rank}) is so"))
        for rank in range(RANKS)
    ]
    return Evaluated(_snapshot(), 0.0, 0.0, probes, build.START, signs)


def _snapshot() -> Snapshot:
    gpus = tuple(structs.replace(GPU, number=rank, rank=rank) for rank in range(RANKS))
    return take(Job("seed", {}), Inputs(gpus=gpus), at=build.START)
