# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs: at work, at rest or spinning, whose they are, and what breaks on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from job_builders import entries
from mwatch.detect.xid import number
from mwatch.model.event import Fault
from mwatch.model.job import FaultSeen
from mwatch.model.observation import Sign, SignState
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.node_gpus import NodeGpus
from volume_builders import WALL, ManualClock, gpu, write_gpus


class Bench:
    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.clock = ManualClock()
        self.ranks: dict[int, int] = {}
        self.source = NodeGpus(
            str(volume), "pod-0", entries(), ranks=lambda: self.ranks, node="n", clock=self.clock
        )

    def sample(self, *gpus: dict[str, Any], times: int = 1) -> list[Sign | Fault]:
        """What the last of so many samples says, a second apart."""
        for _ in range(times):
            self.clock.now += 1.0
            write_gpus(self.volume, self.clock.now, *gpus)
            reading = self.source.read()
        assert isinstance(reading, Ok)
        said = [each.what for each in reading.value]
        return [what for what in said if isinstance(what, Sign | Fault)]

    def activity(self, *gpus: dict[str, Any], times: int = 12) -> dict[int | None, SignState]:
        signs = [what for what in self.sample(*gpus, times=times) if isinstance(what, Sign)]
        return {sign.rank: sign.state for sign in signs}

    def faults(self, *gpus: dict[str, Any]) -> list[Fault]:
        return [what for what in self.sample(*gpus) if isinstance(what, Fault)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def idle(index: int = 0) -> dict[str, Any]:
    return gpu(index, power_watts=110.0, utilization=0.0)


def test_a_gpu_that_spins_in_a_collective_is_flat_although_it_is_used(bench: Bench) -> None:
    bench.activity(idle())
    assert bench.activity(gpu()) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=180.0)) == {None: SignState.FLAT}
    assert bench.activity(gpu()) == {None: SignState.MOVING}


def test_a_long_hang_stays_flat(bench: Bench) -> None:
    bench.activity(gpu())
    assert bench.activity(gpu(power_watts=180.0), times=120) == {None: SignState.FLAT}


def test_a_gpu_that_is_not_used_is_flat_whatever_it_draws(bench: Bench) -> None:
    assert bench.activity(gpu(power_watts=110.0, utilization=0.0)) == {None: SignState.FLAT}


def test_nothing_is_claimed_before_five_seconds(bench: Bench) -> None:
    assert bench.activity(gpu(), times=5) == {}


def test_nothing_is_claimed_of_a_gpu_that_has_not_shown_a_plateau(bench: Bench) -> None:
    """A tiny model: 130 W at work, 110 W waiting."""
    bench.activity(gpu(power_watts=110.0))
    assert bench.activity(gpu(power_watts=130.0)) == {None: SignState.UNKNOWN}


def test_a_gpu_that_has_only_woken_up_has_not_shown_a_plateau(bench: Bench) -> None:
    """As an H200 did: 78 W asleep, 123 W with a small model, 122 W in a collective that hung."""
    bench.activity(gpu(power_watts=78.0, utilization=0.0))
    assert bench.activity(gpu(power_watts=123.0, utilization=0.3)) == {None: SignState.UNKNOWN}
    assert bench.activity(gpu(power_watts=122.0, utilization=1.0)) == {None: SignState.UNKNOWN}


def test_a_collective_that_hangs_is_flat_beside_a_large_model(bench: Bench) -> None:
    """As an H200 did: 390 W at work, 122 W in a collective that hung."""
    bench.activity(gpu(power_watts=78.0, utilization=0.0))
    assert bench.activity(gpu(power_watts=390.0, utilization=0.98)) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=122.0, utilization=1.0)) == {None: SignState.FLAT}


def test_between_the_levels_nothing_is_claimed(bench: Bench) -> None:
    bench.activity(idle())
    bench.activity(gpu())
    assert bench.activity(gpu(power_watts=420.0)) == {None: SignState.UNKNOWN}


def test_a_gpu_without_power_readings_says_nothing(bench: Bench) -> None:
    assert bench.activity(gpu(power_watts=None)) == {None: SignState.UNKNOWN}
    assert bench.activity(gpu(power_watts=None, utilization=None)) == {None: SignState.UNKNOWN}


def test_one_gpu_that_moves_speaks_for_the_pod(bench: Bench) -> None:
    bench.activity(gpu(0, power_watts=110.0), gpu(1, power_watts=110.0))
    assert bench.activity(gpu(0), idle(1)) == {None: SignState.MOVING}
    assert bench.activity(idle(0), idle(1)) == {None: SignState.FLAT}


def test_a_rank_is_known_by_its_pid(bench: Bench) -> None:
    bench.ranks = {501: 9, 502: 8}
    found = bench.activity(gpu(0, pids=[501], utilization=0.0), gpu(1, pids=[7, 502]))
    assert found == {9: SignState.FLAT, 8: SignState.UNKNOWN}
    assert [each.rank for each in bench.source.gpus] == [9, 8]


