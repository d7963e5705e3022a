# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What Megatron-LM core_v0.16.1 took of one H200, in MiB as torch had it: `max allocated`.

Runs of 6 to 12 steps with bf16 and made-up tokens; two ranks shared the GPU. `local` layers, so
attention is Megatron's own and not fused, but for the rows with flash attention, where PyTorch's
kernel stood in for it; Adam is PyTorch's fused one. The plan was written down before they ran. In
the FIRST it was 6 % short for experts and 6 and 11 % over where something was recomputed; that was
fixed, so they are no proof of their own. The LATER ones are: nothing was changed after them but
`runtime`, which is not in these figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from mwatch.model.machines import H200, Cluster, Machine
from mwatch.plan import memory, parameters, speed
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.memory import footprint
from mwatch.plan.shape import PRESETS, Experts, ModelShape

NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
LLAMA = ModelShape(
    24, 2048, 16, 2048, 32000, ffn=5632, groups=4, gated=True, bias=False,
    learned_positions=False, rms_norm=True, tied=False,
)  # fmt: skip
MIXTURE = ModelShape(12, 1024, 16, 1024, experts=Experts(8, 2))


def one(micro: int, whole: int, recompute: Recompute, **more: bool) -> ParallelLayout:
    return ParallelLayout(
        1, micro_batch=micro, global_batch=whole, recompute=recompute,
        distributed_optimizer=False, flash_attention=more.get("flash", False),
    )  # fmt: skip


def two(micro: int, whole: int, recompute: Recompute, **more: int) -> ParallelLayout:
    return ParallelLayout(
        2, 1, more.get("pipeline", 1), expert=more.get("expert", 1), virtual=more.get("virtual"),
        micro_batch=micro, global_batch=whole, recompute=recompute, flash_attention=False,
        distributed_optimizer=bool(more.get("distributed", 0)),
        first_layers=more.get("first"), last_layers=more.get("last"),
    )  # fmt: skip


class Run(NamedTuple):
    name: str
    shape: ModelShape
    layout: ParallelLayout
    allocated: tuple[int, ...]
    """Of the ranks of one pipeline, the fullest of each stage."""
    parameters: tuple[int, ...]
    """As Megatron printed them."""
    printed: tuple[float, float]
    """Weight and optimizer, activation: the line of its theoretical report."""


