# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A layout is found if there is one, and it works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.model.machines import MACHINES, Cluster
from mwatch.plan import check, memory
from mwatch.plan.choose import Fixed, choose, smallest
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS, Experts

H100 = MACHINES["Standard_ND96isr_H100_v5"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_laid_out_on_64_machines_without_a_problem(name: str) -> None:
    cluster = Cluster(H100, 64)
    found = choose(PRESETS[name].shape, cluster, Fixed())
    assert found is not None
    assert check.problems(PRESETS[name].shape, found, cluster) == ()
    assert found.tensor <= 8


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("mpt")])
def test_the_documents_own_layout_of_each_preset_works_on_its_least_machines(name: str) -> None:
    preset = PRESETS[name]
    nodes = -(-preset.tensor * preset.pipeline // 8)
    cluster = Cluster(H100, nodes)
    fixed = Fixed(preset.tensor, preset.pipeline)
    found = choose(preset.shape, cluster, fixed)
    if name in ("7.5B", "18.4B", "39.1B", "76.1B", "145.6B", "310.1B"):
        # The paper's rows are for many more GPUs, and for 80 GB filled to the brim.
        found = found or choose(preset.shape, Cluster(H100, 8 * nodes), fixed)
    assert found is not None
    assert (found.tensor, found.pipeline) == (preset.tensor, preset.pipeline)


def test_what_is_fixed_stays_fixed() -> None:
    fixed = Fixed(4, 2, micro_batch=2, global_batch=512, recompute=Recompute.FULL, virtual=2)
    found = choose(PRESETS["13b"].shape, Cluster(H100, 4), fixed)
    assert found is not None
    assert (found.tensor, found.pipeline, found.virtual) == (4, 2, 2)
    assert (found.micro_batch, found.global_batch, found.recompute) == (2, 512, Recompute.FULL)


def test_a_small_model_needs_no_model_parallelism() -> None:
    found = choose(PRESETS["345m"].shape, Cluster(H100, 2), Fixed())
    assert found is not None
    assert (found.tensor, found.pipeline, found.data) == (1, 1, 16)
    assert found.recompute is not Recompute.FULL


def test_175b_fits_on_no_two_machines_and_the_smallest_number_is_reported() -> None:
    shape, two = PRESETS["175b"].shape, Cluster(H100, 2)
    assert choose(shape, two, Fixed()) is None
    assert smallest(shape, two, Fixed()) == 6
    assert smallest(shape, two, Fixed(), most_nodes=4) is None


def test_a_long_sequence_may_be_cut_by_context_parallelism() -> None:
    long = replace(PRESETS["7.5B"].shape, sequence=131072)
    found = choose(long, Cluster(H100, 8), Fixed(global_batch=64))
    assert found is not None
    assert found.context > 1
    assert memory.fullest(long, found).total < Cluster(H100, 8).memory_bytes


def test_experts_are_spread_where_they_do_not_fit() -> None:
    mixture = replace(PRESETS["7.5B"].shape, experts=Experts(64, 2, ffn=4096))
    found = choose(mixture, Cluster(H100, 8), Fixed())
    assert found is not None
    assert found.expert > 1
    assert check.problems(mixture, found, Cluster(H100, 8)) == ()


def test_fsdp_leaves_only_the_batch_and_recomputation_open() -> None:
    found = choose(PRESETS["mpt-30b"].shape, Cluster(H100, 16), Fixed(fully_sharded=True))
    assert found is not None
    assert found.text == "FSDP 128"
    assert found.model == 1


def test_what_a_layout_is_called() -> None:
    full = ParallelLayout(128, 4, 2, 2, 8, 2, sequence_parallel=False, distributed_optimizer=False)
    assert full.described == (
        "TP 4 PP 2 CP 2 EP 8 VPP 2 DP 8, recompute selective, no sequence parallelism, "
        "no distributed optimizer"
    )
