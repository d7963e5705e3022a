# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages about workloads: every `helm install` on them renders, as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from chart_renders import CHARTS, NO_HELM, helm, rendered

ROOT = CHARTS.parents[1]
PAGES = sorted((ROOT / "docs" / "workloads").glob("*.md"))
_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ONLY_FOR_A_CLUSTER = {"--create-namespace", "--wait"}


class Install(NamedTuple):
    page: str
    name: str
    chart: Path
    words: tuple[str, ...]


def installs(page: Path) -> list[Install]:
    found = []
    for block in _BLOCK.findall(page.read_text("utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] in (["helm", "install"], ["helm", "upgrade"]):
                rest = [each for each in words[2:] if each not in _ONLY_FOR_A_CLUSTER]
                name, chart, *more = rest
                found.append(Install(page.name, name, ROOT / chart, tuple(more)))
    return found


INSTALLS = [each for page in PAGES for each in installs(page)]


def test_there_are_pages_with_something_to_install() -> None:
    assert {each.chart.name for each in INSTALLS} >= {"shared-storage", "dataset", "mwatch"}


@pytest.mark.skipif(helm() is None, reason=NO_HELM)
@pytest.mark.parametrize("install", INSTALLS, ids=lambda each: f"{each.page}-{each.name}")
def test_what_a_page_says_can_be_typed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert rendered(install.chart, *install.words, name=install.name)
