# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's pages in a real browser: the fleet, and one job over all its pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from browser.devtools import Page
from browser.test_live_page import shown
from browser.test_report_page import HOSTILE, is_visible
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.restart_state import RestartState
from mwatch.remediate.status import RemediationStatus
from support.runs.fleet_page_runs import NOTE, Pages, job, stopped, turning
from support.waiting import until

ROWS = "[...document.querySelectorAll('#fleet tbody tr:not([hidden])')]"
BETWEEN_PAGES = (AssertionError,)
"""While one page goes and the next comes, the browser has nothing that could be asked."""
NAMES = f"{ROWS}.map((row) => row.querySelector('a').textContent)"


@pytest.fixture(autouse=True)
def calm(tab: Page) -> Iterator[None]:
    tab.open("about:blank")  # the page of the test before still asks its server
    tab.complaints.clear()
    tab.requests.clear()
    yield
    assert tab.complaints == []


def three() -> Pages:
    """A job that trains, one that hangs and is paused, and one that is being restarted."""
    fine, ill = job("gpt-a", 3).run(90), stopped(job("gpt-b").run(60), seconds=30)
    pages = Pages([fine, ill, job("bert").run(90)])
    pages.states["gpt-b"] = RemediationStatus(
        RestartState.HELD, text="ann has paused it", is_paused=True, pause_text="ann: storage"
    )
    pages.states["bert"] = RemediationStatus(RestartState.PREPARING)
    pages.entries["gpt-b"] = JobEntry(notes=(NOTE,))
    return pages


def test_a_stopped_pod_and_the_next_attempt_appear_without_a_reload(tab: Page) -> None:
    ill = job("gpt-b").run(60)
    pages = Pages([job("gpt-a", 3).run(60), ill])
    pages.passing = 1.0
    with turning(pages, every=0.2) as server:
        here = f"http://127.0.0.1:{server.port}/"
        tab.look(1440, 900)
        tab.open(here)
        tab.value("window.opened = 'once'; 0")
        assert tab.value(NAMES) == ["gpt-a", "gpt-b"]
        tab.value("document.querySelector('a[href$=gpt-a]').focus(); 0")
        with pages.between_turns():
            ill.pods[1].stops_at = ill.now
            ill.pods[0].stalls_at = ill.now
        until(lambda: tab.value(NAMES) == ["gpt-b", "gpt-a"])
        for each in ("Hang", "rank 1", "pod train-1", "node n1"):
            until(lambda: each in shown(tab, "#fleet tbody tr"))  # noqa: B023
        until(lambda: tab.value("document.title").startswith("1 job to look at"))
        tab.value("document.querySelector('a[href$=gpt-b]').click(); 0")
        until(lambda: shown(tab, "h1").startswith("gpt-b"), ignoring=BETWEEN_PAGES)
        assert tab.value("location.pathname") == "/jobs/ns/gpt-b"
        culprit = "document.querySelector('#rank-1').className"
        until(lambda: "bad" in tab.value(culprit), ignoring=BETWEEN_PAGES)
        tab.value("window.opened = 'again'; 0")
        with pages.between_turns():
            ill.restart(2)
        until(lambda: "attempt 2" in shown(tab, "#now"))
        until(lambda: shown(tab, "header .pill") == "Running")
        until(lambda: shown(tab, "#attempts tbody tr:nth-child(2)"))
        assert tab.value("window.opened") == "again", "it was never loaded again"
        tab.value("document.querySelector('#part-up a').click(); 0")
        until(lambda: shown(tab, "h1") == "Jobs in ns", ignoring=BETWEEN_PAGES)
        until(lambda: "attempt 2" in shown(tab, "tr[id$=gpt-b]"), ignoring=BETWEEN_PAGES)
        assert tab.value("location.pathname") == "/"
    assert all(each.startswith((here, "data:")) for each in tab.requests), tab.requests


