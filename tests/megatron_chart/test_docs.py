# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of the workloads: each `helm install` of theirs renders, each `mwatch plan` works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from chart_renders import CHARTS, rendered

ROOT = CHARTS.parents[1]
PAGES = ("aks-megatron", "eks-megatron", "hyperpod", "gpu-box")
BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```")


def commands(page: str, start: str) -> list[str]:
    text = (ROOT / "docs" / "workloads" / f"{page}.md").read_text("utf-8")
    lines = "".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [each for each in lines if each.startswith(start)]


INSTALLS = [(page, each) for page in PAGES for each in commands(page, "helm install ")]
PLANS = [(page, each) for page in PAGES for each in commands(page, "mwatch plan ")]


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
    assert rendered(ROOT / chart, *words, name=name, namespace=namespace)


@pytest.mark.parametrize(("page", "line"), PLANS)
def test_what_a_page_plans_works(page: str, line: str, tmp_path: Path) -> None:
    search = os.pathsep.join([str(ROOT / "sidecar"), str(ROOT / "trainer")])
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_targets_of_the_box_are_there() -> None:
    text = (ROOT / "docs" / "workloads" / "gpu-box.md").read_text("utf-8")
    makefile = (CHARTS.parent / "docker" / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?m)^make ([a-z0-9-]+)|`(train-[a-z0-9-]+)`", text):
        name = target[0] or target[1]
        assert re.search(rf"(?m)^{name}:", makefile), name
