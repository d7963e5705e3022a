# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller's page costs beside its work: 100 jobs of 2,048 pods, the fleet open in one
browser and one job in another.

The work is what the loop does with the answers of all pods: one poll of each in 5 s, and an
evaluation of each job every second. Requests and decoding are left out, so the share of the page
is smaller in a real controller; `make bench-cluster` measures that one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.row import Row
from mwatch.controller.page import FleetPages, JobNow
from mwatch.controller.server import FleetMetrics, job_json
from mwatch.export.http.server import Page, Request, find
from mwatch.fleet.visibility import Polled
from mwatch.model.kube.ledger import JobEntry
from mwatch.remediate.status import RemediationStatus
from support.runs.fleet_page_runs import STATS, job
from support.runs.job_monitor_runs import PERIOD, START, Fleet

JOBS = 100
PODS = 2048
TARGET = 0.10
_WARM_SECONDS = 20
_SECONDS = 10
_STATUS = RemediationStatus()
_WAIT = re.compile(rb'"wait": ([0-9.]+)')


class Cost(NamedTuple):
    """CPU seconds in one second."""

    work: float
    pages: float
    update_bytes: int

    @property
    def share(self) -> float:
        return self.pages / self.work


class Watched:
    def __init__(self) -> None:
        sizes = [PODS // JOBS + (place < PODS % JOBS) for place in range(JOBS)]
        self.fleets = [job(f"job-{place}", size) for place, size in enumerate(sizes)]
        self.metrics = FleetMetrics(START)
        self.live = FleetPages("ns")

    def second(self) -> float:
        """Let one pass; the CPU time of the loop."""
        took = 0.0
        for fleet in self.fleets:
            polled = _answers(fleet)
            began = time.thread_time()
            for answer in polled:
                fleet.watch.polled(answer)
            fleet.watch.look(fleet.now)
            took += time.thread_time() - began
        began, now = time.thread_time(), self.fleets[0].now
        watches = [each.watch for each in self.fleets]
        self.metrics.update(watches, STATS, now)
        for each in watches:
            job_json(each, _STATUS, now)
        self._update(now)
        return took + time.thread_time() - began

    def _update(self, now: float) -> None:
        watches = [each.watch for each in self.fleets]
        shown = [
            JobNow(each, _STATUS, self.metrics.of(each.kube.uid), JobEntry()) for each in watches
        ]
        self.live.update(shown, now, is_leader=True)

    def ask(self, path: str, query: str = "") -> Page:
        found = find(self.live.pages(), path)
        assert found is not None and found.endpoint.get is not None
        return found.endpoint.get(Request(path, {}, parameter=found.parameter, query=query))

    def open(self, path: str) -> str:
        """The query of its next update."""
        self.ask(path)  # nothing is made before somebody asks
        self._update(self.fleets[0].now)
        known = re.search(rb'data-page="(\w+)" data-after="([\w.]+)"', self.ask(path).body)
        assert known is not None
        return f"page={known[1].decode()}&after={known[2].decode()}"

    def follow(self, queries: dict[str, str], seconds: float) -> tuple[float, int]:
        """CPU time of the open pages in one second, and the largest update. A second of the jobs
        takes a second here: pages are made by the clock."""
        due = dict.fromkeys(queries, time.monotonic())
        took, size, until = 0.0, 0, time.monotonic() + seconds
        while (turned := time.monotonic()) < until:
            for fleet in self.fleets:
                fleet.run(1)
            began = time.thread_time()
            self._update(self.fleets[0].now)
            for path in [path for path in due if due[path] <= time.monotonic()]:
                answer = self.ask(f"{path.rstrip('/')}/page.json", queries[path]).body
                size = max(size, len(answer))
                wait = _WAIT.search(answer)
                assert wait is not None
                due[path] = time.monotonic() + float(wait[1])
            took += time.thread_time() - began
            time.sleep(max(0.0, turned + 1.0 - time.monotonic()))
        return took / seconds, size


def _answers(fleet: Fleet) -> list[Polled]:
    before, fleet.now = fleet.now, fleet.now + 1.0
    fleet.see()
    found = []
    for place, pod in enumerate(fleet.pods):
        if pod.prints:
            pod.print_lines(before, fleet.now)
        if int(fleet.now - START) % PERIOD == place % PERIOD:
            uid = fleet.kube[pod.name].uid
            found.append(Polled(uid, fleet.now, pod.snapshot(fleet.now), port=9401))
    return found


def measured() -> Cost:
    watched = Watched()
    for _ in range(_WARM_SECONDS):
        watched.second()
    work = sum(watched.second() for _ in range(_SECONDS)) / _SECONDS
    queries = {path: watched.open(path) for path in ("/", "/jobs/ns/job-0")}
    watched.follow(queries, _SECONDS / 2)
    return Cost(work, *watched.follow(queries, 2 * _SECONDS))


def measurements() -> dict[str, Callable[[], Row]]:
    return {"fleet-page": row}


def row() -> Row:
    found = measured()
    return Row(
        "fleet-page",
        f"{found.pages:.2%} of a core",
        f"{found.work:.1%}",
        found.share,
        target=f"<= {TARGET:.0%} of the work",
        met=found.share <= TARGET,
        note=f"{JOBS} jobs of {PODS:,} pods; the pages of the fleet and of one job, each open in "
        f"one browser, an update of {found.update_bytes / 1e3:.0f} kB; other: the loop without "
        "requests",
    )
