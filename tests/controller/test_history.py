# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The history of jobs survives a restart of the controller, stays bounded, and decides nothing."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha512
from typing import Any

import pytest

from mwatch.controller.history import (
    MAX_BYTES,
    NAME,
    SAVE_SECONDS,
    HistoryStore,
    HistoryWriter,
    bounded,
)
from mwatch.errors import MwatchError
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Answer
from mwatch.kube.errors import NoPermission, Unavailable
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.cause import Cause
from mwatch.report import history
from mwatch.report.run_report import RunReport
from support.fakes.kube_cluster import NAMESPACE, ClusterAccess, FakeCluster
from support.runs.fleet_page_runs import job, stopped
from support.runs.job_monitor_runs import CATALOGUE, Fleet
from support.waiting import until

PATH = CONFIG_MAPS.path(NAMESPACE, NAME)


class Cluster(ClusterAccess):
    """An API server that fails as the test wants."""

    def __init__(self) -> None:
        super().__init__(FakeCluster("OnFailure", lambda: 0.0), lambda *change: None)
        self.fails: MwatchError | None = None
        self.log: list[str] = []

    def call(self, method: str, path: str, **more: Any) -> Answer:
        if self.fails is not None:
            raise self.fails
        return super().call(method, path, **more)

    @property
    def data(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.cluster.objects[PATH]["data"]
        return found

    def controller(self, *, is_leader: bool = True) -> HistoryWriter:
        store = HistoryStore(self, NAMESPACE, self.log.append)
        return HistoryWriter(store, lambda: is_leader)


def restarted() -> Fleet:
    """It hung, and trains again in its second attempt."""
    fleet = stopped(job("gpt").run(60))
    fleet.restart(2)
    return fleet.run(30)


def whole(fleet: Fleet) -> RunReport:
    report = fleet.watch.report(fleet.now)
    assert report is not None
    return report


def begin_again(fleet: Fleet, past: RunReport | None) -> None:
    """Another controller watches the same pods, which send what they still have."""
    fleet.watch = JobMonitor(fleet.job, CATALOGUE, now=fleet.now, has_record=True)
    fleet.watch.past = past
    for pod in fleet.pods:
        pod.is_new = True
    fleet.run(30)


def test_the_next_controller_shows_the_attempts_and_incidents_of_the_last() -> None:
    cluster, fleet = Cluster(), restarted()
    before = whole(fleet)
    cluster.controller().close([fleet.watch], fleet.now)
    past = cluster.controller().recall(fleet.watch.key, fleet.job.uid)
    assert past is not None
    begin_again(fleet, past)
    after = whole(fleet)
    assert [each.number for each in after.attempts] == [1, 2]
    assert after.attempts[0] == before.attempts[0]
    assert after.attempts[0].cause is Cause.HANG
    assert after.attempts[1].started_at == before.attempts[1].started_at
    (incident,) = after.incidents
    assert incident.blamed == before.incidents[0].blamed and incident.culprit is not None
    assert after.started_at == before.started_at
    assert after.series[0].first == 1 and after.series[-1].last > before.series[-1].last
    places = [(each.began_at, each.ended_at) for each in after.series]
    assert places == sorted(places)
    starts = [each.text for each in after.timeline if each.kind == "attempt"]
    assert starts == ["attempt 1 starts", "attempt 2 starts"]
    assert "since the watcher started" in after.notes[-1]
    # Once more: nothing is doubled.
    begin_again(fleet, history.from_text(str(history.to_text(after))))
    again = whole(fleet)
    assert [each.number for each in again.attempts] == [1, 2]
    assert len(again.incidents) == 1
    assert [each.text for each in again.timeline if each.kind == "attempt"] == starts


def test_an_incident_that_is_still_there_stays_one_and_keeps_its_begin() -> None:
    fleet = stopped(job("gpt").run(60))
    before = whole(fleet)
    begin_again(fleet, history.from_text(str(history.to_text(before))))
    (one,) = whole(fleet).incidents
    assert one.detected_at == before.incidents[0].detected_at


def test_an_attempt_that_ended_while_nobody_watched_is_unknown() -> None:
    fleet = job("gpt").run(60)
    past = whole(fleet)
    fleet.now += 600
    for pod in fleet.pods:
        pod.told.clear()  # its sidecar has forgotten the first attempt
    fleet.restart(2)
    begin_again(fleet, past)
    first, second = whole(fleet).attempts
    assert (first.cause, first.ended_at) == (Cause.UNKNOWN, second.started_at)
    assert first.summary == "it ended while nothing watched it"


def test_a_change_is_written_once_a_minute_and_by_the_leader_only() -> None:
    cluster, fleet = Cluster(), job("gpt").run(30)
    follower, leader = cluster.controller(is_leader=False), cluster.controller()
    began = fleet.now
    while fleet.now < began + SAVE_SECONDS + 2:
        fleet.run(1)
        follower.turn([fleet.watch], fleet.now)
    assert PATH not in cluster.cluster.objects
    began, calls = fleet.now, cluster.calls
    while fleet.now < began + SAVE_SECONDS - 2:
        fleet.run(1)
        leader.turn([fleet.watch], fleet.now)
    assert cluster.calls == calls
    fleet.run(3)
    leader.turn([fleet.watch], fleet.now)
    until(lambda: PATH in cluster.cluster.objects)
    calls = cluster.calls
    for _ in range(200):  # nothing but iterations happens
        fleet.run(1)
        leader.turn([fleet.watch], fleet.now)
    assert cluster.calls == calls
    stopped(fleet, seconds=10)
    for _ in range(round(SAVE_SECONDS)):
        fleet.run(1)
        leader.turn([fleet.watch], fleet.now)
    until(lambda: cluster.calls > calls)
    follower.close([fleet.watch], fleet.now)
    leader.close()


def test_a_write_that_fails_is_repeated_with_the_next() -> None:
    cluster, fleet = Cluster(), job("gpt").run(30)
    leader = cluster.controller()
    cluster.fails = Unavailable("no answer")

    def pass_time(seconds: float) -> None:
        for _ in range(round(seconds)):
            fleet.run(1)
            leader.turn([fleet.watch], fleet.now)

    pass_time(SAVE_SECONDS + 5)
    cluster.fails = None

    def is_saved() -> bool:
        """Time goes on: the thread that writes may not be back from the failure yet."""
        pass_time(SAVE_SECONDS)
        return PATH in cluster.cluster.objects

    until(is_saved)
    leader.close()


def test_without_the_right_to_write_the_page_has_no_past_and_one_line_says_why() -> None:
    cluster, fleet = Cluster(), restarted()
    cluster.fails = NoPermission("configmaps mwatch-history: get is forbidden")
    controller = cluster.controller()
    assert controller.recall(fleet.watch.key, fleet.job.uid) is None
    controller.turn([fleet.watch], fleet.now)
    controller.close([fleet.watch], fleet.now)
    (line,) = cluster.log
    assert line.startswith("the history of jobs is not kept over a restart: configmaps")


def test_another_job_of_the_same_name_has_no_past() -> None:
    cluster, fleet = Cluster(), restarted()
    cluster.controller().close([fleet.watch], fleet.now)
    assert cluster.controller().recall(fleet.watch.key, "another-uid") is None


def test_the_store_is_bounded_and_the_newest_jobs_are_kept() -> None:
    cluster, report = Cluster(), whole(restarted())
    store = HistoryStore(cluster, NAMESPACE, cluster.log.append)
    noise = [base64.b85encode(sha512(bytes([n])).digest() * 6).decode() for n in range(40)]
    incidents = tuple(replace(report.incidents[0], summary=each, reason=each) for each in noise)
    long = replace(report, incidents=incidents, run="gpt-long")
    line = history.to_text(long)
    assert line is not None and len(line) <= history.MAX_TEXT_BYTES
    short = history.from_text(line)
    assert short is not None and 0 < len(short.incidents) < 40
    assert short.incidents[-1].summary == noise[-1]
    many = {f"Job.gpt-{n}": f"uid {n} {'x' * 16_000}" for n in range(200)}
    kept = bounded(many | {"Job.unreadable": "what is this"})
    assert sum(len(key) + len(text) for key, text in kept.items()) <= MAX_BYTES
    assert set(kept) == {f"Job.gpt-{n}" for n in range(200 - len(kept), 200)}
    cluster.cluster.put(PATH, {"data": many})
    assert store.save({"Job.gpt-new": ("uid", 1000.0, long)})
    assert "Job.gpt-new" in cluster.data and "Job.gpt-0" not in cluster.data
    found = store.recall("Job.gpt-new", "uid")
    assert found is not None and found.run == "gpt-long"


@pytest.mark.parametrize(
    "text",
    ["", "no base64!", base64.b64encode(b"no zlib").decode(),
     base64.b64encode(zlib.compress(b" " * (64 << 20))).decode(),
     base64.b64encode(zlib.compress(b'{"version": 99, "story": {}}')).decode()],
    ids=["empty", "text", "bytes", "bomb", "newer"],
)  # fmt: skip
def test_what_cannot_be_read_is_no_history(text: str) -> None:
    assert history.from_text(text) is None
