# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A turn of the controller's loop that goes wrong: what it could not see it does not trust."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import urllib3

from kube.fake_api import Reply, fake_api
from mwatch.config.controller import ControllerSettings
from mwatch.controller.controller import Controller
from mwatch.fleet.cluster_view import FleetView, JobSeen, PodSeen
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import KubeJob
from support.builders import kube


class FakeFleet(FleetView):
    """One job, as the test has it."""

    def __init__(self, access: Access, job: KubeJob) -> None:
        super().__init__(access, "ns", time.time)
        self.job = job
        self.fails = False
        self.pods: tuple[PodSeen, ...] = ()

    def look(self) -> list[JobSeen]:
        if self.fails:
            raise ValueError("a fault of ours")
        pods = tuple(each.pod for each in self.pods)
        return [JobSeen(KubeFacts(time.time(), self.job, self.job.name, pods), self.pods, 1.0)]


@pytest.fixture
def access() -> Iterator[Access]:
    policy = {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"policy.toml": ""}}
    with fake_api(Reply(200, policy)) as api:
        pool = urllib3.PoolManager()
        connection = Connection(api.address, pool, lambda: None, "ns")
        yield Access(connection, limits=CallLimits(call_seconds=60.0, tries=1))
        pool.clear()


def made(access: Access, job: KubeJob, **more: Any) -> tuple[Controller, FakeFleet]:
    fleet = FakeFleet(access, job)
    settings = ControllerSettings(namespace="ns", **more)
    controller = Controller(settings, access, None, lambda text: None, fleet=fleet)
    controller.poll.start()
    return controller, fleet


def met(controller: Controller, seconds: float = 60.0) -> JobMonitor | None:
    until = time.monotonic() + seconds
    while not controller.jobs and time.monotonic() < until:
        controller.turn()
        time.sleep(0.01)
    return next(iter(controller.jobs), None)


def test_a_cluster_that_we_fail_to_look_at_was_not_seen(access: Access) -> None:
    controller, fleet = made(access, kube.pytorch_job())
    watch = met(controller)
    assert watch is not None and watch.view_age_seconds == 1.0
    fleet.fails = True
    controller.turn()
    assert controller.jobs == [watch] and watch.view_age_seconds is None
    fleet.fails = False
    controller.turn()
    assert watch.view_age_seconds == 1.0
    controller.close()


def test_a_job_is_not_judged_before_the_policy_that_it_names_was_read(access: Access) -> None:
    job = kube.pytorch_job(annotations={"mwatch.dev/policy": "mine"})
    controller, _ = made(access, job)
    assert met(controller, 0.3) is None
    controller.policies.read()
    assert met(controller) is not None
    controller.close()


@pytest.mark.parametrize("no_page", [False, True])
def test_the_pages_for_people_can_be_switched_off(access: Access, no_page: bool) -> None:
    controller, _ = made(access, kube.pytorch_job(), no_page=no_page)
    watch = met(controller)
    assert watch is not None
    assert (watch.report(time.time()) is None) is no_page, "nothing is recorded for nobody"
    paths = controller.pages.pages()
    assert "/v1/jobs" in paths
    assert ("/" in paths, "/jobs/ns/{}" in paths) == (not no_page, not no_page)
    controller.close()


def test_pods_that_move_are_asked_at_their_new_place_and_others_cost_nothing(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, fleet = made(access, kube.pytorch_job(workers=1))
    wanted: list[list[str]] = []
    monkeypatch.setattr(
        controller.poll, "want", lambda every: wanted.append([each.address for each in every])
    )
    first, second = (replace(kube.pod(f"train-{n}"), ip=f"10.0.0.{n}") for n in (1, 2))
    fleet.pods = PodSeen(first, 9401), PodSeen(second, 9401)
    watch = met(controller)
    assert watch is not None
    before = watch.pods
    fleet.pods = PodSeen(first, 9401), PodSeen(second, 9401)
    controller.turn()
    assert watch.pods is before and wanted == [[first.ip, second.ip]]
    fleet.pods = PodSeen(first, 9401), PodSeen(replace(second, ip="10.9.9.9"), 9401)
    controller.turn()
    assert wanted[1:] == [[first.ip, "10.9.9.9"]]
    assert watch.pods[second.uid].address == "10.9.9.9"
    controller.close()
