# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A controller that remembers wrong, loses the Lease, or loses its job: nothing is done twice,
and no job is forgotten or held up for ever."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cluster import remediation_things as fleet
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, QUICK, Controller
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access
from mwatch.kube.jobs import pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import JOBS
from mwatch.model.decision import Action
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry, LedgerData
from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.restart_state import RestartState
from mwatch.model.restart import RestartOutcome
from mwatch.operate.overrides import JobOverrides
from mwatch.remediate import evidence, worker
from mwatch.remediate.case import RestartTask, TaskResult, record_of
from mwatch.runtime.clock import Clock

pytestmark = pytest.mark.timeout(900)


def in_place_step(job: Any, uids: set[str]) -> GangStep:
    return GangStep(
        "20260101T000000Z-a1-hang", Method.IN_PLACE, JobKind.JOB, job.namespace, job.name, job.uid,
        tuple(sorted(uids)), time.time(), 1,
    )  # fmt: skip


def test_a_step_that_is_done_is_not_begun_again_by_who_remembers_it_as_under_way(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    job = fleet.make_job(access, namespace)
    pods = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace)
    step = in_place_step(job, pods)
    start = NextStart(2, 450, False, "newest", not_before=time.time() - 60)
    done = replace(step, state=RestartState.RELEASED, outcome="all 2 pods restarted in place")
    entry = JobEntry(uid=job.uid, attempt=2, step=done, start=start)
    Ledger(access, namespace).change(lambda book: book.with_job(KEY, entry))
    stale = replace(entry, step=step, start=structs.replace(start, not_before=None))
    controller.manager._ledger.book = LedgerData({KEY: stale})
    controller.manager._ledger.read_at = controller.clock() + 3600  # reads do not get through
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        watch = controller.watch(job, attempt=2, fakes=fakes)
        for each in fakes:
            each.outcome = RestartOutcome.WRONG_ATTEMPT
        controller.until(lambda: controller.manager._bookkeeper.tokens)
        fleet.began(watch, 2, 460)
        for _ in range(60):
            controller.turn()
            time.sleep(0.05)
    assert {pod.uid for pod in pods_of(access, job)} == pods
    found = controller.entry().step
    assert (
        found is not None and found.state is RestartState.RELEASED and found.way is Method.IN_PLACE
    )
    controller.close()


