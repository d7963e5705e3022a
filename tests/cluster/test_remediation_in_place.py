# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Restarts in place over the sidecars' real pages, and what happens where a pod will not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import remediation_things as fleet
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, QUICK, Controller, FakePod
from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.jobs import pods_of
from mwatch.kube.ledger import Ledger
from mwatch.model.cause import Cause
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import NextStart
from mwatch.model.restart import RestartOrder, RestartOutcome
from mwatch.remediate import manager as manager_module

pytestmark = pytest.mark.timeout(900)


@contextmanager
def wrappers(controller: Controller, fakes: list[FakePod], attempt: int) -> Iterator[list[str]]:
    """Each asks for its attempt when it was asked to restart, and takes what it is given."""
    end, began = threading.Event(), list[str]()

    def wrap(fake: FakePod) -> None:
        while not end.wait(0.05):
            if fake.asked and fake.outcome is RestartOutcome.ACCEPTED:
                told = controller.manager.answer(
                    controller.namespace, "train", fake.token, fake.name, attempt
                )
                if told is not None and "wait" not in told:
                    began.append(f"{fake.name} {told['attempt']} {told.get('resume_from')}")
                    return

    threads = [threading.Thread(target=wrap, args=(each,)) for each in fakes]
    for each in threads:
        each.start()
    try:
        yield began
    finally:
        end.set()
        for each in threads:
            each.join(60)


def test_all_pods_restart_in_place_and_start_together(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    job = fleet.make_job(access, namespace)
    old = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace, folder=tmp_path / "kept")
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes, \
            wrappers(controller, fakes, 7) as began:  # fmt: skip
        fleet.decided(controller.watch(job, attempt=7, fakes=fakes))
        controller.until(lambda: len(began) == 2)
    assert sorted(began) == ["train-0 8 450", "train-1 8 450"]
    assert {pod.uid for pod in pods_of(access, job)} == old
    entry = controller.entry()
    assert entry.step is not None and entry.step.way is Method.IN_PLACE
    log = fakes[0].log
    assert max(map(log.index, ("evidence train-0", "evidence train-1"))) < min(
        map(log.index, ("restart train-0", "restart train-1"))
    )
    order = fakes[0].asked[0]
    assert order.attempt == 7 and not order.wants_evidence
    controller.close()


@pytest.mark.parametrize(
    "outcome",
    [RestartOutcome.OBSERVING, RestartOutcome.WRONG_ATTEMPT, RestartOutcome.UNREACHABLE],
)
def test_one_pod_that_refuses_is_enough_to_replace_all(
    access: Access, namespace: str, tmp_path: Path, outcome: RestartOutcome
) -> None:
    job = fleet.make_job(access, namespace)
    old = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace)
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fakes[1].outcome = outcome
        with wrappers(controller, fakes, 1) as began:
            fleet.decided(controller.watch(job, fakes=fakes))
            controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
            # A wrapper of an old pod that still asks is told nothing it could start with,
            # before all old pods are gone.
            assert len(began) <= 1
    assert not {pod.uid for pod in pods_of(access, job)} & old
    entry = controller.entry()
    assert entry.step is not None and entry.step.way is Method.DELETE_PODS and entry.attempt == 2
    told = [text for _, text in fleet.events(access, namespace) if "not in place" in text]
    assert len(told) == 1 and "train-1" in told[0]
    controller.close()


def test_pods_whose_container_restarted_by_itself_wait_for_the_others(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    """After a crash kubelet starts the containers again: no pod has to go for a new attempt."""
    job = fleet.make_job(access, namespace)
    old = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace)
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        watch = controller.watch(job, attempt=3, fakes=fakes)
        controller.turn()
        controller.until(lambda: controller.manager._ledger.book is not None)
        fleet.decided(watch)
        first = fakes[0]

        def came() -> bool:
            """The wrapper of train-0 is back, and asks every now and then."""
            told = controller.manager.answer(namespace, "train", first.token, "train-0", 3)
            return told is not None and told.get("attempt") == 4 and "resume_from" in told

        with wrappers(controller, fakes[1:], 3) as began:
            controller.until(lambda: came() and began)
        assert not first.asked and began == ["train-1 4 450"]
    assert {pod.uid for pod in pods_of(access, job)} == old
    controller.close()


