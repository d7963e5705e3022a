# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Random shapes and options: a plan never crashes, and Megatron accepts what it returns.

The conditions are repeated here from Megatron's `arguments.py` and `transformer_config.py` of
core_v0.16.1, without using `mwatch.plan.check`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from mwatch.cli.plan import render
from mwatch.model.machines import MACHINES, Cluster, GpuModel, Machine
from mwatch.plan import check, memory, stages, storage
from mwatch.plan.choose import Fixed, candidates, choose
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.report import CapacityPlan, PlanRequest, make, plan_json
from mwatch.plan.shape import Experts, ModelShape

MANY = range(100)


def some_shape(chance: random.Random) -> ModelShape:
    heads = chance.choice([1, 3, 8, 12, 25, 32, 40, 64, 96, 128])
    channels = chance.choice([16, 64, 80, 128])
    experts = None
    if chance.random() < 0.3:
        count = chance.choice([2, 7, 8, 64])
        experts = Experts(count, chance.choice([1, 2]), chance.choice([None, 512, 2048]))
        experts = replace(
            experts, shared_ffn=chance.choice([0, 1024]), every=chance.choice([1, 2, 3])
        )
    return ModelShape(
        chance.choice([1, 2, 7, 12, 24, 36, 61, 80, 96, 126]),
        heads * channels + chance.choice([0, 0, 0, 0, 1]),
        heads,
        chance.choice([1, 127, 512, 1024, 2048, 8192, 131072]),
        chance.choice([100, 32000, 50257, 128256]),
        groups=chance.choice([None, None, 1, 2, 8, 5]),
        ffn=chance.choice([None, None, 11008, 13653]),
        head_size=chance.choice([None, None, None, 128]),
        gated=chance.random() < 0.5,
        tied=chance.random() < 0.5,
        experts=experts,
    )


def some_cluster(chance: random.Random) -> Cluster:
    nodes = chance.choice([1, 1, 2, 3, 5, 8, 16, 64])
    if chance.random() < 0.5:
        name = chance.choice(sorted(MACHINES))
        return Cluster(MACHINES[name], nodes, name)
    gpu = GpuModel("GPU", chance.choice([1024, 24000, 81920, 200000]))
    return Cluster(Machine(gpu, chance.choice([1, 2, 3, 4, 6, 8, 16])), nodes)


def some_request(chance: random.Random) -> Fixed:
    def maybe(*values: int) -> int | None:
        return chance.choice(values) if chance.random() < 0.25 else None

    return Fixed(
        maybe(1, 2, 3, 8, 1000),
        maybe(1, 2, 4, 5, 8, 64),
        maybe(1, 2, 3),
        maybe(1, 2, 8),
        maybe(1, 2, 3),
        maybe(1, 3, 64),
        maybe(1, 100, 1024, 10**9),
        chance.choice([None, None, *Recompute]),
        chance.random() < 0.8,
        chance.random() < 0.8,
        chance.random() < 0.8,
        first_layers=maybe(1, 3, 7, 500),
        last_layers=maybe(1, 3, 7, 500),
    )


def refused_by_megatron(shape: ModelShape, layout: ParallelLayout) -> list[str]:
    world, tensor, pipeline = layout.world, layout.tensor, layout.pipeline
    data, left = divmod(world, tensor * pipeline * layout.context)
    groups = shape.groups or shape.heads
    rules = {
        "world size": left == 0,
        "heads": shape.heads % tensor == 0,
        "groups": groups % tensor == 0 or tensor % groups == 0,
        "groups of heads": shape.heads % groups == 0,
        "head size": shape.head_size is not None or shape.hidden % shape.heads == 0,
        "MLP": (shape.ffn or 4 * shape.hidden) % tensor == 0,
        "sequence": not (layout.sequence_parallel and tensor > 1)
        or shape.sequence // layout.context % tensor == 0,
        "context": layout.context == 1 or shape.sequence % (2 * layout.context) == 0,
        "batch": data > 0 and layout.global_batch % (layout.micro_batch * max(data, 1)) == 0,
        "stages": sum(layers_by_hand(shape, layout)) == shape.layers,
        "empty stage": min(layers_by_hand(shape, layout)) > 0,
    }
    if layout.virtual is not None:
        count = layout.global_batch // (layout.micro_batch * max(data, 1))
        rules["chunks"] = all(each % layout.virtual == 0 for each in layers_by_hand(shape, layout))
        rules["interleaved"] = pipeline > 1 and count % pipeline == 0
    if shape.experts is not None:
        rules["experts"] = shape.experts.count % layout.expert == 0
        rules["expert ranks"] = world % (tensor * layout.expert * pipeline) == 0
        rules["experts in TP"] = tensor == 1 or layout.sequence_parallel
    else:
        rules["no experts"] = layout.expert == 1
    return [name for name, holds in rules.items() if not holds]