def test_the_reader_sorts_and_filters_and_updates_keep_the_order(tab: Page) -> None:
    pages = three()
    pages.passing = 1.0
    with turning(pages, every=0.2) as server:
        here = f"http://127.0.0.1:{server.port}/"
        tab.look(1440, 900)
        tab.open(here)
        assert tab.value(NAMES) == ["gpt-b", "bert", "gpt-a"], "the worst first"
        sort = "document.querySelectorAll('button.sort')[{}].click(); 0"
        tab.value(sort.format(0))
        assert tab.value(NAMES) == ["bert", "gpt-a", "gpt-b"]
        tab.value(sort.format(0))
        assert tab.value(NAMES) == ["gpt-b", "gpt-a", "bert"]
        marked = "document.querySelector('th').getAttribute('aria-sort')"
        assert tab.value(marked) == "descending"
        tab.value("window.kept = document.querySelector('a[href$=bert]'); window.kept.focus(); 0")
        at = shown(tab, "header .dim")
        until(lambda: shown(tab, "header .dim") != at)
        assert tab.value(NAMES) == ["gpt-b", "gpt-a", "bert"] and tab.value(marked)
        assert tab.value("document.activeElement === window.kept"), "the row was not replaced"
        tab.value(
            "document.querySelector('#filter input').value = 'GPT';"
            "document.querySelector('#filter input').dispatchEvent(new Event('input')); 0"
        )
        assert tab.value(NAMES) == ["gpt-b", "gpt-a"]
        assert shown(tab, "#filter [role=status]") == "2 of 3"
        at = shown(tab, "header .dim")
        until(lambda: shown(tab, "header .dim") != at)
        assert tab.value(NAMES) == ["gpt-b", "gpt-a"]
        tab.value("window.isOld = true; 0")
        tab.call("Page.reload")
        until(lambda: tab.value("!window.isOld"), ignoring=BETWEEN_PAGES)
        until(lambda: tab.value(NAMES) == ["gpt-b", "gpt-a"], ignoring=BETWEEN_PAGES)
        tab.look(390, 844)
        assert is_visible(tab, "#filter select", 390)
        assert tab.value("document.documentElement.scrollWidth") <= 390


def test_names_from_the_cluster_are_shown_as_text(tab: Page) -> None:
    evil = job(HOSTILE)
    known = evil.kube.pop("train-1")
    evil.kube[HOSTILE] = replace(known, name=HOSTILE, node=HOSTILE)
    evil.pods[1].name = HOSTILE
    evil.run(60)
    pages = Pages([evil, job("gpt").run(60)], namespace="ns")
    pages.states[HOSTILE] = RemediationStatus(RestartState.HELD, text=HOSTILE, is_paused=True,
                                              pause_text=HOSTILE)  # fmt: skip
    with turning(pages) as server:
        tab.look(390, 844)
        tab.open(f"http://127.0.0.1:{server.port}/")
        with pages.between_turns():
            stopped(evil)
            pages.fleets[1].run(40)
        until(lambda: f"pod {HOSTILE}" in shown(tab, "#fleet tbody tr"))  # it came with an update
        until(lambda: f"node {HOSTILE}" in shown(tab, "#fleet tbody tr"))
        assert shown(tab, "#fleet a") == HOSTILE
        assert tab.value("typeof window.hacked") == "undefined"
        assert tab.value("document.documentElement.scrollWidth") <= 390


def test_without_scripts_the_fleet_is_a_plain_table_that_reloads(tab: Page) -> None:
    with turning(three()) as server:
        here = f"http://127.0.0.1:{server.port}/"
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            tab.look(1440, 900)
            tab.open(here)
            until(lambda: is_visible(tab, "#fleet tbody", 1440), ignoring=BETWEEN_PAGES)
            worst_first = ["gpt-b", "bert", "gpt-a"]
            until(lambda: tab.value(NAMES) == worst_first, ignoring=BETWEEN_PAGES)
            until(lambda: tab.value("1") and tab.requests.count(here) >= 2, ignoring=BETWEEN_PAGES)
        finally:
            tab.call("Emulation.setScriptExecutionDisabled", value=False)
