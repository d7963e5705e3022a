# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages of different sizes: `--decoder-first-pipeline-num-layers` and its counterpart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.model.machines import MACHINES, Cluster
from mwatch.plan import check, parameters, speed, stages
from mwatch.plan.choose import Fixed, choose
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS, Experts, ModelShape
from mwatch.plan.stages import Ends

H100 = MACHINES["p5.48xlarge"]
LLAMA = ModelShape(
    126, 16384, 128, 8192, 128256, ffn=53248, groups=8, gated=True, bias=False,
    learned_positions=False, rms_norm=True, tied=False,
)  # fmt: skip
GPT = PRESETS["1.3b"].shape
TWO = ParallelLayout(2, 1, 2, global_batch=8, first_layers=14, last_layers=10)


@pytest.mark.parametrize(
    ("layers", "number", "ends"),
    [
        (126, 16, Ends(7, 7)),  # as Llama 3 405B was trained
        (61, 4, Ends(15, 14)),
        (7, 2, Ends(4, 3)),
        (24, 8, None),
        (24, 1, None),
        (3, 8, None),
    ],
)
def test_ends_that_make_it_come_out_even(layers: int, number: int, ends: Ends | None) -> None:
    assert stages.uneven(layers, number) == ends


def test_405b_is_laid_out_over_a_power_of_two_though_126_layers_divide_by_none() -> None:
    cluster = Cluster(H100, 256)
    found = choose(LLAMA, cluster, Fixed(8, 16))
    assert found is not None
    counts = [stages.count(126, found, each) for each in range(16)]
    assert counts == [7, *[8] * 14, 7]
    assert "first stage 7 layers, last stage 7 layers" in found.described
    assert check.problems(LLAMA, found, cluster) == ()


def test_the_parameters_of_uneven_stages_are_those_that_megatron_printed() -> None:
    """On an H200, with 14 and 10 of the 24 layers of 1.3b."""
    held = [parameters.on_stage(GPT, TWO, each).total for each in (0, 1)]
    assert held == [812_232_704, 606_609_408]


def test_chunks_of_stages_with_experts_in_every_second_layer() -> None:
    """PP 2, VPP 2: the first stage has layers 0 to 2 and 6 to 8, the second the others."""
    mixture = replace(GPT, layers=12, experts=Experts(4, every=2))
    layout = ParallelLayout(2, 1, 2, virtual=2, global_batch=2)
    assert [stages.held(mixture, layout, each) for each in (0, 1)] == [(6, 4), (6, 2)]


def test_the_others_wait_for_the_largest_stage() -> None:
    cluster = Cluster(H100._replace(gpus=2), 1)
    even = replace(TWO, first_layers=None, last_layers=None)
    slow, fast = (speed.step_seconds(GPT, each, cluster) for each in (TWO, even))
    assert slow is not None and fast is not None
    assert 1.05 < slow / fast < 14 / 12


WRONG = [
    (GPT, replace(TWO, pipeline=5), "--first-stage-layers 5 --last-stage-layers 4"),
    (GPT, replace(TWO, last_layers=11), "24 layers divide by PP 2"),
    (GPT, replace(TWO, first_layers=500, last_layers=None), "leave the ends"),
    (GPT, replace(TWO, pipeline=1), "PP 2 or more"),
    (replace(GPT, layers=61), ParallelLayout(4, 1, 4, global_batch=4), "--first-stage-layers 15"),
    (GPT, replace(TWO, virtual=3), "VPP that can: 1, 2"),
    (replace(GPT, layers=3), replace(TWO, pipeline=8, first_layers=1), "smaller PP"),
]


@pytest.mark.parametrize(("shape", "layout", "fix"), WRONG)
def test_stages_that_do_not_add_up_are_refused_with_what_would(
    shape: ModelShape, layout: ParallelLayout, fix: str
) -> None:
    cluster = Cluster(H100._replace(gpus=layout.pipeline), 1)
    layout = replace(layout, world=layout.pipeline, recompute=Recompute.NONE)
    errors = [each for each in check.problems(shape, layout, cluster) if each.level == "error"]
    assert [each.check for each in errors] in (["pipeline"], ["virtual"])
    assert fix in errors[0].fix
