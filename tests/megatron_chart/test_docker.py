# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The experiments of the GPU box: their commands, and the table that is made of their logs.

No image is built here: there is no container engine, and no GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gpt.corpora import gpt2_files
from support.fakes.fake_hub import fake_hub
from support.repository.chart_renders import CHARTS
from support.repository.megatron_flags import complaints
from support.runs.dataset_runs import archive

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
STEP = (
    " iteration 5/ 10 | consumed samples: 160 | elapsed time per iteration (ms): {step} | "
    "learning rate: 6.0E-05 | global batch size: 32 | lm loss: 6.1E+00 | loss scale: 1.0 | "
    "number of skipped iterations: 0 | number of nan iterations: 0 |\n"
)
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def command(target: str, *settings: str) -> list[str]:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *settings],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").split()


@needs_make
@pytest.mark.parametrize("mock", ["", "1"])
@pytest.mark.parametrize("target", TARGETS)
def test_megatron_knows_every_argument_of_the_experiments(target: str, mock: str) -> None:
    for release in ("core_v0.12.1", "core_v0.16.1", "core_v0.19.0"):
        flags = [] if release == "core_v0.16.1" else ["FLAGS="]
        words = command(target, f"MOCK={mock}", "SAVE=1", *flags)
        assert complaints(words[words.index("pretrain_gpt.py") :], release) == []


@needs_make
def test_no_rank_of_an_experiment_asks_the_hub_for_a_tokenizer() -> None:
    target = "train-tp2-gpt2-large-2gpu"
    assert "--legacy-tokenizer" in command(target)
    assert "--legacy-tokenizer" not in command(target, "MOCK=1")


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


@needs_make
def test_the_data_of_the_experiments_is_made_where_they_look_for_it(tmp_path: Path) -> None:
    """All steps, with a small archive in the place of the real one."""
    gpt2_files(tmp_path)
    inner = archive({"./a.txt": b"the cat sat on the mat", "./b.txt": b"there and then"})
    archive_name = "openwebtext-10k.tar.xz"
    files = {name: (tmp_path / name).read_bytes() for name in ("vocab.json", "merges.txt")}
    files[archive_name] = archive({"openwebtext-10k/10k.xz": inner})
    given = json.loads((FOLDER / "openwebtext-10k.json").read_text("utf-8"))
    with fake_hub(files) as hub:
        given["files"] = [{"url": f"{hub.store}/{archive_name}"}]
        given["tokenizer"] = {name: f"{hub.store}/{name}" for name in given["tokenizer"]}
        given["preprocess"]["workers"] = 1
        settings = tmp_path / "settings.json"
        settings.write_text(json.dumps(given))
        data = tmp_path / "here"
        search = f"{CHARTS}/dataset/scripts:{ROOT}/trainer"
        done = subprocess.run(
            ["make", "prepare-ds-openwebtext-10k", "RUNNER=", f"DATA={data}",
             f"SETTINGS={settings}", f"DATA_PYTHON=PYTHONPATH={search} {sys.executable}"],
            cwd=FOLDER, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    words = command("train-dp2-gpt2-large-2gpu", "RUNNER=", f"DATA={data}")
    prefix = words[words.index("--data-path") + 1]
    assert Path(f"{prefix}.bin").stat().st_size > 0
    assert Path(words[words.index("--merge-file") + 1]).is_file()


def table(*paths: Path) -> subprocess.CompletedProcess[str]:
    code = os.pathsep.join([str(ROOT / "sidecar"), str(ROOT / "trainer")])
    return subprocess.run(
        [sys.executable, str(FOLDER / "table.py"), "--mwatch", MWATCH, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
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
    assert re.fullmatch(r"0: \d+\.\d\+", cells[7])


def test_all_experiments_are_rows_with_the_memory_of_each_rank(tmp_path: Path) -> None:
    """With the figures of the document, as Megatron would have printed them."""
    memory = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | "
    memory += "reserved: 3.0 | max reserved: 4.0 | total device memory used: {}.00\n"
    for target, step, used in (
        ("train-tp2-gpt2-large-2gpu", 543.6, (85969, 85967)),
        ("train-pp2-gpt2-large-2gpu", 813.0, (61249, 88299)),
    ):
        volume = tmp_path / target / "volume"
        volume.mkdir(parents=True)
        text = STEP.format(step=step) + "".join(
            memory.format(rank, each) for rank, each in enumerate(used)
        )
        (volume / "trainer.log").write_text(text)
    rows = [row.strip("|").split("|") for row in table(tmp_path).stdout.splitlines()[2:]]
    found = [[cell.strip() for cell in row] for row in rows]
    assert [(row[0], row[5], row[7]) for row in found] == [
        ("train-pp2-gpt2-large-2gpu", "813.0", "0: 59.8, 1: 86.2"),
        ("train-tp2-gpt2-large-2gpu", "543.6", "0: 84.0, 1: 84.0"),
    ]


def test_what_a_log_does_not_say_is_not_zero(tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    log.write_text(STEP.format(step=438.3))
    cells = [each.strip() for each in table(log).stdout.splitlines()[2].strip("|").split("|")]
    assert cells == ["old", "?", "? ? ? ?", "?, ?", "1", "438.3", "?", "?"]


def test_no_run_is_reported(tmp_path: Path) -> None:
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


def test_the_converter_of_the_image_takes_its_transformers() -> None:
    """Megatron's loader asks for 4.31 or newer by parts: 5.2 fails, for 2 is less than 31."""
    text = (FOLDER / "megatron.Dockerfile").read_text("utf-8")
    assert re.search(r'"transformers>=4\.(3[1-9]|[4-9]\d),<5"', text)
