# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A layout that cannot work is refused with a reason and a fix that works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.model.machines import MACHINES, Cluster
from mwatch.plan import check
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS, Experts, ModelShape

TWO = Cluster(MACHINES["p4d.24xlarge"], 2)
GPT = PRESETS["13b"].shape
GOOD = ParallelLayout(16, 2, 4, micro_batch=1, global_batch=256)
MIXTURE = replace(GPT, experts=Experts(8, ffn=1024))

REFUSED = [
    ("world-size", GPT, replace(GOOD, tensor=4, pipeline=5), "use 20 GPUs"),
    ("tensor", GPT, replace(GOOD, tensor=16, pipeline=1), "TP that does: 1, 2, 4, 5, 8"),
    ("pipeline", GPT, replace(GOOD, tensor=1, pipeline=16), "PP that does: 1, 2, 4, 5, 8"),
    ("virtual", GPT, replace(GOOD, virtual=4), "VPP that can: 1, 2, 5, 10"),
    ("virtual", GPT, replace(GOOD, pipeline=1, virtual=2), "two stages"),
    ("virtual", GPT, replace(GOOD, virtual=2, global_batch=12), "a multiple of 8"),
    ("batch", GPT, replace(GOOD, global_batch=255), "such as 256"),
    ("context", replace(GPT, sequence=2046), replace(GOOD, context=2, tensor=1), "multiple of 4"),
    ("sequence", replace(GPT, sequence=2047), GOOD, "lengthen"),
    ("positions", replace(GPT, max_positions=1024), GOOD, "raise the positions"),
    ("heads", replace(GPT, heads=39), replace(GOOD, tensor=1), "multiple of 39"),
    ("groups", replace(GPT, groups=7), replace(GOOD, tensor=1), "groups that do"),
    ("tensor", replace(GPT, groups=5), GOOD, "TP that does: 1, 5"),
    ("tensor", replace(GPT, ffn=13653), GOOD, "TP that does: 1"),
    ("expert", GPT, replace(GOOD, expert=2), "use EP 1"),
    ("expert", MIXTURE, replace(GOOD, expert=3), "EP that does: 1, 2, 4, 8"),
    ("expert", MIXTURE, replace(GOOD, expert=4), "lower EP"),
    ("expert", MIXTURE, replace(GOOD, sequence_parallel=False), "sequence parallelism on"),
    ("expert", replace(GPT, experts=Experts(2, 4)), GOOD, "lower the number"),
    ("memory", GPT, replace(GOOD, tensor=1, pipeline=1), "raise TP"),
    ("memory", GPT, replace(GOOD, micro_batch=8), "lower the micro batch"),
    ("memory", GPT, replace(GOOD, tensor=1, distributed_optimizer=False), "distributed optimizer"),
]


@pytest.mark.parametrize(
    ("name", "shape", "layout", "fix"), REFUSED, ids=[f"{row[0]}-{row[3][:20]}" for row in REFUSED]
)
def test_it_cannot_work(name: str, shape: ModelShape, layout: ParallelLayout, fix: str) -> None:
    errors = [each for each in check.problems(shape, layout, TWO) if each.level == "error"]
    assert [each.check for each in errors] == [name]
    assert fix in errors[0].fix


def test_a_good_layout_has_no_problem() -> None:
    assert check.problems(GPT, GOOD, TWO) == ()


def test_what_costs_time_is_a_warning() -> None:
    wide = replace(GOOD, tensor=8, pipeline=2, global_batch=16)
    across = Cluster(MACHINES["p4d.24xlarge"]._replace(gpus=4), 4)
    (found,) = check.problems(GPT, wide, across)
    assert (found.check, found.level) == ("tensor-across-nodes", "warning")
    (found,) = check.problems(GPT, replace(GOOD, global_batch=4), TWO)
    assert (found.check, found.level) == ("bubble", "warning")
    assert "60%" in found.what


def test_experts_that_talk_across_machines_are_a_warning() -> None:
    layout = ParallelLayout(16, 2, 1, expert=8, global_batch=256, recompute=Recompute.FULL)
    small = replace(MIXTURE, layers=4)
    assert [each.check for each in check.problems(small, layout, TWO)] == ["expert-across-nodes"]


def test_a_gpu_that_is_nearly_full_is_a_warning() -> None:
    need = 29.0
    tight = Cluster(TWO.machine._replace(gpu=TWO.machine.gpu._replace(memory_mib=29900)), 2)
    (found,) = check.problems(GPT, GOOD, tight)
    assert (found.check, found.level) == ("memory", "warning")
    assert f"stage 0 needs {need} GiB" in found.what
