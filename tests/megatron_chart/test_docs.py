# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of the workloads: each `helm install` of theirs renders, each `mwatch plan` works, and
so does what stands in the text between.

All commands of a page in their order are typed by cluster/test_workload_pages_typed.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.chart_renders import CHARTS, MEGATRON, rendered, values_file

ROOT = CHARTS.parents[1]
PAGES = ("aks-megatron", "eks-megatron", "hyperpod", "gpu-box")
BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```")


def commands(page: str, start: str) -> list[str]:
    text = (ROOT / "docs" / "workloads" / f"{page}.md").read_text("utf-8")
    lines = "".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [each for each in lines if each.startswith(start)]


INSTALLS = [(page, each) for page in PAGES for each in commands(page, "helm install ")]
INLINE = re.compile(r"(?s)`([^`]+)`")
VALUES = {"aks-megatron": "aks", "eks-megatron": "eks", "hyperpod": "hyperpod"}
PROGRAMS = {"cd", "docker", "export", "helm", "kubectl", "make", "mwatch", "./fill.sh"}


def inline(page: str, start: str) -> list[str]:
    """Of the text around the blocks and before the tables, which quote mistakes of others."""
    text = (ROOT / "docs" / "workloads" / f"{page}.md").read_text("utf-8")
    text = BLOCK.sub("", text).partition("## Differences from the original")[0]
    found = [" ".join(each.split()) for each in INLINE.findall(text)]
    return [each for each in found if each.startswith(start)]


PLANS = [
    (page, each)
    for page in PAGES
    for each in (*commands(page, "mwatch plan "), *inline(page, "mwatch plan "))
]
SETS = [(page, each) for page in VALUES for each in inline(page, "--set ")]


def test_the_pages_show_how_to_start() -> None:
    assert len(INSTALLS) >= 15
    assert {page for page, _ in INSTALLS} == set(PAGES) - {"gpu-box"}


@pytest.mark.parametrize(("page", "line"), INSTALLS)
def test_what_a_page_installs_renders(
    page: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name, chart, *words = shlex.split(line)[2:]
    namespace = "hyperpod-training" if page == "hyperpod" else "training"
    exported = re.sub("^charts/", "manifests/charts/", chart)
    assert rendered(ROOT / exported, *words, name=name, namespace=namespace)


def test_every_command_of_a_block_is_of_a_program_that_is_tried() -> None:
    for page in PAGES:
        text = (ROOT / "docs" / "workloads" / f"{page}.md").read_text("utf-8")
        script = re.sub(r"(?ms)<<'(\w+)'\n.*?^\1$", "", "".join(BLOCK.findall(text)))
        lines = script.replace("\\\n", " ").splitlines()
        assert {each.split()[0] for each in lines if each.strip()} <= PROGRAMS, page


@pytest.mark.parametrize(("page", "words"), SETS)
def test_what_a_page_says_in_passing_can_be_set(page: str, words: str) -> None:
    """On the values of its cluster, or of its dataset."""
    namespace = "hyperpod-training" if page == "hyperpod" else "training"
    if "amount=" in words:
        dataset = ["--set", "source=slimpajama", *shlex.split(words)]
        assert rendered(CHARTS / "dataset", *dataset, namespace=namespace)
    else:
        given = [*values_file(VALUES[page]), *shlex.split(words)]
        assert rendered(MEGATRON, *given, namespace=namespace)


@pytest.mark.parametrize(("page", "line"), PLANS)
def test_what_a_page_plans_works(page: str, line: str, tmp_path: Path) -> None:
    search = os.pathsep.join([str(ROOT / "sidecar"), str(ROOT / "trainer")])
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_targets_of_the_box_are_there() -> None:
    text = (ROOT / "docs" / "workloads" / "gpu-box.md").read_text("utf-8")
    makefile = (CHARTS.parent / "docker" / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?m)^make ([a-z0-9-]+)|`(train-[a-z0-9-]+)`", text):
        name = target[0] or target[1]
        assert re.search(rf"(?m)^{name}:", makefile), name
