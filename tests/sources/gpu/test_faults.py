# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What breaks on GPUs, told once and as an entry of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.detect.shared.xid import asks_for_recovery, is_fatal, number
from mwatch.model.event import Fault
from mwatch.model.fault import Role
from mwatch.model.job import FaultSeen
from mwatch.model.reading import Failed, Ok
from support.builders.job import entries
from support.builders.volume import WALL, gpu, write_gpus
from support.fakes.gpu_bench import GpuBench


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


def test_an_xid_is_a_fault_of_the_catalogue_reported_once(bench: GpuBench) -> None:
    bench.ranks = {501: 3}
    assert bench.faults(gpu(pids=[501])) == []
    (fault,) = bench.faults(gpu(pids=[501], xid=79))
    assert (fault.id, fault.node, fault.gpu, fault.rank) == ("xid-79", "n", "GPU-0", 3)
    assert fault.role == entries()["xid-79"].role.value
    assert bench.faults(gpu(pids=[501], xid=79)) == []
    assert [each.id for each in bench.faults(gpu(xid=48))] == ["xid-48"]


def test_the_same_xid_again_is_reported_again_at_its_own_time(bench: GpuBench) -> None:
    first = WALL + 100.5
    assert len(bench.faults(gpu(xid=31, xid_at=first))) == 1
    assert bench.faults(gpu(xid=31, xid_at=first)) == []
    bench.clock.now += 5.0
    write_gpus(bench.volume, bench.clock.now, gpu(xid=31, xid_at=first + 3.0))
    reading = bench.source.read()
    assert isinstance(reading, Ok)
    assert [each.at for each in reading.value if isinstance(each.what, Fault)] == [first + 3.0]


def test_a_gpu_that_falls_off_the_bus_is_a_fault_and_the_others_are_still_read(
    bench: GpuBench,
) -> None:
    bench.sample(gpu(0), gpu(1))
    gone: dict[str, Any] = {"index": 1, "error": "GPU is lost", "xid": 79, "xid_at": None}
    faults = bench.faults(gpu(0), gone)
    assert [(each.id, each.gpu) for each in faults] == [("xid-79", "GPU-1"), ("gpu-lost", "GPU-1")]
    assert [(each.uuid, each.is_up) for each in bench.source.gpus] == [
        ("GPU-0", True),
        ("GPU-1", False),
    ]
    assert bench.faults(gpu(0), gone) == []


def test_the_only_gpu_that_is_lost_is_reported_and_then_a_failure(bench: GpuBench) -> None:
    bench.sample(gpu())
    lost: dict[str, Any] = {"index": 0, "error": "GPU is lost", "xid": None}
    bench.clock.now += 1.0
    for later, expected in ((0.0, Ok), (0.1, Failed)):
        write_gpus(bench.volume, bench.clock.now + later, lost, state="failed", reason="lost")
        assert isinstance(bench.source.read(), expected)
    assert [(each.is_up, each.power_watts) for each in bench.source.gpus] == [(False, None)]


def test_an_unknown_xid_keeps_its_number(bench: GpuBench) -> None:
    (fault,) = bench.faults(gpu(xid=4711))
    assert fault.id == "xid-unknown"
    assert number(FaultSeen(0.0, "pod-0", fault, None)) == 4711


def test_two_unknown_xids_are_two(bench: GpuBench) -> None:
    xids = [[4711, WALL + 100.0], [4712, WALL + 100.0]]
    assert len(bench.faults(gpu(xids=xids))) == 2
    assert bench.faults(gpu(xids=xids)) == []


def test_only_new_memory_errors_are_a_fault(bench: GpuBench) -> None:
    assert bench.faults(gpu(ecc_uncorrected=5)) == []
    (fault,) = bench.faults(gpu(ecc_uncorrected=7))
    assert fault.id == "gpu-ecc-uncorrectable"
    assert "2 more" in fault.text
    assert bench.faults(gpu(ecc_uncorrected=0)) == []


def seen(fault: Fault) -> FaultSeen:
    return FaultSeen(0.0, "pod-0", fault, entries().get(fault.id))


def test_every_xid_of_a_burst_is_reported_and_each_once(bench: GpuBench) -> None:
    bench.sample(gpu())
    first = [[48, WALL + 100.0]]
    assert [each.id for each in bench.faults(gpu(xids=first, xid=48))] == ["xid-48"]
    more = [*first, [63, WALL + 102.1], [45, WALL + 102.2]]
    assert [each.id for each in bench.faults(gpu(xids=more, xid=45))] == ["xid-63", "xid-45"]
    assert bench.faults(gpu(xids=more, xid=45)) == []


def test_faults_name_the_file_and_no_line(bench: GpuBench) -> None:
    (fault,) = bench.faults(gpu(xid=79))
    assert (fault.file, fault.line) == ("node/gpus.json", 0)


def test_a_row_that_could_not_be_replaced_is_reported_when_it_happens(bench: GpuBench) -> None:
    bench.sample(gpu(0, remap_failed=False, remap_pending=False), gpu(1, remap_failed=True))
    (pending,) = bench.faults(gpu(0, remap_failed=False, remap_pending=True), gpu(1))
    assert (pending.id, pending.role) == ("xid-63", Role.CONFIRMATION.value)
    faults = bench.faults(gpu(0, remap_failed=True, remap_pending=True), gpu(1, remap_failed=True))
    assert [(each.id, each.gpu) for each in faults] == [("xid-64", "GPU-0")]
    assert is_fatal(seen(faults[0]))


