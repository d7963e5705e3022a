# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a pod: whose they are, and by which route they are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.model.observation import SignState
from mwatch.model.reading import Absent, Failed
from support.builders.volume import gpu, write_gpus
from support.fakes.gpu_bench import GpuBench, idle


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


def test_one_gpu_that_moves_speaks_for_the_pod(bench: GpuBench) -> None:
    bench.activity(gpu(0, power_watts=110.0), gpu(1, power_watts=110.0))
    assert bench.activity(gpu(0), idle(1)) == {None: SignState.MOVING}
    assert bench.activity(idle(0), idle(1)) == {None: SignState.FLAT}


def test_a_rank_is_known_by_its_pid(bench: GpuBench) -> None:
    bench.ranks = {501: 9, 502: 8}
    found = bench.activity(gpu(0, pids=[501], utilization=0.0), gpu(1, pids=[7, 502]))
    assert found == {9: SignState.FLAT, 8: SignState.UNKNOWN}
    assert [each.rank for each in bench.source.gpus] == [9, 8]


def test_pids_of_another_namespace_leave_the_order(bench: GpuBench) -> None:
    bench.ranks = {501: 9, 502: 8}
    bench.activity(gpu(1, pids=[90001]), gpu(0, pids=[90002]))
    assert {each.number: each.rank for each in bench.source.gpus} == {0: 8, 1: 9}


def test_with_more_gpus_than_ranks_nobody_is_named(bench: GpuBench) -> None:
    bench.ranks = {501: 0}
    assert bench.activity(idle(0), idle(1)) == {None: SignState.FLAT}


def test_no_gpu_is_absent_and_a_lost_driver_is_a_failure(bench: GpuBench) -> None:
    assert isinstance(bench.source.read(), Absent)
    write_gpus(bench.volume, 100.0, state="absent", reason="no NVIDIA driver here")
    assert bench.source.read() == Absent("no NVIDIA driver here")
    write_gpus(bench.volume, 100.5, state="failed", reason="GPU is lost")
    assert bench.source.read() == Failed("GPU is lost")


def test_gpus_that_can_no_longer_be_read_are_not_shown(bench: GpuBench) -> None:
    assert bench.sample(gpu()) == []
    assert len(bench.source.gpus) == 1
    bench.clock.now += 60.0
    bench.source.read()
    assert bench.nvml.wait(60)
    assert isinstance(bench.source.read(), Failed)
    assert not bench.source.gpus


def test_odd_values_are_unknown_not_zero(bench: GpuBench) -> None:
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