def test_pids_of_another_namespace_leave_the_order(bench: Bench) -> None:
    bench.ranks = {501: 9, 502: 8}
    bench.activity(gpu(1, pids=[90001]), gpu(0, pids=[90002]))
    assert {each.number: each.rank for each in bench.source.gpus} == {0: 8, 1: 9}


def test_with_more_gpus_than_ranks_nobody_is_named(bench: Bench) -> None:
    bench.ranks = {501: 0}
    assert bench.activity(idle(0), idle(1)) == {None: SignState.FLAT}


def test_an_xid_is_a_fault_of_the_catalogue_told_once(bench: Bench) -> None:
    bench.ranks = {501: 3}
    assert bench.faults(gpu(pids=[501])) == []
    (fault,) = bench.faults(gpu(pids=[501], xid=79))
    assert (fault.id, fault.node, fault.gpu, fault.rank) == ("xid-79", "n", "GPU-0", 3)
    assert fault.role == entries()["xid-79"].role.value
    assert bench.faults(gpu(pids=[501], xid=79)) == []
    assert [each.id for each in bench.faults(gpu(xid=48))] == ["xid-48"]


def test_the_same_xid_again_is_told_again_at_its_own_time(bench: Bench) -> None:
    first = WALL + 100.5
    assert len(bench.faults(gpu(xid=31, xid_at=first))) == 1
    assert bench.faults(gpu(xid=31, xid_at=first)) == []
    bench.clock.now += 5.0
    write_gpus(bench.volume, bench.clock.now, gpu(xid=31, xid_at=first + 3.0))
    reading = bench.source.read()
    assert isinstance(reading, Ok)
    assert [each.at for each in reading.value if isinstance(each.what, Fault)] == [first + 3.0]


def test_a_gpu_that_falls_off_the_bus_is_a_fault_and_the_others_are_still_read(
    bench: Bench,
) -> None:
    bench.sample(gpu(0), gpu(1))
    gone: dict[str, Any] = {"index": 1, "error": "GPU is lost", "xid": 79, "xid_at": None}
    faults = bench.faults(gpu(0), gone)
    assert [(each.id, each.gpu) for each in faults] == [("xid-79", "GPU-1"), ("gpu-lost", "GPU-1")]
    assert [each.uuid for each in bench.source.gpus] == ["GPU-0"]
    assert bench.faults(gpu(0), gone) == []


def test_the_only_gpu_that_is_lost_is_told_and_then_a_failure(bench: Bench) -> None:
    bench.sample(gpu())
    lost: dict[str, Any] = {"index": 0, "error": "GPU is lost", "xid": None}
    bench.clock.now += 1.0
    for later, expected in ((0.0, Ok), (0.1, Failed)):
        write_gpus(bench.volume, bench.clock.now + later, lost, state="failed", reason="lost")
        assert isinstance(bench.source.read(), expected)
    assert not bench.source.gpus


def test_an_unknown_xid_keeps_its_number(bench: Bench) -> None:
    (fault,) = bench.faults(gpu(xid=4711))
    assert fault.id == "xid-unknown"
    assert number(FaultSeen(0.0, "pod-0", fault, None)) == 4711


def test_only_new_memory_errors_are_a_fault(bench: Bench) -> None:
    assert bench.faults(gpu(ecc_uncorrected=5)) == []
    (fault,) = bench.faults(gpu(ecc_uncorrected=7))
    assert fault.id == "gpu-ecc-uncorrectable"
    assert "2 more" in fault.text
    assert bench.faults(gpu(ecc_uncorrected=0)) == []


def test_no_gpu_is_absent_and_a_lost_driver_is_a_failure(bench: Bench) -> None:
    assert isinstance(bench.source.read(), Absent)
    write_gpus(bench.volume, 100.0, state="absent", reason="no NVIDIA driver here")
    assert bench.source.read() == Absent("no NVIDIA driver here")
    write_gpus(bench.volume, 100.5, state="failed", reason="GPU is lost")
    assert bench.source.read() == Failed("GPU is lost")


def test_gpus_that_can_no_longer_be_read_are_not_shown(bench: Bench) -> None:
    assert bench.sample(gpu()) == []
    assert len(bench.source.gpus) == 1
    bench.clock.now += 60.0
    assert isinstance(bench.source.read(), Failed)
    assert not bench.source.gpus


def test_odd_values_are_unknown_not_zero(bench: Bench) -> None:
    odd: Any = {
        "index": "x",
        "power_watts": "n/a",
        "utilization": True,
        "throttle": "no",
        "pids": 3,
    }
    bench.sample(odd)
    (found,) = bench.source.gpus
    assert (found.power_watts, found.utilization, found.throttle, found.pids) == (
        None,
        None,
        (),
        (),
    )