@pytest.mark.parametrize("in_place", [True, False])
def test_the_new_pod_of_a_gang_that_lost_one_is_not_deleted_a_second_time(
    access: Access, namespace: str, tmp_path: Path, in_place: bool
) -> None:
    job = fleet.make_job(access, namespace)
    first, new = fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, settings=replace(QUICK, in_place=in_place))
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fakes[1].is_new = True
        watch = controller.watch(job, attempt=3, fakes=fakes)
        watch.is_broken = True
        fleet.decided(watch, cause=Cause.DELETED_BY_USER, spends_budget=False)
        controller.until(lambda: controller.manager.state(KEY).held_by == "pods")
        assert "train-1" in controller.manager.state(KEY).text

        def came() -> dict[str, object]:
            """The wrapper of the new pod asks: it knows of no attempt."""
            told = controller.manager.answer(namespace, "train", fakes[1].token, "train-1", 0)
            return dict(told or {})

        assert came()["wait"] is True, "it waits for the others"
        with wrappers(controller, fakes[:1], 3) as began:
            controller.until(lambda: came().get("attempt") == 4 and "resume_from" in came())
            if in_place:
                controller.until(lambda: began)
    here = {pod.uid for pod in pods_of(access, job)}
    assert here == ({first, new} if in_place else {new})
    assert not fakes[1].asked
    (act,) = controller.entry().acts
    assert act.cause is Cause.DELETED_BY_USER and not act.spends_budget
    controller.close()


def test_where_the_fleet_forbids_it_no_pod_is_asked(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, settings=replace(QUICK, in_place=False))
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fleet.decided(controller.watch(job, fakes=fakes))
        controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
        assert not fakes[0].asked and not fakes[1].asked
    assert pods_of(access, job) == ()
    controller.close()


def test_evidence_that_does_not_come_is_reported_and_holds_nobody_up(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    job = fleet.make_job(access, namespace, pods=3)
    fleet.make_pods(access, job, 3)
    # So long the slow one is waited for; a busy machine needs some of it for the other one.
    settings = replace(QUICK, evidence_seconds=8.0, in_place=False)
    controller = Controller(access, namespace, settings=settings, folder=tmp_path / "kept")
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fakes[1].is_slow.set()
        fleet.decided(controller.watch(job, fakes=fakes))
        controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    (record,) = controller.entry().incidents
    assert record.evidence is not None and record.evidence.files == ("train-0.tgz",)
    missing = " ".join(record.evidence.missing)
    assert "train-1: " in missing and "train-2: its sidecar has no address" in missing
    controller.close()


def test_who_has_no_other_way_left_holds_up_no_other_job(
    access: Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trainer has ended, the other pod refuses, and the queue takes the job back just then."""
    monkeypatch.setattr(manager_module, "_AGAIN_SECONDS", 1.0)
    job = fleet.make_job(access, namespace)
    old = set(fleet.make_pods(access, job, 2))
    other = fleet.make_job(access, namespace, "other")
    fleet.make_pods(access, other, 2)
    controller = Controller(access, namespace, settings=replace(QUICK, max_restarts_at_once=1))

    class TakenBack(list[RestartOrder]):
        def append(self, order: RestartOrder) -> None:
            fleet.admitted(access, job, is_so=False)
            super().append(order)

    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fakes[1].outcome, fakes[1].asked = RestartOutcome.OBSERVING, TakenBack()
        fleet.decided(controller.watch(job, fakes=fakes))
        controller.until(lambda: controller.manager.state(KEY).held_by == "queued")
        asked = len(fakes[1].asked)
        fleet.decided(controller.watch(other))
        key = ledger_key("Job", "other")
        controller.until(lambda: controller.manager.state(key).doing == "recovering")
        assert {pod.uid for pod in pods_of(access, job)} == old
        assert controller.entry().is_under_way and len(fakes[1].asked) == asked

        def told() -> list[str]:
            every = fleet.events(access, namespace)
            return [text for reason, text in every if reason == "MwatchHeld" and "(queued)" in text]

        controller.until(told)
        assert len(told()) == 1
        fleet.admitted(access, job, is_so=True)
        controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert pods_of(access, job) == ()
    entry = controller.entry()
    assert entry.step is not None and entry.step.way is Method.DELETE_PODS and entry.attempt == 2
    controller.close()


def test_a_pod_that_cannot_be_asked_is_not_taken_for_one_that_has_restarted(
    access: Access, namespace: str
) -> None:
    """A controller takes the step up, and has not heard where the sidecars are."""
    job = fleet.make_job(access, namespace)
    old = fleet.make_pods(access, job, 2)
    step = GangStep("20260101T000000Z-a1-hang", Method.IN_PLACE, JobKind.JOB, namespace, "train",
                    job.uid, tuple(old), time.time(), 1)  # fmt: skip
    entry = JobEntry(uid=job.uid, step=step, start=NextStart(2, 450, False, "newest"), attempt=2)
    Ledger(access, namespace).change(lambda book: book.with_job(KEY, entry))
    controller = Controller(access, namespace)
    controller.watch(job)
    controller.until(lambda: not controller.entry().is_under_way)
    assert pods_of(access, job) == ()
    controller.close()
