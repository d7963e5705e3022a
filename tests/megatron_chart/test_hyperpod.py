# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The templates for HyperPod without Helm: the chart's content, and what their script refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_renders import MEGATRON, only, pods, rendered
from hyperpod_templates import FOLDER, SETTINGS, TEMPLATES, chart_words, fill, filled, made
from mwatch.checks.every import look
from mwatch.manifests.whole import workloads
from mwatch.model.check import Level

pytestmark = pytest.mark.skipif(shutil.which("envsubst") is None, reason="there is no envsubst")
TEMPLATE = FOLDER / "pytorchjob.yaml-template"


def test_the_template_is_made_from_the_chart() -> None:
    text = made()
    if os.environ.get("MWATCH_GOLDEN"):
        TEMPLATE.write_text(text, "utf-8")
    assert text == TEMPLATE.read_text("utf-8")


def bare(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is Helm's own, and without the launcher's first words."""
    text = yaml.safe_dump_all(objects)
    text = re.sub(
        r"(?m)^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart|namespace): .*\n", "", text
    )
    found = list(yaml.safe_load_all(text))
    for pod in pods(only(found, "PyTorchJob")):
        container = pod["spec"]["containers"][0]
        container["command"] = container["command"][container["command"].index("--") :]
    return found


def test_filled_in_it_is_what_the_chart_renders() -> None:
    chart = rendered(MEGATRON, *chart_words(), name="megatron")
    assert bare(filled("pytorchjob")) == bare(chart)


def test_our_own_checks_find_nothing_in_it() -> None:
    (job,) = workloads(fill("pytorchjob").stdout, "pytorchjob")
    assert [one.what for one in look(job) if one.level is not Level.INFO] == []


def test_plain_envsubst_fills_it_in_just_as_well() -> None:
    text = subprocess.run(
        ["envsubst"],
        input=TEMPLATE.read_text("utf-8"),
        env={"PATH": os.environ["PATH"], **SETTINGS, "NUM_WORKERS": "1"},
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout
    assert list(yaml.safe_load_all(text)) == filled("pytorchjob")


REFUSALS = {
    "IMAGE": (None, "IMAGE is not set"),
    "EFA_PER_NODE": ("4", "EFA_PER_NODE is 4, and ml.p5.48xlarge has 32"),
    "NUM_NODES": ("5", "GLOBAL_BATCH_SIZE 288 does not divide by MICRO_BATCH_SIZE x DP 5"),
    "TENSOR_PARALLEL": ("3", "world size 16 does not divide by TENSOR_PARALLEL x"),
    "PIPELINE_PARALLEL": ("8", "world size 16 does not divide"),
    "NUM_LAYERS": ("35", "NUM_LAYERS 35 does not divide by PIPELINE_PARALLEL 2"),
    "NUM_ATTENTION_HEADS": ("34", "does not divide by"),
    "GLOBAL_BATCH_SIZE": (
        "289",
        "GLOBAL_BATCH_SIZE 289 does not divide by MICRO_BATCH_SIZE x DP 2",
    ),
    "SEQ_LENGTH": ("4096", "SEQ_LENGTH 4096 is above MAX_POSITION_EMBEDDINGS 2048"),
    "CLAIM": ("a b", "cannot stand in a manifest"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_in_a_sentence(name: str) -> None:
    value, sentence = REFUSALS[name]
    done = fill("pytorchjob", **{name: value})
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search(sentence, done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_a_template_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is not there" in fill("nothing").stderr


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_shell_of_the_jobs_is_left_alone(template: str) -> None:
    """Only the variables of the settings are filled in."""
    text = (FOLDER / f"{template}.yaml-template").read_text("utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    names = set(re.findall(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)", body))
    assert {one or other for one, other in names} <= {*SETTINGS, "NUM_WORKERS"}


@pytest.mark.parametrize("template", ["getdata", "prepdata"])
def test_a_failing_step_fails_the_job(template: str) -> None:
    (job,) = filled(template)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["bash", "-ec"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    done = subprocess.run(
        ["bash", "-n", "-c", container["command"][2]], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr


def test_training_reads_what_preparation_writes() -> None:
    (prepared,) = filled("prepdata")
    script = prepared["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert "set -- /data/oscar/oscar-1GB_text_document" in script
    job = only(filled("pytorchjob"), "PyTorchJob")
    (data,) = [each for each in pods(job)[0]["spec"]["initContainers"] if each["name"] == "data"]
    assert {"name": "DATA_FOLDER", "value": "/data/oscar"} in data["env"]