FIRST = [
    Run(
        "345m", PRESETS["345m"].shape, one(4, 8, NONE),
        (18435,), (354_871_296,), (6069.97, 3852.48),
    ),
    Run(
        "gpt2-xl, full recomputation", PRESETS["gpt2-xl"].shape, one(8, 8, FULL),
        (31190,), (1_557_686_400,), (26699.47, 22284.74),
    ),
    Run(
        "GQA and SwiGLU, selective", LLAMA, one(2, 4, SELECTIVE),
        (28652,), (1_213_302_784,), (20827.72, 7142.13),
    ),
    Run(
        "1.3b, flash attention", PRESETS["1.3b"].shape, one(4, 8, NONE, flash=True),
        (38179,), (1_315_819_520,), (22507.95, 14584.57),
    ),
    Run(
        "1.3b, stages of 14 and 10 layers", PRESETS["1.3b"].shape,
        two(1, 8, SELECTIVE, pipeline=2, first=14, last=10),
        (18419, 12595), (812_232_704, 606_609_408), (12138.22, 3435.63),
    ),
    Run(
        "345m, PP 2 VPP 2", PRESETS["345m"].shape, two(4, 16, NONE, pipeline=2, virtual=2),
        (17553, 13124), (203_714_560, 202_668_032), (3477.11, 4294.58),
    ),
    Run(
        "857m, distributed optimizer", PRESETS["857m"].shape,
        two(2, 4, SELECTIVE, distributed=1),
        (8868,), (355_919_872,), (4046.65, 3852.48),
    ),
    Run(
        "8 experts, EP 2", MIXTURE, two(4, 8, NONE, expert=2),
        (17839,), (505_989_216,), (15573.13, 2138.88),
    ),
]  # fmt: skip
LLAMA_LONG = replace(
    LLAMA, layers=16, heads=32, sequence=4096, vocabulary=50257, ffn=7168, groups=8
)
GATED = replace(LLAMA, layers=12, hidden=1024, sequence=1024, vocabulary=50257, groups=None)
FOUR = replace(GATED, ffn=2816, experts=Experts(4, 1))
SIXTEEN = replace(GATED, ffn=1024, experts=Experts(16, 2))
LATER = [
    Run(
        "3.6B, full recomputation, flash attention", PRESETS["3.6B"].shape,
        one(2, 4, FULL, flash=True),
        (63135,), (3_559_415_808,), (60979.18, 13302.48),
    ),
    Run(
        "GQA and SwiGLU, flash attention", LLAMA_LONG, one(2, 4, NONE, flash=True),
        (30957,), (1_078_528_000,), (18514.16, 10014.97),
    ),
    Run(
        "4 experts of SwiGLU, one chosen", FOUR, one(8, 8, NONE),
        (24169,), (568_665_088,), (9760.94, 4277.77),
    ),
    Run(
        "1.3b, TP 2 with SP", PRESETS["1.3b"].shape, replace(two(2, 2, SELECTIVE), tensor=2),
        (15415,), (660_287_488,), (11256.22, 3678.02),
    ),
    Run(
        "857m, TP 2", PRESETS["857m"].shape,
        replace(two(2, 2, NONE), tensor=2, sequence_parallel=False),
        (13687,), (179_148_800,), (3036.11, 2437.08),
    ),
    Run(
        "1.3b, PP 2, full recomputation", PRESETS["1.3b"].shape, two(2, 8, FULL, pipeline=2),
        (14105, 13909), (711_516_160, 707_325_952), (12138.22, 6871.27),
    ),
    Run(
        "1.3b, distributed optimizer, flash attention", PRESETS["1.3b"].shape,
        replace(two(1, 2, NONE, distributed=1), flash_attention=True),
        (19009,), (1_315_819_520,), (15005.30, 3646.14),
    ),
    Run(
        "16 experts of SwiGLU, EP 2", SIXTEEN, two(4, 8, NONE, expert=2),
        (15010,), (455_566_336,), (13000.94, 2138.88),
    ),
]  # fmt: skip
SMALL = Run(
    "125m, micro batch 16", PRESETS["125m"].shape, one(16, 32, NONE),
    (23806,), (124_475_904,), (2121.85, 6829.33),
)  # fmt: skip
RUNS = [*FIRST, *LATER, SMALL]
NAMES = [run.name for run in RUNS]


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_the_parameters_of_a_rank_are_megatrons_to_the_last_one(run: Run) -> None:
    counted = [parameters.on_stage(run.shape, run.layout, each).total for each in range(2)]
    assert tuple(counted[: run.layout.pipeline]) == run.parameters


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_the_line_of_its_report_is_what_it_printed(run: Run) -> None:
    output = footprint(run.shape, run.layout)
    assert (round(output.weight_and_optimizer, 2), round(output.activation, 2)) == run.printed


def planned(run: Run) -> list[float]:
    """What torch is to allocate on each stage."""
    stages = memory.all_stages(run.shape, run.layout)
    return [(each.total - each.allocator - each.runtime) / memory.MIB for each in stages]


@pytest.mark.parametrize("run", FIRST, ids=[run.name for run in FIRST])
def test_the_memory_of_the_first_runs_is_met_within_4_percent(run: Run) -> None:
    assert planned(run) == pytest.approx(run.allocated, rel=0.04)


@pytest.mark.parametrize("run", LATER, ids=[run.name for run in LATER])
def test_the_memory_of_the_later_runs_is_met_within_3_percent(run: Run) -> None:
    assert planned(run) == pytest.approx(run.allocated, rel=0.03)


def test_a_small_model_with_many_logits_is_overcounted() -> None:
    """A quarter of it are logits, and at the peak they had less than 8 bytes each here."""
    (output,) = planned(SMALL)
    assert 1.05 < output / SMALL.allocated[0] < 1.07


STEPS = [(FIRST[3], 366.5), (LATER[0], 576.6), (LATER[1], 315.0)]


@pytest.mark.parametrize(("run", "milliseconds"), STEPS, ids=[run.name for run, _ in STEPS])
def test_a_step_of_one_gpu_with_flash_attention_is_met_within_a_sixth(
    run: Run, milliseconds: float
) -> None:
    output = speed.step_seconds(run.shape, run.layout, Cluster(Machine(H200, 1), 1))
    assert output == pytest.approx(milliseconds / 1000, rel=1 / 6)
