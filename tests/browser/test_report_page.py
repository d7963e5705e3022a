# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: nothing complains, and every incident can be seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser.devtools import Page
from mwatch.model.finding import Evidence
from mwatch.report.html.page import render
from mwatch.report.model import DetectorReport
from mwatch.report.run_report import RunReport
from support.waiting import until

BOX = """(name) => {
  const one = document.querySelector(name);
  if (!one) return null;
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const seen = one.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  return {left: box.left, right: box.right, width: box.width, height: box.height, top: box.top,
    seen, colour: style.color, text: one.innerText};
}"""
SIZES = [(1280, 900, False), (1280, 900, True), (390, 844, False), (390, 844, True)]
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


def box(tab: Page, name: str) -> dict[str, Any]:
    found = tab.value(f"({BOX})({name!r})")
    assert found is not None, f"there is no {name}"
    return dict(found)


def is_visible(tab: Page, name: str, width: int) -> bool:
    found = box(tab, name)
    is_there = bool(found["seen"]) and found["width"] > 0 and found["height"] > 0
    return is_there and found["left"] >= 0 and found["right"] <= width


@pytest.fixture(autouse=True)
def calm(tab: Page) -> None:
    tab.complaints.clear()
    tab.requests.clear()


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_every_incident_is_visible_and_nothing_complains(
    tab: Page, report: Path, eventful: RunReport, width: int, height: int, dark: bool
) -> None:
    tab.look(width, height, dark=dark)
    tab.open(report)
    assert len(eventful.incidents) == 4
    for number in range(1, 5):
        assert is_visible(tab, f"#incident-{number}", width)
        assert is_visible(tab, f".pin.by-time[href='#incident-{number}']", width)
        assert is_visible(tab, f"#evidence-{number} summary", width)
        assert box(tab, f"#incident-{number}")["text"].strip()
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.complaints == []
    assert set(tab.requests) <= {report.as_uri(), "data:,"}


@pytest.mark.parametrize("width", [1280, 390])
def test_the_curves_are_drawn_and_stand_over_each_other(
    tab: Page, report: Path, width: int
) -> None:
    tab.look(width, 900)
    tab.open(report)
    plots = [box(tab, f"#{name} .plot") for name in ("loss", "phases", "step-time", "loss-scale")]
    assert len({(each["left"], each["right"]) for each in plots}) == 1
    assert all(is_visible(tab, f"#{name} .by-time .line", width) for name in ("loss", "grad-norm"))
    assert box(tab, "#loss .by-time .line")["height"] > 50


