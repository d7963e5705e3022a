# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages about workloads and data: what they say to type renders, or is understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mwatch_gpt.data import tool
from support.repository.chart_renders import CHARTS, NO_HELM, helm, rendered

ROOT = CHARTS.parents[1]
PAGES = [*sorted((ROOT / "docs" / "workloads").glob("*.md")), ROOT / "docs" / "data.md"]
_DATA = ["python", "-m", "mwatch_gpt.data"]
_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ONLY_FOR_A_CLUSTER = {"--create-namespace", "--wait"}


class Install(NamedTuple):
    page: str
    name: str
    chart: Path
    words: tuple[str, ...]


def typed(page: Path) -> Iterator[list[str]]:
    for block in _BLOCK.findall(page.read_text("utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line, comments=True)


def installs(page: Path) -> list[Install]:
    found = []
    for words in typed(page):
        if words[:2] in (["helm", "install"], ["helm", "upgrade"]):
            rest = [each for each in words[2:] if each not in _ONLY_FOR_A_CLUSTER]
            name, chart, *more = rest
            exported = re.sub("^charts/", "manifests/charts/", chart)
            found.append(Install(page.name, name, ROOT / exported, tuple(more)))
    return found


INSTALLS = [each for page in PAGES for each in installs(page)]


def test_there_are_pages_with_something_to_install() -> None:
    assert {each.chart.name for each in INSTALLS} >= {"shared-storage", "dataset", "mwatch"}


def test_the_tool_for_data_understands_what_its_page_says() -> None:
    found = [words[3:] for words in typed(PAGES[-1]) if words[:3] == _DATA]
    assert len(found) == 4
    for words in found:
        args = tool.parse(words, "sample.txt")
        assert args.check or args.blend or tool.job(args).inputs


@pytest.mark.skipif(helm() is None, reason=NO_HELM)
@pytest.mark.parametrize("install", INSTALLS, ids=lambda each: f"{each.page}-{each.name}")
def test_what_a_page_says_can_be_typed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert rendered(install.chart, *install.words, name=install.name)