def test_an_attempt_is_not_restarted_again_by_who_does_not_know_that_it_was(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    one = Controller(access, namespace, "one")
    fleet.decided(one.watch(job))
    one.until(lambda: one.manager.state(KEY).doing == "recovering")
    one.close()
    one.lease.give_back()
    new = set(fleet.make_pods(access, job, 2))
    two = Controller(access, namespace, "two")
    two.manager._ledger.book = LedgerData()  # as it was before; its reads come late
    two.manager._ledger.read_at = two.clock() + 3600
    fleet.decided(two.watch(job))
    two.until(lambda: two.lease.may_act())
    for _ in range(60):
        two.turn()
        time.sleep(0.05)
    assert {pod.uid for pod in pods_of(access, job)} == new
    assert len(two.entry().acts) == 1 and two.entry().attempt == 2
    two.close()


@pytest.mark.parametrize("failure", ["the lease is lost", "an error of mwatch"])
def test_a_restart_that_failed_before_anything_was_written_is_tried_again(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    worker = controller.manager._worker
    carry_out, failed = worker.carry_out, list[int]()

    def fail_once(*given: Any) -> TaskResult:
        if failed:
            return carry_out(*given)
        failed.append(1)
        if failure == "the lease is lost":
            return TaskResult(False, "not the leader")
        raise ValueError(failure)

    monkeypatch.setattr(worker, "carry_out", fail_once)
    fleet.decided(controller.watch(job))
    controller.until(lambda: failed and controller.manager.state(KEY).doing == "recovering")
    assert pods_of(access, job) == () and len(controller.entry().acts) == 1
    controller.close()


def test_a_job_that_is_deleted_in_the_middle_of_its_restart_frees_its_place(
    access: Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = worker.end_all_trainers.__kwdefaults__
    assert usual is not None
    monkeypatch.setitem(usual, "seconds", 0.5)
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, settings=replace(QUICK, max_restarts_at_once=1))
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fleet.decided(controller.watch(job, fakes=fakes))
        controller.until(lambda: all(each.asked for each in fakes))
        assert access.delete(JOBS, namespace, "train", uid=job.uid).is_ok
    controller.until(lambda: not controller.manager._cases)
    controller.close()


def test_what_is_late_about_a_job_does_not_erase_the_next_one_of_its_name(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    controller = Controller(access, namespace)
    watch: JobMonitor = controller.watch(job)
    entry = JobEntry(uid="of-the-new-job", attempt=7)
    Ledger(access, namespace).change(lambda book: book.with_job(KEY, entry))
    task = RestartTask("id", KEY, watch.kube, 1, Action.RESTART, "late", False, (), (), None, False)
    controller.manager._worker._let_go(task, "all pods are gone")
    assert controller.entry().attempt == 7
    controller.close()


def test_a_pause_holds_though_the_controllers_clock_was_ahead_when_it_started(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(Clock):
        def now(self) -> float:
            return super().now() + 3600.0

    monkeypatch.setattr(fleet, "Clock", Ahead)
    until = json.dumps({"until": round(time.time()) + 1800, "who": "ann", "why": "looking"})
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    words = {"metadata": {"annotations": {"mwatch.dev/pause": until}}}
    assert access.patch(JOBS, namespace, "train", words).is_ok
    controller = Controller(access, namespace)
    fleet.decided(controller.watch(job))
    controller.until(lambda: controller.manager.state(KEY).held_by == "pause")
    for _ in range(60):
        controller.turn()
        time.sleep(0.05)
    assert controller.manager.state(KEY).held_by == "pause" and len(pods_of(access, job)) == 2
    controller.close()


def test_a_stop_is_not_done_again_after_a_person_has_started_the_job(
    access: Access, namespace: str
) -> None:
    """The controller was killed between the suspend and the word in the ledger that it was done."""
    job = fleet.make_job(access, namespace, in_queue=False)
    step = replace(in_place_step(job, set()), way=Method.STOP)
    entry = JobEntry(uid=job.uid, step=step)
    Ledger(access, namespace).change(lambda book: book.with_job(KEY, entry))
    body = {"metadata": {"annotations": {"mwatch.dev/suspended-by": step.id}},
            "spec": {"suspend": True}}  # fmt: skip
    assert access.patch(JOBS, namespace, "train", body).is_ok
    JobOverrides(access, namespace).resume("train", "fixed")
    controller = Controller(access, namespace)
    watch = controller.watch(job)
    fleet.began(watch, 1)
    controller.until(lambda: controller.manager._ledger.book is not None)
    for _ in range(40):
        controller.turn()
        time.sleep(0.05)
    assert not watch.kube.is_suspended
    controller.close()


def test_what_was_only_observed_spends_no_budget_once_mwatch_may_act(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    controller = Controller(access, namespace)
    watch = controller.watch(job, attempt=4)
    acts, incidents = [], []
    for attempt in (1, 2, 3):
        watch.engine.job.attempt.number = attempt
        decision = fleet.decided(watch)
        watch.engine.record_action(decision, time.time())
        act = watch.engine.record.of_attempt(attempt)
        assert act is not None
        acts.append(act)
        id = f"20260101T00000{attempt}Z-a{attempt}-hang"
        incidents.append(record_of(id, watch, decision, is_act=attempt == 1, now=time.time()))
    fleet.began(watch, 4)
    entry = JobEntry(uid=job.uid, acts=tuple(acts), incidents=tuple(incidents))
    Ledger(access, namespace).change(lambda book: book.with_job(KEY, entry))
    controller.until(lambda: controller.manager._ledger.book is not None)
    controller.turn()
    assert [each.attempt for each in watch.engine.record.acts] == [1]
    controller.close()


def test_a_folder_for_evidence_that_hangs_holds_nobody_up(
    access: Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "evidence_folder", lambda *_: time.sleep(50))
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    settings = replace(QUICK, evidence_seconds=0.5)
    controller = Controller(access, namespace, settings=settings, folder=tmp_path)
    fleet.decided(controller.watch(job))
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    (record,) = controller.entry().incidents
    assert record.evidence is not None and record.evidence.missing
    controller.close()


def test_a_fault_of_ours_about_one_job_does_not_keep_us_from_another(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ill = fleet.make_job(access, namespace, "ill")
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)

    def fails(now: float) -> bool:
        raise ValueError("a fault of ours")

    watch = controller.watch(ill)
    fleet.decided(watch)
    monkeypatch.setattr(watch, "is_catching_up", fails)
    fleet.decided(controller.watch(job))

    def is_recovering() -> bool:
        with suppress(ValueError):
            controller.turn()
        return controller.manager.state(KEY).doing == "recovering"

    until = time.monotonic() + 120
    while not is_recovering():
        assert time.monotonic() < until
        time.sleep(0.05)
    controller.close()
