# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's tables, values and schema agree with each other and with `mwatch plan`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mwatch
from mwatch.model.machines import MACHINES
from mwatch.plan.report import as_yaml
from mwatch.plan.shape import PRESETS
from support.repository.chart_renders import (
    CHARTS,
    MEGATRON,
    arguments,
    only,
    pods,
    rendered,
    values_file,
)
from support.repository.megatron_flags import pairs

SCHEMA = json.loads((MEGATRON / "values.schema.json").read_text("utf-8"))
VALUES = yaml.safe_load((MEGATRON / "values.yaml").read_text("utf-8"))
_FREE = {"extraEnvironment", "nodeSelector", "labels", "annotations"}


def table(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (MEGATRON / "files" / name).read_text("utf-8")
    )
    return found


def keys(tree: Any, above: str = "") -> set[str]:
    if not isinstance(tree, dict):
        return {above}
    found: set[str] = set()
    for key, value in tree.items():
        path = f"{above}.{key}".strip(".")
        found |= {path} if key in _FREE or not value else keys(value, path)
    return found


def schema_keys(tree: dict[str, Any], above: str = "") -> set[str]:
    inner = tree.get("properties")
    if not inner:
        return {above}
    parts = [schema_keys(value, f"{above}.{key}".strip(".")) for key, value in inner.items()]
    return set().union(*parts)


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    assert keys(VALUES) == schema_keys(SCHEMA) - {"global"}


def test_every_object_of_the_schema_is_closed() -> None:
    def open_ones(tree: dict[str, Any], path: str) -> list[str]:
        inner = tree.get("properties") or {}
        mine = [path] if inner and tree.get("additionalProperties") is not False else []
        return mine + [
            each for key, value in inner.items() for each in open_ones(value, f"{path}.{key}")
        ]

    assert open_ones(SCHEMA, "values") == []


def test_the_presets_are_those_of_mwatch_plan() -> None:
    ours = {name: each for name, each in table("presets.yaml").items() if name != "custom"}
    theirs = {
        name.lower(): {
            "layers": each.shape.layers,
            "hidden": each.shape.hidden,
            "heads": each.shape.heads,
            "sequence": each.shape.sequence,
            "tensor": each.tensor,
            "pipeline": each.pipeline,
        }
        for name, each in PRESETS.items()
        if each.trainer == "megatron"
    }
    assert ours == theirs


def test_the_machines_are_those_of_mwatch_plan() -> None:
    ours = {
        name: (each["gpus"], each["memory"], each["efa"])
        for name, each in table("instances.yaml").items()
    }
    theirs = {name: (each.gpus, each.gpu.memory_mib, each.efa) for name, each in MACHINES.items()}
    assert ours == theirs


def test_the_schema_knows_every_preset() -> None:
    sizes = SCHEMA["properties"]["model"]["properties"]["size"]["enum"]
    assert {each.lower() for each in sizes} == set(table("presets.yaml"))


def test_the_default_image_of_mwatch_is_this_version() -> None:
    assert VALUES["mwatch"]["image"] == f"mwatch:{mwatch.__version__}"


@pytest.mark.parametrize(
    "wanted",
    [
        {"model": {"size": "13b"}, "training": {"nodes": 2}},
        {"parallelism": {"virtualStageLayers": None, "sequence": True}},
    ],
)
def test_what_mwatch_plan_writes_can_be_read(tmp_path: Path, wanted: dict[str, Any]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(as_yaml(wanted))
    assert rendered(MEGATRON, "-f", str(file))


@pytest.mark.parametrize("platform", ["aks", "eks", "hyperpod", "continued"])
def test_the_defaults_fit_into_the_gpus_of_the_cluster_they_name(platform: str) -> None:
    """By `mwatch plan`; flash attention keeps no matrix, which is what selective spares."""
    files = values_file("eks") if platform == "continued" else []
    job = only(rendered(MEGATRON, *files, *values_file(platform)), "PyTorchJob")
    given = {flag: " ".join(values) for flag, values in pairs(arguments(job))}
    instance = pods(job)[0]["spec"]["nodeSelector"]["node.kubernetes.io/instance-type"]
    words = ["--instance", instance, "--nodes", "2", "--recompute", "selective"]
    words += ["--llama"] if "--swiglu" in given else []
    for ours, theirs in {
        "--layers": "--num-layers", "--hidden": "--hidden-size", "--heads": "--num-attention-heads",
        "--seq": "--seq-length", "--ffn": "--ffn-hidden-size",
        "--tp": "--tensor-model-parallel-size", "--pp": "--pipeline-model-parallel-size",
        "--micro-batch": "--micro-batch-size", "--global-batch": "--global-batch-size",
    }.items():  # fmt: skip
        words += [ours, given.get(theirs, "1")] if theirs in given or ours == "--pp" else []
    root = CHARTS.parents[1]
    search = os.pathsep.join([str(root / "sidecar"), str(root / "trainer")])
    done = subprocess.run(
        [sys.executable, "-m", "mwatch", "plan", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.returncode == 0, done.stdout + done.stderr
