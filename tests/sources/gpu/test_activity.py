# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether GPUs work, rest or spin: by tensor cores, power and use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.model.observation import SignState
from support.builders.volume import gpu
from support.fakes.gpu_bench import GpuBench, idle


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


def test_a_gpu_that_spins_in_a_collective_is_flat_although_it_is_used(bench: GpuBench) -> None:
    bench.activity(idle())
    assert bench.activity(gpu()) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=180.0)) == {None: SignState.FLAT}
    assert bench.activity(gpu()) == {None: SignState.MOVING}


def test_a_long_hang_stays_flat(bench: GpuBench) -> None:
    bench.activity(gpu())
    assert bench.activity(gpu(power_watts=180.0), times=120) == {None: SignState.FLAT}


def test_a_gpu_that_is_not_used_is_flat_whatever_it_draws(bench: GpuBench) -> None:
    assert bench.activity(gpu(power_watts=110.0, utilization=0.0)) == {None: SignState.FLAT}


def test_nothing_is_claimed_before_five_seconds(bench: GpuBench) -> None:
    assert bench.activity(gpu(), times=5) == {}


def test_nothing_is_claimed_of_a_gpu_that_has_not_shown_a_plateau(bench: GpuBench) -> None:
    """A tiny model: 130 W at work, 110 W waiting."""
    bench.activity(gpu(power_watts=110.0))
    assert bench.activity(gpu(power_watts=130.0)) == {None: SignState.UNKNOWN}


def test_a_gpu_that_has_only_woken_up_has_not_shown_a_plateau(bench: GpuBench) -> None:
    """As an H200 did: 78 W asleep, 123 W with a small model, 122 W in a collective that hung."""
    bench.activity(gpu(power_watts=78.0, utilization=0.0))
    assert bench.activity(gpu(power_watts=123.0, utilization=0.3)) == {None: SignState.UNKNOWN}
    assert bench.activity(gpu(power_watts=122.0, utilization=1.0)) == {None: SignState.UNKNOWN}


def test_a_collective_that_hangs_is_flat_beside_a_large_model(bench: GpuBench) -> None:
    """As an H200 did: 390 W at work, 122 W in a collective that hung."""
    bench.activity(gpu(power_watts=78.0, utilization=0.0))
    assert bench.activity(gpu(power_watts=390.0, utilization=0.98)) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=122.0, utilization=1.0)) == {None: SignState.FLAT}


def test_between_the_levels_nothing_is_claimed(bench: GpuBench) -> None:
    bench.activity(idle())
    bench.activity(gpu())
    assert bench.activity(gpu(power_watts=420.0)) == {None: SignState.UNKNOWN}


def test_a_gpu_without_power_readings_says_nothing(bench: GpuBench) -> None:
    assert bench.activity(gpu(power_watts=None)) == {None: SignState.UNKNOWN}
    assert bench.activity(gpu(power_watts=None, utilization=None)) == {None: SignState.UNKNOWN}


def at_work(**change: Any) -> dict[str, Any]:
    return gpu(tensor_active=0.42, **change)


def test_a_collective_that_hangs_is_flat_by_its_tensor_cores_whatever_else_is_reported(
    bench: GpuBench,
) -> None:
    """A small model: its power says nothing."""
    small: dict[str, Any] = {"power_watts": 123.0, "utilization": 0.3}
    assert bench.activity(gpu(tensor_active=0.02, **small)) == {None: SignState.MOVING}
    spinning = gpu(power_watts=122.0, utilization=1.0, tensor_active=0.0)
    assert bench.activity(spinning, times=4) == {None: SignState.UNKNOWN}
    assert bench.activity(spinning) == {None: SignState.FLAT}
    assert bench.activity(spinning, times=120) == {None: SignState.FLAT}
    assert bench.activity(gpu(tensor_active=0.02, **small)) == {None: SignState.MOVING}


def test_a_job_without_tensor_cores_is_judged_by_its_power(bench: GpuBench) -> None:
    """In fp32 they rest while it works."""
    bench.activity(gpu(power_watts=110.0, utilization=0.0, tensor_active=0.0))
    assert bench.activity(gpu(tensor_active=0.0)) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=180.0, tensor_active=0.0)) == {None: SignState.FLAT}


def test_a_job_that_works_a_little_between_long_waits_is_not_flat(bench: GpuBench) -> None:
    bench.activity(at_work())
    for _ in range(6):
        bench.sample(gpu(power_watts=150.0, tensor_active=0.001))
        assert bench.activity(gpu(power_watts=150.0, tensor_active=0.0), times=4) != {
            None: SignState.FLAT
        }


def test_an_evaluation_moves_at_a_lower_level(bench: GpuBench) -> None:
    bench.activity(at_work())
    assert bench.activity(gpu(power_watts=300.0, tensor_active=0.08)) == {None: SignState.MOVING}
    assert bench.activity(gpu(power_watts=300.0, tensor_active=0.01)) == {None: SignState.UNKNOWN}


def test_other_work_at_full_power_is_no_rest(bench: GpuBench) -> None:
    bench.activity(idle())
    bench.activity(at_work())
    assert bench.activity(gpu(tensor_active=0.0)) == {None: SignState.UNKNOWN}


def test_a_tiny_model_that_hangs_is_flat_and_at_work_is_not(bench: GpuBench) -> None:
    tiny: dict[str, Any] = {"power_watts": 121.0, "utilization": 0.1}
    assert bench.activity(gpu(tensor_active=0.003, **tiny)) == {None: SignState.MOVING}
    assert bench.activity(gpu(tensor_active=0.0004, **tiny)) == {None: SignState.MOVING}
    assert bench.activity(gpu(tensor_active=0.0002, **tiny)) == {None: SignState.UNKNOWN}
    assert bench.activity(gpu(tensor_active=0.0, **tiny)) == {None: SignState.FLAT}


def test_tensor_activity_that_can_no_longer_be_read_leaves_the_power(bench: GpuBench) -> None:
    bench.activity(idle())
    bench.activity(at_work())
    assert bench.activity(gpu(tensor_active=None)) == {None: SignState.MOVING}
    assert bench.activity(gpu(tensor_active=None, power_watts=180.0)) == {None: SignState.FLAT}
