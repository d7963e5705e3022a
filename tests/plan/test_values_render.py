# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The values of a plan render with the real chart, and Megatron gets the planned layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mwatch.cli.program import program
from support.repository.chart_renders import MEGATRON, NO_HELM, arguments, helm, only, rendered
from support.repository.json_schema import read_json

pytestmark = pytest.mark.skipif(helm() is None, reason=NO_HELM)

PLANS = [
    "175b --instance Standard_ND96isr_H100_v5 --nodes 64",
    "13b --instance p4d.24xlarge --nodes 2",
    "7.5B --instance Standard_ND96amsr_A100_v4 --nodes 2 --pp 2 --vpp 2",
    "30b --instance p4d.24xlarge --nodes 4 --recompute full --tp 4 --pp 4",
    "--layers 32 --hidden 4096 --heads 32 --seq 4096 --llama --groups 8 --ffn 14336 "
    "--vocab 128256 --experts 8 --ep 4 --instance p5.48xlarge --nodes 4",
    "gpt2-xl --gpus 8 --gpu-memory 80",
    "--layers 126 --hidden 16384 --heads 128 --groups 8 --ffn 53248 --llama --vocab 128256 "
    "--seq 8192 --instance p5.48xlarge --nodes 256 --tp 8 --pp 16",
    "--layers 26 --hidden 2048 --heads 16 --seq 2048 --instance p5.48xlarge --pp 4 --vpp 2 "
    "--first-stage-layers 6 --last-stage-layers 4",
    "--layers 24 --hidden 2048 --heads 16 --seq 2048 --head-size 256 --llama --experts 16 "
    "--top-k 1 --moe-ffn 1024 --shared-ffn 2048 --moe-every 2 --no-flash-attention "
    "--no-distributed-optimizer --instance Standard_ND96isr_H200_v5 --nodes 2",
]
SWITCHES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "--sequence-parallel": lambda layout: layout["sequence_parallel"] and layout["tensor"] > 1,
    "--use-distributed-optimizer": lambda layout: layout["distributed_optimizer"],
    "--moe-router-pre-softmax": lambda layout: layout["top_k"] == 1,
}


def wanted(value: object, unless: object = None) -> str | None:
    return None if value is None or value == unless else str(value)


def of_the_model(model: dict[str, Any]) -> dict[str, str | None]:
    experts = model["experts"] or {}
    return {
        "--num-layers": wanted(model["layers"]),
        "--hidden-size": wanted(model["hidden"]),
        "--num-attention-heads": wanted(model["heads"]),
        "--seq-length": wanted(model["sequence"]),
        "--ffn-hidden-size": wanted(model["ffn"]),
        "--num-query-groups": wanted(model["groups"]),
        "--kv-channels": wanted(model["head_size"]),
        "--num-experts": wanted(experts.get("count")),
        "--moe-router-topk": wanted(experts.get("top_k")),
        "--moe-ffn-hidden-size": wanted(experts.get("ffn")),
        "--moe-shared-expert-intermediate-size": wanted(experts.get("shared_ffn"), 0),
        "--moe-layer-freq": wanted(experts.get("every"), 1),
    }


def of_the_layout(layout: dict[str, Any], layers: int) -> dict[str, str | None]:
    chunks, is_uneven = layout["virtual"], layout["first_layers"] is not None
    chunk = layers // (layout["pipeline"] * chunks) if chunks and not is_uneven else None
    return {
        "--tensor-model-parallel-size": wanted(layout["tensor"]),
        "--pipeline-model-parallel-size": wanted(layout["pipeline"], 1),
        "--context-parallel-size": wanted(layout["context"], 1),
        "--expert-model-parallel-size": wanted(layout["expert"], 1),
        "--micro-batch-size": wanted(layout["micro_batch"]),
        "--global-batch-size": wanted(layout["global_batch"]),
        "--num-layers-per-virtual-pipeline-stage": wanted(chunk),
        "--num-virtual-stages-per-pipeline-rank": wanted(chunks if is_uneven else None),
        "--decoder-first-pipeline-num-layers": wanted(layout["first_layers"]),
        "--decoder-last-pipeline-num-layers": wanted(layout["last_layers"]),
        "--recompute-granularity": wanted(layout["recompute"], "none"),
        "--attention-backend": None if layout["flash_attention"] else "unfused",
    }


@pytest.mark.parametrize("words", PLANS)
def test_the_chart_takes_the_values_as_they_were_meant(words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    done = CliRunner().invoke(program(), ["plan", *words.split(), "--json", "--values", str(path)])
    assert done.exit_code == 0, done.output
    found = read_json(done.output, "plan")
    layout, model = found["layout"], found["model"]
    argv = arguments(only(rendered(MEGATRON, "-f", str(path)), "PyTorchJob"))

    def output(flag: str) -> str | None:
        return argv[argv.index(flag) + 1] if flag in argv else None

    expected = {**of_the_model(model), **of_the_layout(layout, model["layers"])}
    assert {flag: output(flag) for flag in expected} == expected
    known = {**layout, "top_k": (model["experts"] or {}).get("top_k")}
    for flag, is_on in SWITCHES.items():
        assert (flag in argv) == is_on(known), flag
    steps = found["saves"][0]["background"]["interval_steps"]
    assert steps is None or output("--save-interval") == str(steps)
