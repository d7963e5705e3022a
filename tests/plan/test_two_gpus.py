# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The runs of gpt2-large on one and two H200 that the user wrote down: MiB as `nvidia-smi` had it.

fp16, sequence 1024, no distributed optimizer, 32 samples on one GPU and 64 on two.
"""

from __future__ import annotations

import pytest

from mwatch.model.machines import H200, Cluster, Machine
from mwatch.plan import memory, speed
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS
from mwatch.plan.stages import bubble

LARGE = PRESETS["gpt2-large"].shape
BOX = Cluster(Machine(H200, 2), 1)


def layout(
    world: int, micro: int, *, tensor: int = 1, pipeline: int = 1, **more: object
) -> ParallelLayout:
    context = int(str(more.get("context", 1)))
    split = bool(more.get("split", False))
    data = world // (tensor * pipeline * context)
    return ParallelLayout(
        world,
        tensor,
        pipeline,
        context,
        micro_batch=micro,
        global_batch=micro * data,
        recompute=Recompute.NONE,
        sequence_parallel=split,
        distributed_optimizer=False,
    )


RUNS = [
    ("one GPU", layout(1, 32), [80161]),
    ("DP 2", layout(2, 32), [80543]),
    ("TP 2", layout(2, 64, tensor=2), [85969]),
    ("TP 2 with SP", layout(2, 64, tensor=2, split=True), [71571]),
    ("CP 2", layout(2, 64, context=2), [81917]),
    ("PP 2", layout(2, 64, pipeline=2), [61249, 88299]),
]


@pytest.mark.parametrize(("name", "plan", "seen"), RUNS, ids=[run[0] for run in RUNS])
def test_the_memory_of_each_run_is_met_within_4_percent(
    name: str, plan: ParallelLayout, seen: list[int]
) -> None:
    output = [each.total / memory.MIB for each in memory.all_stages(LARGE, plan)]
    assert output == pytest.approx(seen, rel=0.04), name


def test_the_last_of_two_stages_is_fuller_because_of_the_logits() -> None:
    first, last = memory.all_stages(LARGE, layout(2, 64, pipeline=2))
    assert last.loss > 0 and first.loss == 0
    assert last.total - first.total == pytest.approx((88299 - 61249) * memory.MIB, rel=0.05)


def test_one_micro_batch_in_two_stages_stands_idle_half_of_the_time() -> None:
    assert bubble(layout(2, 64, pipeline=2)) == 0.5


@pytest.mark.parametrize(
    ("plan", "milliseconds"),
    [(RUNS[0][1], 437), (RUNS[1][1], 437), (RUNS[2][1], 543), (RUNS[4][1], 517), (RUNS[5][1], 817)],
)
def test_the_step_times_are_met_within_a_quarter(plan: ParallelLayout, milliseconds: float) -> None:
    """An estimate for ranking: it must not take a slow layout for a fast one."""
    output = speed.step_seconds(LARGE, plan, BOX)
    assert output == pytest.approx(milliseconds / 1000, rel=0.25)
