# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers that the users' documents give."""

from __future__ import annotations

import pytest

from mwatch.model.machines import MACHINES, Cluster, find
from mwatch.plan import parameters, storage
from mwatch.plan.choose import Fixed, choose, usual_batch
from mwatch.plan.layout import ParallelLayout
from mwatch.plan.shape import PRESETS

H100 = MACHINES["Standard_ND96isr_H100_v5"]


def test_a_checkpoint_of_175b_is_the_2_3_tib_of_the_document_within_4_percent() -> None:
    size = storage.size(PRESETS["175b"].shape, ParallelLayout(512, 8, 16))
    assert size / storage.TIB == pytest.approx(2.3, rel=0.04)


AMLFS = [
    ("amlfs-40", 480, 19.2, 2.04),
    ("amlfs-125", 512, 64, 0.61),
    ("amlfs-250", 512, 128, 0.31),
    ("amlfs-500", 512, 256, 0.15),
]


@pytest.mark.parametrize(("tier", "tib", "gbytes", "minutes"), AMLFS)
def test_the_table_of_amlfs(tier: str, tib: float, gbytes: float, minutes: float) -> None:
    """It divides 2.3 TiB, written as 2355 GB, by the bandwidth; our own size is 4 % more."""
    store = storage.store(storage.TIERS[tier])
    assert store.tib == tib
    assert store.gbytes == pytest.approx(gbytes)
    assert round(store.seconds(2.3 * 1024 * 1e9) / 60, 2) == minutes
    ours = storage.size(PRESETS["175b"].shape, ParallelLayout(512, 8, 16))
    assert store.seconds(ours) / 60 == pytest.approx(minutes, rel=0.07)


def test_a_small_file_system_of_the_same_tier_is_slower_by_its_size() -> None:
    assert storage.store(storage.TIERS["amlfs-125"], 16).gbytes == 2.0


@pytest.mark.parametrize(("gpus", "batch"), [(512, 8192), (16, 256), (128, 2048)])
def test_the_global_batch_is_16_for_each_gpu(gpus: int, batch: int) -> None:
    assert usual_batch(gpus, 1) == batch
    found = choose(PRESETS["1.3b"].shape, Cluster(H100, gpus // 8), Fixed())
    assert found is not None and found.global_batch == batch


def test_a_batch_that_does_not_divide_is_rounded_up() -> None:
    assert usual_batch(24, 9) == 387


def test_the_parameters_of_a_rank_are_those_that_megatron_printed() -> None:
    """7.5B at TP 8 PP 1, in the log of the document about HyperPod."""
    held = parameters.on_stage(PRESETS["7.5B"].shape, ParallelLayout(8, 8), 0)
    assert held.total == 941_594_624


def test_the_parameters_of_gpt2_large_are_those_that_megatron_printed() -> None:
    """0.77 billion; the log of the GPU box leaves out biases and positions."""
    assert parameters.total(PRESETS["gpt2-large"].shape) / 1e9 == pytest.approx(0.7724, rel=0.003)


SIZES = [("175b", 174.6), ("30b", 30.0), ("13b", 12.8), ("1.3b", 1.31), ("857m", 0.35)]
SIZES += [("375m", 0.06), ("125m", 0.12), ("1.7B", 1.7), ("3.6B", 3.6), ("7.5B", 7.5)]
SIZES += [("18.4B", 18.4), ("39.1B", 39.1), ("76.1B", 76.1), ("145.6B", 145.6), ("310.1B", 310.1)]


@pytest.mark.parametrize(("name", "billions"), SIZES)
def test_the_size_of_a_preset_comes_from_its_shape(name: str, billions: float) -> None:
    found = parameters.total(PRESETS[name].shape) / 1e9
    assert found == pytest.approx(billions, rel=0.03, abs=0.006)


def test_7b_has_98_gb_by_the_rule_of_14_bytes() -> None:
    shape = PRESETS["mpt-7b"].shape
    size = storage.size(shape, ParallelLayout(16, 2))
    assert size == 14 * parameters.total(shape, 2)
    assert size / 1e9 == pytest.approx(98, rel=0.06)


@pytest.mark.parametrize("name", ["p5.48xlarge", "ml.p5.48xlarge", "ML.P5.48xlarge"])
def test_hyperpods_prefix_may_be_there(name: str) -> None:
    assert find(name) == ("p5.48xlarge", MACHINES["p5.48xlarge"])
    assert find("nd96isr_h100_v5") == ("Standard_ND96isr_H100_v5", H100)
    assert find("t2.micro") is None
