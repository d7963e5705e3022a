# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the fleet in a real browser, beside two jobs that really train on the cluster.

The page comes as a person gets it: `mwatch ui -n NAMESPACE`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from browser.chromium import chromium
from browser.devtools import Page, page
from browser.test_live_page import shown as text_of
from cluster.test_diagnose_live import shown
from cluster.training import SECONDS, Training
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard
from support.debian_tools import ToolMissing
from support.waiting import until

pytestmark = pytest.mark.timeout(900)
NAMED_SECONDS = 20.0
"""On a machine that trains two jobs on two cores; the controller polls once a second."""
STOPPED = "fleet-b"


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    try:
        found = chromium()
    except ToolMissing as error:
        pytest.skip(str(error))
    with page(found) as opened:
        yield opened


@pytest.fixture(scope="module")
def jobs(yard: Yard) -> Iterator[dict[str, Training]]:
    yard.restart_by_pods()
    names = ("fleet-a", STOPPED)
    made = {name: yard.start(pytorchjob(yard.trainer, Wanted(name))) for name in names}
    for each in made.values():
        each.trains_well()
    yield made
    for each in made.values():
        yard.end(each)


def row(tab: Page, name: str) -> str:
    return text_of(tab, f"tr[id$={name}]")


def test_the_fleet_names_the_culprit_and_the_next_attempt_without_a_reload(
    yard: Yard, jobs: dict[str, Training], tab: Page
) -> None:
    with shown(yard.cluster, "-n", yard.namespace) as address:
        tab.look(1440, 900)
        tab.open(address)
        tab.value("window.opened = 'once'; 0")
        until(lambda: all("Running" in row(tab, name) for name in jobs), seconds=SECONDS)
        ill = jobs[STOPPED]
        pod = ill.pod("worker")
        ill.signal(pod, "STOP")
        stopped = time.monotonic()
        until(lambda: f"pod {pod}" in row(tab, STOPPED), seconds=SECONDS)
        assert time.monotonic() - stopped < NAMED_SECONDS
        assert "rank 1" in row(tab, STOPPED) and "node " in row(tab, STOPPED)
        assert "Running" in row(tab, "fleet-a")
        assert tab.value("document.querySelector('#fleet tbody tr a').textContent") == STOPPED
        until(lambda: "attempt 2" in row(tab, STOPPED), seconds=2 * SECONDS)
        until(lambda: "Running" in row(tab, STOPPED), seconds=2 * SECONDS)
        assert tab.value("window.opened") == "once", "it was never loaded again"
        hosts = (address, "data:", "about:")
        assert all(each.startswith(hosts) for each in tab.requests), tab.requests
    assert tab.complaints == []


def test_a_controller_that_is_started_again_shows_both_attempts_and_what_was_done(
    yard: Yard, jobs: dict[str, Training], tab: Page
) -> None:
    yard.controller.kubectl("rollout", "restart", "deployment/mwatch-controller")
    yard.controller.wait()
    stored = ("get", "configmap", "mwatch-history", "-o", "jsonpath={.data}")
    assert STOPPED in yard.controller.kubectl(*stored)
    # Until the controller knows the job, `mwatch ui` shows the page of a sidecar.
    until(lambda: STOPPED in {each["name"] for each in yard.controller.jobs().get("jobs", ())})
    with shown(yard.cluster, STOPPED, "-n", yard.namespace) as address:
        assert address.endswith(f"/jobs/{yard.namespace}/{STOPPED}")
        tab.open(address)
        until(lambda: text_of(tab, "#attempts tbody tr:nth-child(2)"))
        first = text_of(tab, "#attempts tbody tr:nth-child(1)")
        assert first.startswith("1") and "Hang" in first
        assert "rank 1" in text_of(tab, "#incident-1")
        assert "restart" in text_of(tab, "#acts")
        assert text_of(tab, "#rank-0") and text_of(tab, "#rank-1")
        tab.open("about:blank")