def test_an_xid_and_its_field_are_one_fault(bench: GpuBench) -> None:
    bench.sample(gpu(remap_failed=False))
    at = WALL + bench.clock.now + 0.9
    assert len(bench.faults(gpu(remap_failed=True, xids=[[64, at]]))) == 1
    bench.sample(gpu(ecc_uncorrected=0))
    at = WALL + bench.clock.now + 0.9
    event = [["double_bit_ecc", at]]
    assert len(bench.faults(gpu(ecc_uncorrected=1, events=event))) == 1


@pytest.mark.parametrize(("action", "is_due"), [(1, True), (2, True), (4, False), (99, False)])
def test_a_recovery_action_is_reported_as_xid_154_and_ends_with_none(
    bench: GpuBench, action: int, is_due: bool
) -> None:
    bench.sample(gpu(recovery_action=0))
    xids = [[154, WALL + bench.clock.now + 1.0]]
    (fault,) = bench.faults(gpu(recovery_action=action, xids=xids))
    assert (fault.id, number(seen(fault))) == ("xid-154", 154)
    assert asks_for_recovery(seen(fault)) is is_due
    assert bench.faults(gpu(recovery_action=action, xids=xids)) == []
    (cleared,) = bench.faults(gpu(recovery_action=0, xids=xids))
    assert "(None)" in cleared.text
    assert not asks_for_recovery(seen(cleared))


def test_an_action_that_was_due_before_the_job_is_only_shown(bench: GpuBench) -> None:
    assert bench.faults(gpu(recovery_action=4, remap_failed=True)) == []
    assert bench.source.gpus[0].recovery_action == 4


def test_xid_154_alone_is_reported_where_the_field_is_not_known(bench: GpuBench) -> None:
    bench.sample(gpu())
    assert [each.id for each in bench.faults(gpu(xids=[[154, WALL]]))] == ["xid-154"]


@pytest.mark.parametrize(
    ("event", "id"),
    [
        ("double_bit_ecc", "gpu-ecc-uncorrectable"),
        ("fatal_poison", "gpu-ecc-uncorrectable"),
        ("dram_retirement_failed", "xid-64"),
        ("gpu_unavailable", "gpu-lost"),
    ],
)
def test_events_without_an_xid_are_faults_too(bench: GpuBench, event: str, id: str) -> None:
    bench.sample(gpu())
    events = [["dram_retirement", WALL + 101.0], [event, WALL + 101.0], ["new_in_2030", 1.0]]
    assert [each.id for each in bench.faults(gpu(events=events))] == [id]
    assert bench.faults(gpu(events=events)) == []


def test_a_gpu_that_wants_a_reset_is_not_lost(bench: GpuBench) -> None:
    bench.ranks = {501: 3}
    bench.sample(gpu(pids=[501]))
    down: dict[str, Any] = {"index": 0, "error": "GPU requires reset", "error_code": 16}
    (fault,) = bench.faults(down)
    assert (fault.id, fault.gpu, fault.rank) == ("gpu-reset-required", "GPU-0", 3)


def test_a_gpu_that_is_lost_again_is_reported_again(bench: GpuBench) -> None:
    lost: dict[str, Any] = {"index": 1, "error": "GPU is lost", "error_code": 15}
    bench.sample(gpu(0), gpu(1))
    for _ in range(2):
        assert [each.id for each in bench.faults(gpu(0), lost)] == ["gpu-lost"]
        assert bench.faults(gpu(0), gpu(1)) == []


def test_links_that_err_fast_are_reported_and_a_few_errors_are_not(bench: GpuBench) -> None:
    slow = {"replay": 10, "crc": 1000, "recovery": 0}
    bench.sample(gpu(nvlink_errors=slow))
    assert bench.faults(gpu(nvlink_errors=slow | {"crc": 4000, "replay": 20}), later=40.0) == []
    assert bench.faults(gpu(nvlink_errors=slow | {"crc": 5000, "replay": 50}), later=30.0) == []
    fast = {"replay": 60, "crc": 15000, "recovery": 0}
    (fault,) = bench.faults(gpu(nvlink_errors=fast), later=70.0)
    assert (fault.id, fault.role) == ("nvlink-errors", Role.CONFIRMATION.value)
    assert "10000 more of kind crc in 70 s" in fault.text
    assert bench.faults(gpu(nvlink_errors=fast | {"crc": 30000}), later=70.0) == []


def test_a_link_that_had_to_be_brought_up_anew_is_reported(bench: GpuBench) -> None:
    bench.sample(gpu(nvlink_errors={"recovery": 2}))
    (fault,) = bench.faults(gpu(nvlink_errors={"recovery": 3}), later=60.0)
    assert "recovery" in fault.text


def test_counters_that_were_set_back_are_no_errors(bench: GpuBench) -> None:
    bench.sample(gpu(nvlink_errors={"crc": 10**6}))
    assert bench.faults(gpu(nvlink_errors={"crc": 5}), later=60.0) == []
    assert bench.faults(gpu(nvlink_errors={}), later=60.0) == []
