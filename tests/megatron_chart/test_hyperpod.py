# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The templates for HyperPod without Helm: the chart's content, and what their script refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpt.corpora import gpt2_files, json_lines
from mwatch.checks.every import look
from mwatch.manifests.whole import workloads
from mwatch.model.checks import CheckLevel
from support.repository.chart_renders import MEGATRON, only, pods, rendered
from support.repository.hyperpod_templates import (
    FOLDER,
    SETTINGS,
    TEMPLATES,
    chart_words,
    fill,
    filled,
    made,
)

pytestmark = pytest.mark.skipif(shutil.which("envsubst") is None, reason="there is no envsubst")
TEMPLATE = FOLDER / "pytorchjob.yaml-template"


def test_the_template_is_made_from_the_chart() -> None:
    text = made()
    if os.environ.get("MWATCH_GOLDEN"):
        TEMPLATE.write_text(text, "utf-8")
    assert text == TEMPLATE.read_text("utf-8")


def bare(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is Helm's own."""
    text = yaml.safe_dump_all(objects)
    text = re.sub(
        r"(?m)^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart|namespace): .*\n", "", text
    )
    return list(yaml.safe_load_all(text))


def test_filled_in_it_is_what_the_chart_renders() -> None:
    chart = rendered(MEGATRON, *chart_words(), name="megatron")
    assert bare(filled("pytorchjob")) == bare(chart)


def test_our_own_checks_find_nothing_in_it() -> None:
    (job,) = workloads(fill("pytorchjob").stdout, "pytorchjob")
    assert [one.what for one in look(job) if one.level is not CheckLevel.INFO] == []


def test_plain_envsubst_fills_it_in_just_as_well() -> None:
    text = subprocess.run(
        ["envsubst"],
        input=TEMPLATE.read_text("utf-8"),
        env={"PATH": os.environ["PATH"], **SETTINGS, "NUM_WORKERS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert list(yaml.safe_load_all(text)) == filled("pytorchjob")


REFUSALS = {
    "IMAGE": (None, "IMAGE is not set"),
    "EFA_PER_NODE": ("4", "EFA_PER_NODE is 4, and ml.p5.48xlarge has 32"),
    "NUM_NODES": ("5", "GLOBAL_BATCH_SIZE 288 is not divisible by MICRO_BATCH_SIZE x DP 5"),
    "TENSOR_PARALLEL": ("3", "world size 16 is not divisible by TENSOR_PARALLEL x"),
    "PIPELINE_PARALLEL": ("8", "world size 16 is not divisible by"),
    "NUM_LAYERS": ("35", "NUM_LAYERS 35 is not divisible by PIPELINE_PARALLEL 2"),
    "NUM_ATTENTION_HEADS": ("34", "is not divisible by"),
    "GLOBAL_BATCH_SIZE": (
        "289",
        "GLOBAL_BATCH_SIZE 289 is not divisible by MICRO_BATCH_SIZE x DP 2",
    ),
    "SEQ_LENGTH": ("4096", "SEQ_LENGTH 4096 is above MAX_POSITION_EMBEDDINGS 2048"),
    "CLAIM": ("a b", "is not allowed in a manifest"),
    "INSTANCE_TYPE": (
        "p5.48xlarge",
        "INSTANCE_TYPE is p5.48xlarge, but HyperPod types start with ml.",
    ),
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
    assert "no such template" in fill("nothing").stderr


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_shell_of_the_jobs_is_left_alone(template: str) -> None:
    """Only the variables of the settings are filled in."""
    text = (FOLDER / f"{template}.yaml-template").read_text("utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    names = set(re.findall(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)", body))
    assert {one or other for one, other in names} <= {*SETTINGS, "NUM_WORKERS"}


def container_of(template: str) -> dict[str, Any]:
    (job,) = filled(template)
    (found,) = job["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in found["resources"]["limits"]
    return dict(found)


def run_on(folder: Path, words: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """With the folder in the place of /data."""
    return subprocess.run(
        [each.replace("/data", str(folder)) for each in words],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


FAKE_CURL = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
case $3 in
*FAULT*) exit 22 ;;
*.xz) printf '{"text": "the cat"}\\n{"text": "sat"}\\n' | xz > "$2" ;;
*) echo "$3" > "$2" ;;
esac
"""


@pytest.mark.parametrize("fault", ["nothing", "oscar", "vocab", "merges"])
def test_a_download_that_fails_fails_the_job(tmp_path: Path, fault: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "curl").write_text(FAKE_CURL.replace("FAULT", fault))
    (tools / "curl").chmod(0o755)
    words = container_of("getdata")["command"]
    done = run_on(tmp_path, words, PATH=f"{tools}:{os.environ['PATH']}")
    assert (done.returncode == 0) is (fault == "nothing"), done.stderr
    if fault == "nothing":
        assert done.stdout.startswith("2 documents in ")
    assert not list(tmp_path.rglob("*.part"))


def test_preparation_makes_the_pair_that_training_looks_for(tmp_path: Path) -> None:
    container = container_of("prepdata")
    assert container["command"] == ["python", "-m", "mwatch_gpt.data"]
    (tmp_path / "oscar").mkdir()
    (tmp_path / "tokenizer").mkdir()
    gpt2_files(tmp_path / "tokenizer")
    json_lines(tmp_path / "oscar" / "oscar-1GB.jsonl", ["the cat", "sat on the mat"])
    words = [sys.executable, *container["command"][1:], *container["args"]]
    words = [each.replace("--workers=16", "--workers=1") for each in words]
    for _ in range(2):  # a Job's second try finds it made
        done = run_on(tmp_path, words, PYTHONPATH=str(FOLDER.parents[1] / "trainer"))
        assert done.returncode == 0, done.stderr
    job = only(filled("pytorchjob"), "PyTorchJob")
    (data,) = [each for each in pods(job)[0]["spec"]["initContainers"] if each["name"] == "data"]
    environ = {each["name"]: each["value"].replace("/data", str(tmp_path)) for each in data["env"]}
    script = str(MEGATRON / "files" / "data.py")
    done = run_on(Path("/data"), [sys.executable, script], **environ | {"OUT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "oscar/oscar-1GB_text_document") in (tmp_path / "data.txt").read_text()


def test_one_node_is_a_master_alone() -> None:
    job = only(filled("pytorchjob", NUM_NODES="1"), "PyTorchJob")
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 0


def test_an_instance_without_efa_asks_for_none() -> None:
    job = only(
        filled("pytorchjob", INSTANCE_TYPE="ml.g5.8xlarge", GPU_PER_NODE="1", EFA_PER_NODE="0",
            NUM_NODES="8"),
        "PyTorchJob",
    )  # fmt: skip
    limits = pods(job)[0]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 1}
