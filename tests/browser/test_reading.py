# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report for every reader: axe finds nothing, and on paper everything is open and wide."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from browser.axe import AxeMissing, axe_source, violations
from browser.devtools import Page
from browser.test_fleet_page import three
from browser.test_live_page import served_page, with_ranks
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.finding import Verdict
from mwatch.model.phase import JobPhase
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.html.page import render
from mwatch.report.model import PhaseSpan
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport
from mwatch.run.ui import pages_of
from support.runs.fleet_page_runs import turning
from support.runs.http_runs import served

LOOKS = [(1440, False), (1440, True), (390, False), (390, True)]
PAPERS = {"A4": (8.27, 11.69), "Letter": (8.5, 11.0)}
_MARGIN = 11 / 25.4
_DOTS = 96
_WHOLE = re.compile(rb"/Type\s*/Page\b")
_CLOSED = "document.querySelectorAll('details:not([open])').length"
_SIZES = """[...document.querySelectorAll('#incidents .cards thead, #happened li, .card pre')]
  .map((one) => one.getBoundingClientRect().height)"""


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except AxeMissing as error:
        pytest.skip(str(error))


def mild(report: RunReport) -> RunReport:
    """With every phase, a warning, an unknown verdict and a source that was lost."""
    phases = tuple(
        PhaseSpan(1, phase.value, report.phases[0].began_at + place, 1.0 + place)
        for place, phase in enumerate(JobPhase)
    )
    incident = replace(report.incidents[0], severity="warning", times=3)
    sources = tuple(
        replace(each, is_up=False, since=report.started_at, reason="gone")
        for each in report.source_states[:2]
    )
    return replace(
        report, verdict=Verdict(Cause.UNKNOWN, "the log breaks off"), phases=phases,
        incidents=(incident, *report.incidents[1:]), source_states=sources, notes=("a note",),
        command="torchrun pretrain_gpt.py",
    )  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), LOOKS)
@pytest.mark.parametrize("kind", ["eventful", "mild", "empty"])
def test_axe_finds_nothing(
    tab: Page, axe: str, eventful: RunReport, tmp_path: Path, kind: str, width: int, dark: bool
) -> None:
    empty = ReportRecorder(Engine("empty", {})).report()
    made = {"eventful": eventful, "mild": mild(eventful), "empty": empty}[kind]
    file = tmp_path / "page.html"
    file.write_text(render(made))
    tab.look(width, 900, dark=dark)
    tab.open(file)
    tab.value("for (const one of document.querySelectorAll('details')) one.open = true")
    assert violations(tab, axe) == []


@pytest.mark.parametrize("kind", ["live", "many", "list", "fleet", "job"])
def test_axe_finds_nothing_on_live_pages(
    tab: Page, axe: str, eventful: RunReport, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "gpt-a").mkdir()
    story_json.write(eventful, tmp_path / "gpt-a" / STORY)
    with live_page(kind, eventful, tmp_path) as here:
        for width, dark in LOOKS if kind != "many" else LOOKS[:1]:
            tab.look(width, 900, dark=dark)
            tab.open(here)
            tab.value("for (const one of document.querySelectorAll('details')) one.open = true")
            assert violations(tab, axe) == [], (kind, width, dark)


@contextmanager
def live_page(kind: str, report: RunReport, runs: Path) -> Iterator[str]:
    """The address of a page: of a run with few ranks or many, of all runs, of a fleet, of a job."""
    if kind in ("live", "many"):
        ranks = with_ranks(8 if kind == "live" else 200)
        with served_page(replace(report, is_over=False), ranks) as here:
            yield here
    elif kind == "list":
        with served(pages_of(None, runs)) as server:
            yield f"http://127.0.0.1:{server.port}/"
    else:
        with turning(three()) as server:
            yield f"http://127.0.0.1:{server.port}/{'jobs/ns/gpt-b' if kind == 'job' else ''}"


def test_every_colour_of_the_band_is_in_its_legend(
    tab: Page, eventful: RunReport, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(render(mild(eventful)))
    tab.look(1440, 900)
    tab.open(file)
    drawn = tab.value(
        "[...document.querySelectorAll('#phases svg path')].map((p) => getComputedStyle(p).fill)"
    )
    listed = tab.value(
        "[...document.querySelectorAll('#phases .legend li')]"
        ".map((one) => getComputedStyle(one, '::before').backgroundColor)"
    )
    assert len(set(drawn)) == len(JobPhase) + 1  # and the strip of the incidents
    assert set(drawn) <= set(listed)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("dark", [False, True])
def test_on_paper_everything_is_open_and_no_page_is_nearly_empty(
    tab: Page, report: Path, paper: str, dark: bool
) -> None:
    wide, high = PAPERS[paper]
    tab.look(390, 844, dark=dark)
    tab.open(report)
    closed = tab.value(_CLOSED)
    assert closed > 0
    printed = tab.call("Page.printToPDF", paperWidth=wide, paperHeight=high, printBackground=True,
                       preferCSSPageSize=False)  # fmt: skip
    pages = len(_WHOLE.findall(base64.b64decode(printed["data"])))
    assert tab.value(_CLOSED) == closed  # as it was before
    width, height = ((each - 2 * _MARGIN) * _DOTS for each in (wide, high))
    tab.look(int(width), int(height), dark=dark)
    tab.call("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        tab.open(report)
        tab.value("dispatchEvent(new Event('beforeprint'))")
        assert tab.value(_CLOSED) == 0
        assert all(size > 0 for size in tab.value(_SIZES))
        assert tab.value("document.documentElement.scrollWidth") <= int(width)
        assert (
            tab.value("getComputedStyle(document.querySelector('h1')).color") == "rgb(23, 26, 33)"
        )
        used = tab.value("document.documentElement.scrollHeight") / height
    finally:
        tab.call("Emulation.setEmulatedMedia", media="", features=[])
    assert pages <= math.ceil(used) + 1
