# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The templates for HyperPod: filled in by their own script, and made from the chart.

`pytorchjob` has the chart's content with variables in the place of values, so it is made by
machine: `MWATCH_GOLDEN=1 python -m pytest tests/megatron_chart/test_hyperpod.py` writes it anew.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

from support.repository.chart_renders import (
    CHARTS,
    MEGATRON,
    objects_in,
    rendered_text,
    sets,
    values_file,
)

FOLDER = CHARTS.parent / "hyperpod"
TEMPLATES = ("getdata", "prepdata", "pytorchjob")
SETTINGS = {
    "IMAGE": "megatron-lm:core_v0.16.1",
    "MWATCH_IMAGE": "mwatch:0.1.0",
    "CLAIM": "fsx-claim",
    "INSTANCE_TYPE": "ml.p5.48xlarge",
    "GPU_PER_NODE": "8",
    "EFA_PER_NODE": "32",
    "NUM_NODES": "2",
    "TENSOR_PARALLEL": "4",
    "PIPELINE_PARALLEL": "2",
    "NUM_LAYERS": "36",
    "HIDDEN_SIZE": "4096",
    "NUM_ATTENTION_HEADS": "32",
    "SEQ_LENGTH": "2048",
    "MAX_POSITION_EMBEDDINGS": "2048",
    "MICRO_BATCH_SIZE": "1",
    "GLOBAL_BATCH_SIZE": "288",
}
_FLAGS = {
    "--nnodes": "NUM_NODES",
    "--nproc-per-node": "GPU_PER_NODE",
    "--tensor-model-parallel-size": "TENSOR_PARALLEL",
    "--pipeline-model-parallel-size": "PIPELINE_PARALLEL",
    "--num-layers": "NUM_LAYERS",
    "--hidden-size": "HIDDEN_SIZE",
    "--num-attention-heads": "NUM_ATTENTION_HEADS",
    "--seq-length": "SEQ_LENGTH",
    "--max-position-embeddings": "MAX_POSITION_EMBEDDINGS",
    "--micro-batch-size": "MICRO_BATCH_SIZE",
    "--global-batch-size": "GLOBAL_BATCH_SIZE",
}
_HEAD = """\
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# The chart megatron-training with values-hyperpod.yaml, with variables instead of values. README.md
# lists them.
#   ./fill.sh pytorchjob.yaml-template | kubectl apply -f -
"""
_OF_HELM = re.compile(
    r"(?m)^(---\n)?# (Source|SPDX).*\n|^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart"
    r"|namespace): .*\n"
)


def chart_words() -> list[str]:
    """With a pipeline, so that it has its variable."""
    return [*values_file("hyperpod"), *sets("parallelism.pipeline=2")]


def made() -> str:
    """The template, from what the chart renders."""
    text = rendered_text(MEGATRON, *chart_words(), name="megatron")
    parts = [_OF_HELM.sub("", each).strip() for each in re.split(r"(?m)^---$", text)]
    text = "\n---\n".join(part for part in parts if part) + "\n"
    for flag, name in _FLAGS.items():
        text = re.sub(rf'(- {flag}\n +- )"\d+"', rf'\1"${{{name}}}"', text)
    for old, new in {
        r"image: megatron-lm:\S+": "image: ${IMAGE}",
        r"image: mwatch:\S+": "image: ${MWATCH_IMAGE}",
        r"claimName: fsx-claim\b": "claimName: ${CLAIM}",
        r"instance-type: \S+": "instance-type: ${INSTANCE_TYPE}",
        r"nvidia.com/gpu: \d+": "nvidia.com/gpu: ${GPU_PER_NODE}",
        r"amazonaws.com/efa: \d+": "amazonaws.com/efa: ${EFA_PER_NODE}",
        r'nprocPerNode: "\d+"': 'nprocPerNode: "${GPU_PER_NODE}"',
        r"(Worker:\n +replicas: )\d+": r"\1${NUM_WORKERS}",
    }.items():
        text = re.sub(old, new, text)
    return _HEAD + text


def fill(template: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """By the script that stands beside the templates; None takes a variable away."""
    chosen = {**SETTINGS, **changes}
    environ = {key: value for key, value in chosen.items() if value is not None}
    return subprocess.run(
        ["sh", str(FOLDER / "fill.sh"), str(FOLDER / f"{template}.yaml-template")],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def filled(template: str, **changes: str | None) -> list[dict[str, Any]]:
    done = fill(template, **changes)
    assert done.returncode == 0, done.stderr
    return objects_in(done.stdout)
