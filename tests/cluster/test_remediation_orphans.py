# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job that a restart left suspended, and whose ledger is gone: it is resumed, a stop is not."""

from __future__ import annotations

import time

import pytest

from cluster import remediation_things as fleet
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, Controller
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import CONFIG_MAPS, JOBS, PODS
from mwatch.model.kube.job import JobKind, KubeJob

pytestmark = pytest.mark.timeout(900)
BY = "mwatch.dev/suspended-by"


def seen(access: Access, namespace: str) -> KubeJob:
    job = find_job(access, namespace, "train", JobKind.JOB)
    assert job is not None
    return job


def looks_on(controller: Controller, seconds: float) -> None:
    """For so long, to see what it does not do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        controller.turn()
        time.sleep(0.05)


def suspended(access: Access, namespace: str, by: str) -> KubeJob:
    fleet.make_job(access, namespace, in_queue=False)
    body = {"metadata": {"annotations": {BY: by}}, "spec": {"suspend": True}}
    assert access.patch(JOBS, namespace, "train", body).is_ok
    return seen(access, namespace)


def test_a_restart_that_lost_its_ledger_does_not_leave_the_job_suspended(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fleet.make_job(access, namespace, in_queue=False)
    old = fleet.make_pods(access, job, 2)
    first = Controller(access, namespace)
    fleet.decided(first.watch(job))
    first.until(lambda: seen(access, namespace).is_suspended)
    first.until(lambda: first.entry().step)
    step = first.entry().step
    assert step is not None and seen(access, namespace).annotations[BY] == f"restart/{step.id}"
    first.close()
    first.lease.give_back()
    book = access.get(CONFIG_MAPS, namespace, "mwatch-ledger").body
    assert access.delete(CONFIG_MAPS, namespace, "mwatch-ledger", uid=book["metadata"]["uid"]).is_ok

    monkeypatch.setattr("mwatch.remediate.bookkeeping.LEFT_SECONDS", 0.5)
    second = Controller(access, namespace, "two")
    fleet.began(second.watch(seen(access, namespace)), 1)
    looks_on(second, 3.0)
    assert seen(access, namespace).is_suspended  # pods of the old gang are left
    for index, uid in enumerate(old):
        access.delete(PODS, namespace, f"train-{index}", uid=uid)
    second.until(lambda: not seen(access, namespace).is_suspended)
    assert BY not in seen(access, namespace).annotations
    second.until(lambda: any("resumed" in text for _, text in fleet.events(access, namespace)))
    second.close()


@pytest.mark.parametrize("by", ["20260101T000000Z-a1-nan", "alice", ""])
def test_what_was_stopped_stays_stopped(
    access: Access, namespace: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwatch.remediate.bookkeeping.LEFT_SECONDS", 0.3)
    job = suspended(access, namespace, by)
    controller = Controller(access, namespace)
    fleet.began(controller.watch(job), 1)
    looks_on(controller, 2.0)
    assert seen(access, namespace).is_suspended
    controller.close()


def test_an_entry_that_cannot_be_read_may_have_the_restart_in_it(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwatch.remediate.bookkeeping.LEFT_SECONDS", 0.3)
    job = suspended(access, namespace, "restart/20260101T000000Z-a1-hang")
    Ledger(access, namespace).change(lambda book: book)
    newer = {"data": {KEY: '{"version": 99}'}}
    assert access.patch(CONFIG_MAPS, namespace, "mwatch-ledger", newer).is_ok
    controller = Controller(access, namespace)
    fleet.began(controller.watch(job), 1)
    looks_on(controller, 2.0)
    assert seen(access, namespace).is_suspended
    controller.close()