def test_dark_and_light_are_the_readers_choice(tab: Page, report: Path) -> None:
    grounds = []
    for dark in (False, True):
        tab.look(1280, 900, dark=dark)
        tab.open(report)
        grounds.append(tab.value("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(246, 247, 249)", "rgb(14, 17, 22)"]


def test_the_axis_can_be_iterations(tab: Page, report: Path) -> None:
    tab.look(1280, 900)
    tab.open(report)
    tab.value("document.getElementById('view-step').click()")
    assert not box(tab, "#phases")["seen"]
    for number in range(1, 5):
        assert is_visible(tab, f".pin.by-step[href='#incident-{number}']", 1280)
    assert is_visible(tab, "#loss .by-step .line", 1280)
    assert tab.complaints == []


def test_the_pointer_shows_the_numbers_under_it(tab: Page, report: Path) -> None:
    tab.look(1280, 900)
    tab.open(report)
    plot = box(tab, "#loss .plot")
    tab.mouse("mouseMoved", plot["left"] + 5, plot["top"] + 20)
    tip = box(tab, "#tip")
    assert tip["seen"]
    assert tip["text"].startswith("iteration ")
    assert "loss  10." in tip["text"] and "attempt 1" in tip["text"]
    tab.mouse("mouseMoved", 5, 5)
    assert not box(tab, "#tip")["seen"]


def test_a_drag_zooms_into_all_charts_and_a_button_goes_back(tab: Page, report: Path) -> None:
    tab.look(1280, 900)
    tab.open(report)
    plot = box(tab, "#loss .plot")
    before = box(tab, ".pin.by-time[href='#incident-1']")["left"]
    x, y = plot["left"], plot["top"] + 30
    tab.mouse("mousePressed", x + 0.1 * plot["width"], y)
    tab.mouse("mouseMoved", x + 0.3 * plot["width"], y)
    tab.mouse("mouseReleased", x + 0.3 * plot["width"], y)
    shown = tab.value("[...document.querySelectorAll('.plot svg')].map(s => s.viewBox.baseVal.x)")
    assert len(set(shown)) == 1 and shown[0] == pytest.approx(100, abs=2)
    assert box(tab, ".pin.by-time[href='#incident-1']")["left"] > before + 100
    assert box(tab, "#reset")["seen"]
    tab.value("document.getElementById('reset').click()")
    assert box(tab, ".pin.by-time[href='#incident-1']")["left"] == pytest.approx(before, abs=1)
    assert tab.complaints == []


def test_a_hostile_log_line_is_shown_and_does_nothing(
    tab: Page, eventful: RunReport, tmp_path: Path
) -> None:
    voice = DetectorReport("crashed", HOSTILE, "critical", (Evidence(HOSTILE, 1, HOSTILE),))
    bad = replace(eventful.incidents[0], summary=HOSTILE, culprit=HOSTILE, voices=(voice,))
    file = tmp_path / "hostile.html"
    file.write_text(render(replace(eventful, run=HOSTILE, incidents=(bad,), notes=(HOSTILE,))))
    tab.look(390, 844)
    tab.open(file)
    assert tab.value("typeof window.hacked") == "undefined"
    assert HOSTILE in box(tab, "#evidence-1 summary")["text"]
    assert HOSTILE in box(tab, "#evidence-1 pre")["text"]
    assert is_visible(tab, "#incident-1", 390)
    assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []


def test_an_incident_is_copied_as_markdown_and_nothing_is_sent(tab: Page, report: Path) -> None:
    tab.look(1280, 900)
    tab.open(report)
    tab.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }; 0")
    tab.value("document.querySelector('#evidence-1 button').click()")
    text = tab.value("window.copied")
    assert text.startswith("**Hang since iteration 261** in gpt-1b3, attempt 1 (incident 1)\n")
    assert "- runbook: https://" in text and "Watchdog caught collective operation" in text
    assert box(tab, "#evidence-1 button")["text"] == "Copied"
    assert set(tab.requests) <= {report.as_uri(), "data:,"} and tab.complaints == []


def test_a_link_to_an_incident_opens_its_evidence(tab: Page, report: Path) -> None:
    tab.look(1280, 900)
    tab.open(report)
    tab.value("document.querySelector('#evidence-3').open = false; location.hash = 'incident-3'; 0")
    until(lambda: tab.value("document.querySelector('#evidence-3').open"))


def test_what_slips_in_as_a_script_is_stopped_by_the_policy(
    tab: Page, eventful: RunReport, tmp_path: Path
) -> None:
    file = tmp_path / "injected.html"
    file.write_text(
        render(eventful).replace("</main>", "<script>window.hacked = 1</script></main>")
    )
    tab.open(file)
    assert tab.value("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in each for each in tab.complaints)


def test_without_scripts_the_page_still_shows_everything(tab: Page, report: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.look(1280, 900)
        tab.open(report)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert all(is_visible(tab, f"#incident-{number}", 1280) for number in range(1, 5))
    assert is_visible(tab, "#loss .by-time .line", 1280)


def test_a_story_of_one_line_is_a_page_too(tab: Page, eventful: RunReport, tmp_path: Path) -> None:
    file = tmp_path / "short.html"
    file.write_text(
        render(replace(eventful, series=eventful.series[:1], incidents=(), phases=(), attempts=()))
    )
    tab.look(390, 844)
    tab.open(file)
    assert is_visible(tab, "#loss .plot", 390)
    assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []
