# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One Chromium for all tests of the page; where none can be had they are skipped, and say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Chromium, chromium
from browser.devtools import Page, page
from browser.eventful import eventful_log
from mwatch.report.html.page import render
from mwatch.report.run_report import RunReport
from support.builders.story import replayed
from support.debian_tools import ToolMissing


@pytest.fixture(scope="session")
def browser() -> Chromium:
    try:
        return chromium()
    except ToolMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tab(browser: Chromium) -> Iterator[Page]:
    with page(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return replayed(tmp_path_factory.mktemp("eventful"), eventful_log(), "gpt-1b3")


@pytest.fixture(scope="session")
def report(eventful: RunReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render(eventful))
    return file