def layers_by_hand(shape: ModelShape, layout: ParallelLayout) -> list[int]:
    ends = [layout.first_layers, layout.last_layers]
    middle = layout.pipeline - sum(each is not None for each in ends)
    rest = shape.layers - sum(each or 0 for each in ends)
    each = [rest // middle] * middle if middle > 0 else []
    first = [] if ends[0] is None else [ends[0]]
    return [*first, *each, *([] if ends[1] is None else [ends[1]])]


@cache
def made(seed: int) -> CapacityPlan:
    chance = random.Random(seed)
    shape, cluster, fixed = some_shape(chance), some_cluster(chance), some_request(chance)
    return make(PlanRequest("custom", shape, cluster, fixed, storage.usual_stores("aws")))


@pytest.mark.parametrize("seed", MANY)
def test_a_plan_that_works_is_one_that_megatron_accepts_and_that_fits(seed: int) -> None:
    plan = made(seed)
    assert render(plan)
    assert plan_json(plan)["works"] is plan.works
    shape, cluster = plan.request.shape, plan.request.cluster
    if plan.works:
        assert refused_by_megatron(shape, plan.layout) == []
        most = max(each.total for each in plan.stages)
        assert most == memory.fullest(shape, plan.layout).total <= cluster.memory_bytes
        for name, wanted in plan.request.fixed._asdict().items():
            if wanted is not None:
                is_plain = name == "virtual" and wanted == 1
                assert getattr(plan.layout, name) == (None if is_plain else wanted), name
    else:
        assert all(each.what and each.fix for each in plan.problems)


@pytest.mark.parametrize("seed", MANY)
def test_what_would_work_does(seed: int) -> None:
    plan = made(seed)
    if plan.other is None:
        assert plan.nodes is None
        return
    cluster = plan.request.cluster
    cluster = cluster if plan.nodes is None else cluster._replace(nodes=plan.nodes)
    assert plan.other.world == cluster.world
    assert refused_by_megatron(plan.request.shape, plan.other) == []
    output = check.problems(plan.request.shape, plan.other, cluster)
    assert all(each.level == "warning" for each in output)


@pytest.mark.parametrize("seed", range(40))
def test_the_checker_and_megatrons_conditions_agree_on_any_layout(seed: int) -> None:
    chance = random.Random(seed)
    agreed = 0
    for _ in range(50):
        shape, cluster = some_shape(chance), some_cluster(chance)
        sizes = [chance.choice([1, 1, 2, 3, 4]) for _ in range(4)]
        layout = ParallelLayout(
            cluster.world,
            tensor=sizes[0],
            pipeline=sizes[1],
            context=sizes[2],
            expert=sizes[3],
            virtual=chance.choice([None, None, 2]),
            micro_batch=chance.choice([1, 2]),
            global_batch=chance.choice([1, 24, 768]),
            sequence_parallel=chance.random() < 0.5,
            first_layers=chance.choice([None, None, None, 1, 3, 40]),
            last_layers=chance.choice([None, None, None, 1, 3, 40]),
        )
        if layout.is_uneven and layout.pipeline == 1:
            continue
        shape = replace(shape, max_positions=shape.sequence)
        assert check.holds(shape, layout) == (not refused_by_megatron(shape, layout)), layout
        agreed += 1
    assert agreed > 20


@pytest.mark.parametrize("seed", range(12))
def test_the_chosen_layout_is_one_of_all_and_no_smaller_cluster_was_overlooked(seed: int) -> None:
    chance = random.Random(1000 + seed)
    shape, cluster = some_shape(chance), some_cluster(chance)
    every = list(candidates(shape, cluster, Fixed()))
    found = choose(shape, cluster, Fixed())
    most = cluster.memory_bytes * 0.95
    fitting = [each for each in every if memory.fullest(shape, each).total <= most]
    assert (found is None) == (not fitting)
    assert found is None or found in fitting


def test_stages_add_up_to_the_model_however_it_is_cut() -> None:
    chance = random.Random(5)
    seen = 0
    for _ in range(2000):
        shape = some_shape(chance)
        pipeline = chance.choice([1, 2, 3, 4, 8])
        layout = ParallelLayout(
            pipeline * 4, 1, pipeline,
            virtual=chance.choice([None, 2]) if pipeline > 1 else None,
            global_batch=pipeline * 4,
            first_layers=chance.choice([None, 2, 4]) if pipeline > 1 else None,
            last_layers=chance.choice([None, 2, 4]) if pipeline > 1 else None,
        )  # fmt: skip
        if not check.holds(shape, layout):
            continue
        held = [stages.held(shape, layout, each) for each in range(pipeline)]
        assert sum(each.layers for each in held) == shape.layers
        assert sum(each.rich for each in held) == shape.rich_layers(0, shape.layers)
        seen += 1
    assert seen > 200
