# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The experiments of the GPU box: their commands, and the table that is made of their logs.

No image is built here: there is no container engine, and no GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from chart_renders import CHARTS
from megatron_flags import complaints

FOLDER = CHARTS.parent / "docker"
ROOT = CHARTS.parents[1]
MWATCH = f"{sys.executable} -m mwatch"
TARGETS = {
    "train-gpt3-345m-1gpu-x-model-parallelism": {"world": 1},
    "train-baseline-gpt2-large-1gpu": {"world": 1},
    "train-dp2-gpt2-large-2gpu": {"world": 2},
    "train-tp2-gpt2-large-2gpu": {"world": 2, "tensor": 2},
    "train-sp2-gpt2-large-2gpu": {"world": 2, "tensor": 2},
    "train-cp2-gpt2-large-2gpu": {"world": 2, "context": 2},
    "train-pp2-gpt2-large-2gpu": {"world": 2, "pipeline": 2},
}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def command(target: str, *settings: str) -> list[str]:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *settings],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").split()


@needs_make
@pytest.mark.parametrize("mock", ["", "1"])
@pytest.mark.parametrize("target", TARGETS)
def test_megatron_knows_every_argument_of_the_experiments(target: str, mock: str) -> None:
    words = command(target, f"MOCK={mock}", "SAVE=1")
    script = words[words.index("pretrain_gpt.py") :]
    for release in ("core_v0.12.1", "core_v0.16.1", "core_v0.19.0"):
        assert complaints(script, release) == []


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_the_sizes_of_an_experiment_divide(target: str) -> None:
    words = command(target)
    pairs = dict(pairwise(words))
    expected = TARGETS[target]
    assert int(pairs["--nproc-per-node"]) == expected["world"]
    model = 1
    for kind, flag in (
        ("tensor", "--tensor-model-parallel-size"),
        ("pipeline", "--pipeline-model-parallel-size"),
        ("context", "--context-parallel-size"),
    ):
        assert int(pairs.get(flag, "1")) == expected.get(kind, 1)
        model *= expected.get(kind, 1)
    step = int(pairs["--micro-batch-size"]) * expected["world"] // model
    assert int(pairs["--global-batch-size"]) % step == 0
    assert pairs["--max-restarts"] == "0"
    assert ("--sequence-parallel" in words) is ("-sp2-" in target)


@needs_make
def test_a_run_is_watched_and_named_after_its_target() -> None:
    words = command("train-tp2-gpt2-large-2gpu")
    assert words[words.index("docker") + 1] == "run"
    watch = words[words.index("mwatch") :]
    assert watch[:2] == ["mwatch", "run"]
    assert watch[watch.index("--name") + 1] == "train-tp2-gpt2-large-2gpu"
    assert "--act" not in watch
    assert "--act" in command("train-tp2-gpt2-large-2gpu", "ACT=1")


def table(*paths: Path) -> subprocess.CompletedProcess[str]:
    code = os.pathsep.join([str(ROOT / "sidecar"), str(ROOT / "trainer")])
    return subprocess.run(
        [sys.executable, str(FOLDER / "table.py"), "--mwatch", MWATCH, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": code},
    )


def test_the_table_is_made_of_logs(tmp_path: Path) -> None:
    volume = tmp_path / "train-baseline" / "volume"
    volume.mkdir(parents=True)
    shutil.copy(ROOT / "tests/corpus/periodic-save/trainer.log", volume / "trainer.log")
    done = table(tmp_path)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[2]
    cells = [each.strip() for each in row.strip("|").split("|")]
    assert cells[:5] == ["train-baseline", "1", "1 1 1 1", "4, 16", "31"]
    assert re.fullmatch(r"\d+\.\d", cells[5])
    assert re.fullmatch(r"0: \d+\.\d", cells[7])


def test_what_a_log_does_not_say_is_not_zero(tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    text = (
        " iteration 5/ 10 | consumed samples: 160 | elapsed time per iteration (ms): 438.3 | "
        "learning rate: 6.0E-05 | global batch size: 32 | lm loss: 6.1E+00 | loss scale: 1.0 | "
        "number of skipped iterations: 0 | number of nan iterations: 0 |\n"
    )
    log.write_text(text)
    cells = [each.strip() for each in table(log).stdout.splitlines()[2].strip("|").split("|")]
    assert cells == ["old", "?", "? ? ? ?", "?, ?", "1", "438.3", "?", "?"]


def test_no_run_is_said_so(tmp_path: Path) -> None:
    done = table(tmp_path)
    assert done.returncode == 1
    assert "run one of the experiments first" in done.stderr


@pytest.mark.parametrize("name", ["mwatch", "megatron"])
def test_a_dockerfile_copies_what_is_there(name: str) -> None:
    text = (FOLDER / f"{name}.Dockerfile").read_text("utf-8")
    for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_images_are_those_that_the_charts_name() -> None:
    values = (CHARTS / "megatron-training" / "values.yaml").read_text("utf-8")
    megatron = (FOLDER / "megatron.Dockerfile").read_text("utf-8")
    (release,) = re.findall(r"ARG MEGATRON=(\S+)", megatron)
    assert f"tag: {release}" in values
    assert f"release: {release.removeprefix('core_v')}" in values
    assert "/workspace/Megatron-LM" in megatron
