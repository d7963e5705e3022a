# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Our figures against those of Megatron's own function, on every preset.

golden_memory.json names the release that made it; make_golden.py shows how.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mwatch.plan import memory
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.memory import footprint, unlisted
from mwatch.plan.shape import PRESETS, ModelShape
from plan.golden_shapes import ALL

GOLDEN = json.loads(Path(__file__).with_name("golden_memory.json").read_text("utf-8"))
ROWS: list[dict[str, Any]] = GOLDEN["rows"]


def name_of(row: dict[str, Any]) -> str:
    kind = "sp" if row["sequence_parallel"] else "plain"
    return f"{row['preset']}-tp{row['tensor']}-pp{row['pipeline']}-{kind}-{row['microbatches']}"


def layout_of(row: dict[str, Any]) -> ParallelLayout:
    return ParallelLayout(
        world=row["tensor"] * row["pipeline"] * row["data"],
        tensor=row["tensor"],
        pipeline=row["pipeline"],
        virtual=row["virtual"],
        micro_batch=row["micro"],
        global_batch=row["micro"] * row["microbatches"] * row["data"],
        recompute=Recompute(row["recompute"] or "none"),
        sequence_parallel=row["sequence_parallel"],
        distributed_optimizer=row["distributed_optimizer"],
    )


def test_every_preset_is_in_the_golden_table() -> None:
    assert {row["preset"] for row in ROWS} == set(ALL)
    assert GOLDEN["made_by"]["tag"] == "core_v0.16.1"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_we_say_what_megatron_would_print(row: dict[str, Any]) -> None:
    output = footprint(ALL[row["preset"]].shape, layout_of(row))
    assert output.weight_and_optimizer == pytest.approx(row["weight_and_optimizer"], rel=1e-4)
    assert output.activation == pytest.approx(row["activation"], rel=1e-4)
    assert output.total == pytest.approx(row["total"], rel=1e-4)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_our_own_weights_gradients_and_optimizer_are_within_5_percent(row: dict[str, Any]) -> None:
    """Ours count biases and positions too."""
    first = memory.stage(ALL[row["preset"]].shape, layout_of(row), 0)
    fixed = (first.weights + first.gradients + first.optimizer) / memory.MIB
    assert fixed == pytest.approx(row["weight_and_optimizer"], rel=0.05)


SEEN = [row for row in ROWS if not unlisted(ALL[row["preset"]].shape, layout_of(row))]


@pytest.mark.parametrize("row", SEEN, ids=name_of)
def test_our_own_activations_are_within_5_percent_of_megatrons(row: dict[str, Any]) -> None:
    """Of all layouts of which the report sees everything; the 5 % that it adds to one of its two
    sums is our part `allocator`."""
    first = memory.stage(ALL[row["preset"]].shape, layout_of(row), 0)
    fixed = (first.weights + first.gradients + first.optimizer) / memory.MIB
    kept = first.activations / memory.MIB
    assert kept == pytest.approx(row["activation"], rel=0.05)
    assert fixed + kept == pytest.approx(row["total"], rel=0.05)


def test_every_preset_is_held_against_the_report_whole() -> None:
    assert {row["preset"] for row in SEEN} >= set(PRESETS)
    kinds = {(row["recompute"], row["distributed_optimizer"], row["virtual"]) for row in SEEN}
    assert {("selective", True, None), (None, False, None), ("selective", True, 2)} <= kinds


BLIND = [
    (
        PRESETS["13b"].shape,
        ParallelLayout(8, 8, recompute=Recompute.NONE),
        ("sequence parallelism",),
    ),
    (
        PRESETS["13b"].shape,
        ParallelLayout(8, context=8, recompute=Recompute.FULL),
        ("full recomputation", "CP"),
    ),
    (PRESETS["13b"].shape, ParallelLayout(8, 8, recompute=Recompute.SELECTIVE), ()),
    (
        ALL["experts"].shape,
        ParallelLayout(8, expert=8, flash_attention=False, recompute=Recompute.NONE),
        ("EP", "scores of attention", "activations of experts"),
    ),
]


@pytest.mark.parametrize(("shape", "layout", "words"), BLIND)
def test_what_the_report_does_not_count_is_named(
    shape: ModelShape, layout: ParallelLayout, words: tuple[str, ...]
) -> None:
    assert unlisted(shape, layout) == words
