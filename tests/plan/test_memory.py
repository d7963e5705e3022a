# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Memory by part: the effect of each option of Megatron."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.plan import memory, parameters
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS, Experts, ModelShape
from mwatch.plan.stages import bubble, in_flight

GPT = PRESETS["7.5B"].shape
PLAIN = ParallelLayout(8, 2, 2, global_batch=16)


def first(shape: ModelShape, layout: ParallelLayout) -> memory.StageMemory:
    return memory.stage(shape, layout, 0)


def test_18_bytes_a_parameter_without_the_distributed_optimizer() -> None:
    found = first(GPT, replace(PLAIN, distributed_optimizer=False))
    states = found.weights + found.gradients + found.optimizer
    assert states == 18 * found.parameters


def test_the_distributed_optimizer_cuts_12_of_them_over_dp_and_cp() -> None:
    assert first(GPT, PLAIN).optimizer == 12 * first(GPT, PLAIN).parameters / 2
    wide = ParallelLayout(16, 2, 2, 2, global_batch=16)
    assert first(GPT, wide).optimizer == 12 * first(GPT, wide).parameters / 4


def test_context_parallelism_halves_activations_and_keeps_weights() -> None:
    one, two = ParallelLayout(2, global_batch=2), ParallelLayout(2, context=2, global_batch=1)
    assert first(GPT, two).activations == pytest.approx(first(GPT, one).activations / 2)
    assert first(GPT, two).weights == first(GPT, one).weights


def test_full_recomputation_keeps_inputs_and_one_layer() -> None:
    layout = ParallelLayout(1, recompute=Recompute.FULL)
    unit = 2048 * 4096
    assert memory.layers_bytes(GPT, layout, 0, 1.0) == unit * 2 * 36
    assert memory.recomputed(GPT, layout, 0) == unit * 34


def test_no_layer_is_computed_again_while_the_logits_are_there() -> None:
    """As on an H200: gpt2-xl with full recomputation had 1.4 GiB less than their sum."""
    layout = ParallelLayout(1, recompute=Recompute.FULL, flash_attention=False)
    again = memory.recomputed(GPT, layout, 0)
    small, large = (first(replace(GPT, vocabulary=each), layout) for each in (1000, 500_000))
    assert small.loss == 0 and small.activations > again
    assert large.loss > 0 and large.activations + large.loss < again + 8 * 2048 * 500_224


def test_a_layer_computed_again_has_its_scores_once() -> None:
    slow = ParallelLayout(1, recompute=Recompute.SELECTIVE, flash_attention=False)
    scores = 32 * 2048**2
    assert memory.recomputed(GPT, slow, 0) == 5 * scores
    assert memory.score_buffer(GPT, slow) == 2 * scores
    assert memory.recomputed(GPT, replace(slow, flash_attention=True), 0) == 0


def test_an_expert_keeps_one_more_copy_unless_it_is_gated() -> None:
    experts = Experts(8, 2, ffn=4096)
    layout = ParallelLayout(1)
    unit = 2048 * 4096
    plain, gated = (
        memory.layer_bytes(replace(GPT, experts=experts, gated=each), layout, with_experts=True)
        for each in (False, True)
    )
    # 10 for norms and masks, 8 of attention; each of 2 experts 2 for its tokens and 3 x 2.
    assert plain == gated == unit * (10 + 8 + 2 * (2 + 6))


def test_the_first_stage_is_not_always_the_fullest() -> None:
    layout = ParallelLayout(8, 1, 8, global_batch=64, first_layers=1)
    short = replace(GPT, layers=36)
    stages_of = memory.all_stages(short, layout)
    assert memory.fullest(short, layout) == stages_of[1] == max(stages_of, key=lambda s: s.total)


def test_scores_are_kept_only_without_flash_attention_and_recomputation() -> None:
    slow = ParallelLayout(1, recompute=Recompute.NONE, flash_attention=False)
    extra = memory.layer_bytes(GPT, slow, with_experts=False)
    extra -= memory.layer_bytes(GPT, ParallelLayout(1), with_experts=False)
    assert extra == 5 * 32 * 2048**2


def test_parts_add_up_and_the_model_is_spread_over_its_stages() -> None:
    stages = memory.all_stages(GPT, ParallelLayout(16, 2, 4, global_batch=16))
    assert [each.stage for each in stages] == [0, 1, 2, 3]
    assert stages[0].total == sum(stages[0].parts.values())
    held = 2 * sum(each.parameters for each in stages)
    embedding = GPT.padded_vocabulary(2) * GPT.hidden
    # The last stage has a copy of the embedding; norms and some biases are on both TP ranks.
    assert held == pytest.approx(parameters.total(GPT, 2) + embedding, rel=0.002)


def test_experts_are_cut_by_ep_and_their_optimizer_by_their_own_dp() -> None:
    mixture = replace(GPT, layers=4, experts=Experts(8, 2, ffn=4096))
    whole = parameters.on_stage(mixture, ParallelLayout(8), 0)
    cut = parameters.on_stage(mixture, ParallelLayout(8, expert=8), 0)
    assert (cut.dense, cut.expert) == (whole.dense, whole.expert // 8)
    found = first(mixture, ParallelLayout(8, expert=8, global_batch=8))
    assert found.optimizer == 12 * (cut.dense / 8 + cut.expert)


def test_experts_in_every_second_layer() -> None:
    mixture = replace(GPT, experts=Experts(8, every=2))
    assert [mixture.rich_layers(each, 3) for each in (0, 1, 2)] == [2, 1, 2]
    assert parameters.active(mixture) < parameters.total(mixture)
    assert parameters.active(replace(mixture, experts=Experts(2, 2))) == parameters.total(
        replace(mixture, experts=Experts(2, 2))
    )


def test_a_gated_layer_and_grouped_keys_change_the_count() -> None:
    llama = ModelShape(
        32, 4096, 32, 4096, 128256, ffn=14336, groups=8, gated=True, bias=False,
        learned_positions=False, rms_norm=True, tied=False,
    )  # fmt: skip
    # Llama 3 8B, as its authors count it: 8,030,261,248; our vocabulary is already even.
    assert parameters.total(llama) == 8_030_261_248


@pytest.mark.parametrize(
    ("layout", "stage", "expected"),
    [
        (ParallelLayout(4, 1, 4, global_batch=8), 0, 4.0),
        (ParallelLayout(4, 1, 4, global_batch=8), 3, 1.0),
        (ParallelLayout(4, 1, 4, global_batch=2), 0, 2.0),
        (ParallelLayout(4, 1, 4, virtual=2, global_batch=8), 0, 5.5),
        (ParallelLayout(1), 0, 1.0),
    ],
)
def test_micro_batches_in_flight(layout: ParallelLayout, stage: int, expected: float) -> None:
    assert in_flight(layout, stage) == expected


def test_the_bubble_shrinks_with_micro_batches_and_with_chunks() -> None:
    assert bubble(ParallelLayout(4, 1, 4, global_batch=9)) == pytest.approx(0.25)
    assert bubble(ParallelLayout(4, 1, 4, virtual=3, global_batch=9)) == pytest.approx(0.1)
    assert bubble(ParallelLayout(4, global_batch=9)) == 0.0


def test_fsdp_cuts_every_state_over_all_gpus() -> None:
    shape = PRESETS["mpt-7b"].shape
    few, many = (ParallelLayout(each, fully_sharded=True, global_batch=each) for each in (8, 64))
    assert first(shape, few).optimizer == 8 * first(shape, many).optimizer
    assert first(shape, many).weights < first(shape, few).weights / 3
