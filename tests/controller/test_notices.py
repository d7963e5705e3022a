# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notifications of the controller: each stage once, whichever controller sees it.

The real ledger, over a cluster in memory; real messages, to a server in Slack's form.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import urllib3

from kube.fake_api import Reply, fake_api
from mwatch.config.controller import ControllerSettings
from mwatch.config.fleet import FleetSettings
from mwatch.controller.controller import Controller
from mwatch.controller.notices import FleetNotices
from mwatch.errors import InputError
from mwatch.export.metrics import catalog
from mwatch.export.notify.message import Level, Message
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from support.fakes.kube_cluster import ClusterAccess, FakeCluster
from support.fakes.slack_server import SECRET, SlackServer, slack_server
from support.runs.job_monitor_runs import CATALOGUE, Fleet
from support.runs.remediation_runs import leading_manager
from support.waiting import until

# apprise looks for a module that Python 3.13 removed.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class NotifyingController:
    """The parts of a controller that notify; its memory ends with it."""

    def __init__(self, fleet: Fleet, access: Access, url: str, external: str | None = None) -> None:
        self.fleet = fleet
        self.manager = leading_manager(access, lambda: fleet.now)
        self.notices = FleetNotices([url], self.manager, external)
        fleet.watch = JobMonitor(fleet.job, CATALOGUE, now=fleet.now)
        fleet.watch.restore(self.manager.recall(fleet.watch.key, fleet.job.uid))
        for pod in fleet.pods:  # its sidecar sends all that it still has
            pod.is_new = True
            pod.print_lines(pod.started_at, pod.started_at + 40)

    def run(self, seconds: int, *, is_leader: bool = True) -> None:
        for _ in range(seconds):
            self.fleet.run(1)
            self.notices.update([self.fleet.watch], self.fleet.now, is_leader=is_leader)
            until(self._is_idle)

    def _is_idle(self) -> bool:
        self.manager._background.turn(self.fleet.now)
        return not self.manager._background._jobs

    def close(self) -> None:
        self.manager.close()
        self.notices.close()


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with slack_server() as server:
        yield server


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(2).run(60)


@pytest.fixture
def access(fleet: Fleet) -> ClusterAccess:
    return ClusterAccess(FakeCluster("Never", lambda: fleet.now), lambda *_: None)


def hangs(fleet: Fleet) -> None:
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.pods[1].stops_at = fleet.now


def test_each_stage_is_announced_once_over_restarts_of_the_controller(
    fleet: Fleet, access: ClusterAccess, slack: SlackServer
) -> None:
    hangs(fleet)
    waits = NotifyingController(fleet, access, slack.url)
    waits.run(30, is_leader=False)
    assert fleet.cause == "hang" and slack.all == []
    waits.close()

    first = NotifyingController(fleet, access, slack.url)
    first.run(30)
    (opened,) = slack.wait(1)
    assert opened.title == "ns/train: hang (attempt 1)"
    assert "culprit: rank 1" in opened.text and "pod train-1, node n1: silent" in opened.text
    assert "see: mwatch ui train -n ns" in opened.text
    first.close()

    second = NotifyingController(fleet, access, slack.url, "https://mwatch.example.com/team/")
    second.run(30)
    assert fleet.cause == "hang"
    fleet.watch.engine.record_action(fleet.decision, fleet.now)
    second.run(3)
    slack.wait(2)
    second.close()

    third = NotifyingController(fleet, access, slack.url)
    third.run(20)
    fleet.restart(2)
    third.run(30)
    slack.wait(3)
    third.close()
    assert [each.title.partition(" (")[0] for each in slack.all] == [
        "ns/train: hang",
        "ns/train: restart from the beginning after hang",
        "ns/train: recovered from hang",
    ]
    assert "see: https://mwatch.example.com/team/jobs/ns/train" in slack.all[1].text
    assert third.manager.entry(fleet.watch.key, fleet.job.uid).announced == ()


def test_what_heals_by_itself_is_announced_as_recovered_and_may_come_again(
    fleet: Fleet, access: ClusterAccess, slack: SlackServer
) -> None:
    controller = NotifyingController(fleet, access, slack.url)
    for times in (1, 2):
        hangs(fleet)
        controller.run(30)
        for pod in fleet.pods:
            pod.first_iteration = pod.iteration(fleet.now)
            pod.started_at, pod.stalls_at, pod.stops_at = fleet.now, None, None
        controller.run(90)
        slack.wait(2 * times)
    controller.close()
    titles = [each.partition(" (")[0] for each in slack.titles]
    assert titles == ["ns/train: hang", "ns/train: recovered from hang"] * 2


def test_a_service_that_never_answers_delays_neither_the_loop_nor_the_end(
    fleet: Fleet, access: ClusterAccess
) -> None:
    with slack_server(answers=False) as dead:
        controller = NotifyingController(fleet, access, dead.url_without_limit)
        hangs(fleet)
        controller.run(30)
        dead.wait(1)
        began = time.monotonic()
        controller.notices.update([fleet.watch], fleet.now, is_leader=True)
        controller.close()
        assert time.monotonic() - began < 15, "an answer is waited for up to 20 s"


def made(settings: ControllerSettings, said: list[str]) -> Iterator[Controller]:
    with fake_api(Reply(200, {})) as api:
        pool = urllib3.PoolManager()
        connection = Connection(api.address, pool, lambda: None, "ns")
        access = Access(connection, limits=CallLimits(call_seconds=60.0, tries=1))
        yield Controller(settings, access, FleetSettings(), said.append)
        pool.clear()


def test_a_failure_is_logged_once_without_the_url_and_counted() -> None:
    said: list[str] = []
    settings = ControllerSettings(namespace="ns", notify=(f"json://127.0.0.1:9/{SECRET}",))
    assert SECRET not in repr(settings)
    for controller in made(settings, said):
        controller.poll.start()
        notices = controller.notices
        for count in (1, 2):
            notices.notifier.send(Message("title", "body", Level.WARNING))
            until(lambda: notices.notifier.failed == count)  # noqa: B023
            controller._publish(0.0, 0.0)
        values = {each.labels: each.value for each in controller.metrics.own()
                  if each.metric is catalog.CONTROLLER_NOTIFICATIONS}  # fmt: skip
        controller.close()
    assert values == {("failed",): 2, ("sent",): 0}
    assert sum("notification not sent (JSON, URL 1)" in each for each in said) == 1
    assert SECRET not in "".join(said)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"notify": (f"nosuch://{SECRET}",)}, "--notify: URL 1 is not an address"),
        ({"external_url": "mwatch.example.com"}, "--external-url: 'mwatch.example.com' is not"),
    ],
)
def test_bad_settings_are_refused_at_the_start(change: dict[str, object], text: str) -> None:
    usual = ControllerSettings(namespace="ns", notify=("json://127.0.0.1:9",))
    with pytest.raises(InputError, match=text) as refused:
        list(made(replace(usual, **change), []))  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)
