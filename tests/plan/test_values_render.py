# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The values of a plan go through the real chart, and Megatron gets the layout of the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chart_renders import MEGATRON, NO_HELM, arguments, helm, only, rendered
from mwatch.cli.main import app

pytestmark = pytest.mark.skipif(helm() is None, reason=NO_HELM)

PLANS = [
    "175b --instance Standard_ND96isr_H100_v5 --nodes 64",
    "13b --instance p4d.24xlarge --nodes 2",
    "7.5B --instance Standard_ND96amsr_A100_v4 --nodes 2 --pp 2 --vpp 2",
    "30b --instance p4d.24xlarge --nodes 4 --recompute full --tp 4 --pp 4",
    "--layers 32 --hidden 4096 --heads 32 --seq 4096 --llama --groups 8 --ffn 14336 "
    "--vocab 128256 --experts 8 --ep 4 --instance p5.48xlarge --nodes 4",
    "gpt2-xl --gpus 8 --gpu-memory 80",
]


@pytest.mark.parametrize("words", PLANS)
def test_the_chart_takes_the_values_as_they_were_meant(words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    done = CliRunner().invoke(app, ["plan", *words.split(), "--json", "--values", str(path)])
    assert done.exit_code == 0, done.output
    layout = json.loads(done.output)["layout"]
    argv = arguments(only(rendered(MEGATRON, "-f", str(path)), "PyTorchJob"))

    def number(flag: str) -> int:
        return int(argv[argv.index(flag) + 1]) if flag in argv else 1

    assert number("--tensor-model-parallel-size") == layout["tensor"]
    assert number("--pipeline-model-parallel-size") == layout["pipeline"]
    assert number("--context-parallel-size") == layout["context"]
    assert number("--expert-model-parallel-size") == layout["expert"]
    assert number("--micro-batch-size") == layout["micro_batch"]
    assert number("--global-batch-size") == layout["global_batch"]
    assert ("--num-layers-per-virtual-pipeline-stage" in argv) == (layout["virtual"] is not None)
    if layout["recompute"] == "full":
        assert argv[argv.index("--recompute-granularity") + 1] == "full"
