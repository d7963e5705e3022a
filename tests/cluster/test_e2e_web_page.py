# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the fleet in a real browser, beside two jobs that really train on the cluster.

The page comes as a person gets it: `mwatch ui -n NAMESPACE`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser.chromium import chromium
from browser.devtools import Page, page
from browser.test_live_page import shown as text_of
from cluster.kube_things import wait_for
from cluster.test_diagnose_live import shown
from cluster.training import SECONDS, Training
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard
from support.debian_tools import ToolMissing
from support.waiting import until

pytestmark = pytest.mark.timeout(2400)
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

        def is_named() -> bool:
            """Who is to blame, at the top; the other job is not touched."""
            text, other = row(tab, STOPPED), row(tab, "fleet-a")
            first = tab.value("document.querySelector('#fleet tbody tr a')?.textContent")
            has_all = all(part in text for part in (f"pod {pod}", "rank 1", "node "))
            return has_all and "Running" in other and first == STOPPED

        until(is_named, seconds=SECONDS)

        def is_back() -> bool:
            text = row(tab, STOPPED)
            return "attempt 2" in text and "Running" in text

        until(is_back, seconds=2 * SECONDS)
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
    # The old one writes it at its end.
    wait_for(lambda: STOPPED in yard.controller.kubectl(*stored), "the history", SECONDS)
    # Until the controller knows the job, `mwatch ui` shows the page of a sidecar.
    wait_for(
        lambda: STOPPED in {each["name"] for each in yard.controller.jobs().get("jobs", ())},
        "its word about the job",
        SECONDS,
    )
    path = f"/jobs/{yard.namespace}/{STOPPED}"
    with shown(yard.cluster, STOPPED, "-n", yard.namespace, path=path) as address:
        assert address.endswith(path)
        tab.open(address)

        def shows_all() -> bool:
            """Of the past from the history; of the ranks when their sidecars have answered."""
            first, second = (text_of(tab, f"#attempts tbody tr:nth-child({n})") for n in (1, 2))
            has_attempts = first.startswith("1") and "Hang" in first and bool(second)
            has_ranks = bool(text_of(tab, "#rank-0") and text_of(tab, "#rank-1"))
            is_told = "rank 1" in text_of(tab, "#incident-1") and "restart" in text_of(tab, "#acts")
            return has_attempts and has_ranks and is_told

        until(shows_all, seconds=SECONDS)
        tab.open("about:blank")
