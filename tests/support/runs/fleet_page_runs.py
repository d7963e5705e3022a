# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's pages over jobs that a test lets train, stall or restart, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from mwatch.controller.page import FleetPages, JobNow
from mwatch.controller.server import ControllerStats, FleetMetrics
from mwatch.export.http.server import Server
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.remediate.status import RemediationStatus
from support.builders import kube
from support.runs.http_runs import served
from support.runs.job_monitor_runs import START, Fleet

STATS = ControllerStats(True, 0, {}, 0, {}, 0, 0, 0.01)
NOTE = LedgerNote(START, "mwatch", "restart", "rank 1 is stuck")


def job(name: str, pods: int = 2, **each: Any) -> Fleet:
    """A job of that name whose pods train."""
    made = kube.pytorch_job(workers=pods - 1)
    return Fleet(pods, job=replace(made, name=name, uid=f"uid-{name}"), **each)


def stopped(fleet: Fleet, place: int = 1, seconds: float = 40) -> Fleet:
    """One pod is stopped, and so much time passes."""
    fleet.pods[place].stops_at = fleet.now
    for each in fleet.pods:
        each.stalls_at = fleet.now
    return fleet.run(seconds)


class Pages:
    """`turn` is what the controller's loop does once a second."""

    def __init__(self, fleets: Sequence[Fleet], namespace: str = "ns") -> None:
        self.fleets = list(fleets)
        self.live = FleetPages(namespace)
        self.metrics = FleetMetrics(START)
        self.states: dict[str, RemediationStatus] = {}
        self.entries: dict[str, JobEntry] = {}
        self.is_leader, self.problem = True, ""
        self.passing = 0.0
        """Seconds that pass at each turn."""
        self._lock = threading.Lock()

    def turn(self) -> None:
        with self._lock:
            for each in self.fleets:
                each.run(self.passing)
            now = max((each.now for each in self.fleets), default=START)
            watches = [each.watch for each in self.fleets]
            self.metrics.update(watches, STATS, now)
            shown = [
                JobNow(
                    each, self.states.get(each.kube.name, RemediationStatus()),
                    self.metrics.of(each.kube.uid), self.entries.get(each.kube.name, JobEntry()),
                )
                for each in watches
            ]  # fmt: skip
            self.live.update(shown, now, is_leader=self.is_leader, problem=self.problem)

    @contextmanager
    def between_turns(self) -> Iterator[None]:
        with self._lock:
            yield


@contextmanager
def turning(pages: Pages, every: float = 0.02) -> Iterator[Server]:
    """The pages on a server, with a loop that turns; on a busy machine it is waited for."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every):
            pages.turn()

    pages.turn()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        with (
            patch("mwatch.watch.page._WAIT_SECONDS", 60.0),
            served(pages.live.pages(), max_connections=128) as server,
        ):
            yield server
    finally:
        done.set()
        thread.join()
