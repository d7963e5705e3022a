# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a rank stands during a stall; one rank has no fabric to blame."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.decide.witness import witness_reports
from mwatch.detect.stalled import DETECTOR
from mwatch.engine.advice import advise
from mwatch.model.cause import Cause
from mwatch.model.finding import CulpritState, Finding
from mwatch.model.job import Job, Layout, StackSeen
from mwatch.model.observation import RankStack, SignSource, SignState, Source, StackKind
from mwatch.model.settings import Settings
from support.builders.job import add_sign, found, job, rank, steps

PLACE = "pretrain.py:32 in train_step"


def hung(world: int = 1, phase: str = "compute") -> Job:
    layout = Layout(world_size=world, log_interval=1, total_iterations=1000)
    built = job(steps([2.0] * 30), sights=[Source.LOG, Source.PROBE], layout=layout)
    last = built.now
    built.now += 20
    built.attempt.ranks = {
        i: rank(i, 30, at=built.now, progressed_at=last, moved_at=last, phase=phase)
        for i in range(world)
    }
    return built


def add_stack(built: Job, number: int, kind: StackKind, what: str = "", **more: Any) -> None:
    stack = RankStack(number, kind, what, more.pop("place", PLACE), **more)
    built.attempt.stacks[number] = StackSeen(built.now - 5, f"pod-{number}", stack)


def finding(built: Job) -> Finding:
    (only,) = found(DETECTOR, built)
    return only


GPU = StackKind.GPU
CASES: list[tuple[StackKind, str, dict[str, Any], SignState | None, str]] = [
    (StackKind.CODE, "time.sleep(60)", {}, SignState.FLAT,
     f"rank 0 is in Python, at {PLACE} (`time.sleep(60)`), CPU idle"),
    (StackKind.CODE, "", {}, SignState.MOVING, f"rank 0 is in Python, at {PLACE}, CPU busy"),
    (StackKind.CODE, "", {"gpu_utilization": 0.0}, None, f"rank 0 is in Python, at {PLACE}"),
    (StackKind.CODE, "", {"holds_gil": True}, SignState.MOVING,
     f"rank 0 is in native code that holds the GIL, at {PLACE}, CPU busy"),
    (GPU, "synchronize", {"gpu_utilization": 1.0, "tensor_active": 0.0}, SignState.MOVING,
     "rank 0 waits for its GPU, whose SMs are busy and tensor cores idle: a kernel that does not "
     f"end, at {PLACE} (`synchronize`)"),
    (StackKind.CODE, "", {"gpu_utilization": 1.0}, SignState.MOVING,
     f"rank 0 waits for its GPU, whose SMs are busy: a kernel that does not end, at {PLACE}"),
    (GPU, "loss.item()", {"gpu_utilization": 0.0}, None,
     f"rank 0 waits for its GPU, which is idle, at {PLACE} (`loss.item()`)"),
    (GPU, "loss.item()", {"gpu_utilization": 1.0, "tensor_active": 0.4}, None,
     f"rank 0 waits for its GPU, which computes, at {PLACE}"),
    (GPU, "loss.item()", {}, None, f"rank 0 is in Python, at {PLACE} (`loss.item()`)"),
    (StackKind.DATA, "DataLoader.__next__", {}, SignState.FLAT,
     f"rank 0 is in the data loader, at {PLACE} (`DataLoader.__next__`), CPU idle"),
    (StackKind.SAVING, "save", {}, None, f"rank 0 is saving a checkpoint, at {PLACE}"),
    (StackKind.CODE, "file.read()", {"state": "D", "wchan": "rpc_wait_bit_killable"}, None,
     "rank 0 is blocked in the kernel (state D, in rpc_wait_bit_killable): it waits in storage or "
     f"a driver, at {PLACE}"),
    (StackKind.CODE, "", {"state": "D", "wchan": "nvidia_ioctl"}, None, "waits in the GPU driver"),
    (StackKind.STOPPED, "", {"state": "T", "place": ""}, None,
     "rank 0 is stopped by a signal (state T)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "what", "facts", "cpu", "text"), CASES)
def test_the_only_rank_is_placed_by_its_stack_and_what_the_machine_shows(
    kind: StackKind, what: str, facts: dict[str, Any], cpu: SignState | None, text: str
) -> None:
    built = hung()
    add_stack(built, 0, kind, what, **facts)
    if cpu is not None:
        add_sign(built, SignSource.CPU_TIME, cpu, rank=0)
    only = finding(built)
    assert text in only.summary
    assert "fabric" not in only.summary
    assert only.culprit is not None and only.culprit.rank == 0
    assert only.culprit.place == (None if kind is StackKind.STOPPED else PLACE)
    advice = advise(Cause.HANG, only, {})
    assert advice.step == only.next_step and "fabric" not in advice.step
    assert [each.first for each in only.stacks] == [0]


def test_without_a_dump_the_phase_the_cpu_and_the_gpu_are_named() -> None:
    built = hung(phase="data")
    add_sign(built, SignSource.CPU_TIME, SignState.FLAT, rank=0)
    add_sign(built, SignSource.GPU_ACTIVITY, SignState.FLAT, rank=0, text="GPU 0: no kernel ran")
    only = finding(built)
    assert "rank 0 is in the data loader, CPU idle; GPU 0: no kernel ran" in only.summary
    assert only.culprit is not None and only.culprit.state is CulpritState.STUCK


@pytest.mark.parametrize("source", [SignSource.FLIGHT_RECORDER, SignSource.NCCL_RAS])
@pytest.mark.parametrize("state", [SignState.ALL_EQUAL, SignState.STUCK, SignState.NEVER_JOINED])
def test_a_collective_of_one_rank_with_itself_is_no_witness(
    source: SignSource, state: SignState
) -> None:
    built = hung()
    add_sign(built, source, state, text="every member has joined broadcast #1 (rank 0)")
    only = finding(built)
    assert not any("broadcast" in each.text for each in only.evidence)
    assert only.culprit is not None and only.culprit.rank == 0
    reports = witness_reports(built, only, Settings())
    assert not reports.agreeing and not reports.disagreeing


def test_a_stack_from_before_the_silence_does_not_count() -> None:
    built = hung()
    add_stack(built, 0, StackKind.DATA)
    built.attempt.stacks[0] = built.attempt.stacks[0]._replace(at=built.attempt.progress_at - 1)
    only = finding(built)
    assert only.stacks == () and "data loader" not in only.summary


def test_the_odd_one_out_is_named_if_all_others_wait_in_a_collective() -> None:
    built = hung(8, phase="compute")
    for number in range(8):
        add_stack(built, number, StackKind.COLLECTIVE, "all_reduce")
    add_stack(built, 5, StackKind.DATA, "DataLoader.__next__", place="data.py:7 in fetch")
    only = finding(built)
    assert only.culprit is not None
    assert (only.culprit.rank, only.culprit.state) == (5, CulpritState.BEHIND)
    assert only.culprit.place == "data.py:7 in fetch"
    assert "rank 5 is behind the others: it is in the data loader" in only.summary
    assert any("7 others wait in a collective" in each.text for each in only.evidence)


@pytest.mark.parametrize("odd", [StackKind.GPU, StackKind.COLLECTIVE])
def test_a_rank_that_waits_for_its_gpu_may_wait_for_the_others_too(odd: StackKind) -> None:
    built = hung(8)
    for number in range(8):
        add_stack(built, number, StackKind.COLLECTIVE, "all_reduce")
    add_stack(built, 5, odd, "item", place="other.py:1 in f")
    culprit = finding(built).culprit
    assert culprit is not None and culprit.rank is None


def test_nobody_is_odd_while_a_stack_is_missing() -> None:
    built = hung(8)
    for number in range(7):
        add_stack(built, number, StackKind.COLLECTIVE, "all_reduce")
    add_stack(built, 5, StackKind.CODE)
    culprit = finding(built).culprit
    assert culprit is not None and culprit.rank is None


def test_ranks_at_one_place_are_placed_together() -> None:
    built = hung(8)
    for number in range(8):
        add_stack(built, number, StackKind.DATA, "DataLoader.__next__")
    only = finding(built)
    assert (
        f"all 8 ranks are at one place: `DataLoader.__next__`, called from {PLACE}" in only.summary
    )
    assert only.culprit is not None
    assert (only.culprit.state, only.culprit.place) == (CulpritState.ALL_EQUAL, PLACE)
    assert "data loader" in only.next_step


def test_a_rank_of_many_at_its_gpu_may_be_in_a_collective() -> None:
    built = hung(8)
    built.attempt.ranks[3].iteration = 29
    add_stack(built, 3, GPU, "loss.item()", gpu_utilization=1.0, tensor_active=0.0)
    assert "or a collective that waits for another rank" in finding(built).summary


def test_a_cpu_that_spins_until_the_gpu_is_done_does_not_speak_against_a_hang() -> None:
    built = hung()
    add_sign(built, SignSource.CPU_TIME, SignState.MOVING, rank=0)
    add_sign(built, SignSource.GPU_ACTIVITY, SignState.FLAT, rank=0)
    assert witness_reports(built, finding(built), Settings()).disagreeing
    add_stack(built, 0, GPU, "synchronize", gpu_utilization=1.0, tensor_active=0.0)
    assert not witness_reports(built, finding(built), Settings()).disagreeing


@pytest.mark.parametrize(("state", "number"), [(SignState.STOPPED, 0), (SignState.SUSPENDED, None)])
def test_a_single_rank_that_is_stopped_is_found_by_the_usual_limit(
    state: SignState, number: int | None
) -> None:
    built = hung()
    last = built.attempt.progress_at
    built.now = last + 7
    built.attempt.ranks[0] = rank(0, 30, at=last + 1, progressed_at=last, moved_at=last)
    assert found(DETECTOR, built) == [], "its records may only be late"
    add_sign(built, SignSource.PROCESS, state, rank=number)
    only = finding(built)
    assert only.culprit is not None and only.culprit.state is CulpritState.SILENT
    assert "rank 0 has stopped or is silent" in only.summary
