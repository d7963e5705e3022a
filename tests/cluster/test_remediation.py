# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller does to jobs, on the real API server: once, after evidence, and then told."""

from __future__ import annotations

import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster import kube_things as things
from cluster import remediation_things as fleet
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, Controller
from mwatch.kube.access import Access
from mwatch.kube.errors import Unavailable
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.resources import JOBS, PODS
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.kube.gang import Method
from mwatch.model.kube.restart_state import RestartState

pytestmark = pytest.mark.timeout(900)


def test_a_gang_goes_after_its_evidence_is_stored_and_the_wrappers_are_reported(
    access: Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fleet.make_job(access, namespace)
    old = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace, folder=tmp_path / "kept")
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        watch = controller.watch(job, attempt=3, fakes=fakes)
        fleet.decided(watch, pod="train-1", avoid_node=True)  # in place does not fix hardware
        seen: list[tuple[set[str], bool]] = []
        allowed = access.delete

        def delete(resource: Any, space: str, name: str, **more: Any) -> Any:
            bundles = {each.name for each in (tmp_path / "kept").rglob("*.tgz")}
            seen.append((bundles, controller.entry().is_under_way))
            return allowed(resource, space, name, **more)

        monkeypatch.setattr(access, "delete", delete)
        controller.until(lambda: controller.entry().start is not None)
        waits = controller.manager.answer(namespace, "train", "", "train-0", 3)
        controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert seen and all(each == ({"train-0.tgz", "train-1.tgz"}, True) for each in seen)
    assert not {pod.uid for pod in pods_of(access, job)} & old
    entry = controller.entry()
    assert entry.step is not None and entry.step.state is RestartState.RELEASED
    assert [act.attempt for act in entry.acts] == [3] and entry.attempt == 4
    (record,) = entry.incidents
    assert record.is_carried_out and record.resume_from == 450 and record.evidence is not None
    with tarfile.open(Path(record.evidence.folder) / "train-1.tgz") as bundle:
        assert any(name.endswith("stacks.txt") for name in bundle.getnames())
    assert waits is None or waits["attempt"] == 4
    told = controller.manager.answer(namespace, "train", "", "train-0", 3)
    assert told is not None and (told["attempt"], told["resume_from"]) == (4, 450)
    assert told["in_seconds"] <= 0.5
    found = find_job(access, namespace, "train")
    assert found is not None and found.annotations["mwatch.dev/attempt"] == "4"
    assert found.annotations["mwatch.dev/resume-from"] == "450"
    reasons = {reason for reason, _ in fleet.events(access, namespace)}
    assert {"MwatchRestarting", "MwatchRestarted"} <= reasons
    controller.close()


def test_a_checkpoint_is_chosen_when_every_pod_has_reported_what_it_saw_before(
    access: Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod prints what is wrong, another what was saved."""
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, folder=tmp_path / "kept")
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        watch = controller.watch(job, attempt=3, fakes=fakes)
        watch._answer_seconds = 600.0  # a pod that has not reported for so long is not waited for
        fleet.decided(watch)
        seen = controller.see
        monkeypatch.setattr(controller, "see", lambda watch: None)
        controller.until(lambda: is_prepared(controller))
        assert len(list((tmp_path / "kept").rglob("*.tgz"))) == 2
        for _ in range(10):
            controller.turn()
        assert controller.manager.state(KEY).doing == "evidence"
        assert not controller.entry().acts
        fleet.decided(watch, resume_from=460)
        monkeypatch.setattr(controller, "see", seen)
        controller.until(lambda: controller.entry().start is not None)
    start = controller.entry().start
    assert start is not None and start.resume_from == 460
    controller.close()


def is_prepared(controller: Controller) -> bool:
    """All that its worker had to do before the act is done."""
    case = controller.manager._cases.get(KEY)
    return case is not None and case.future is not None and case.future.done()


def test_two_controllers_restart_once(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    one = Controller(access, namespace, "one")
    two = Controller(access, namespace, "two")
    for each in (one, two):
        fleet.decided(each.watch(job))
    one.until(lambda: two.turn() or one.manager.state(KEY).doing == "recovering")
    new = set(fleet.make_pods(access, job, 2))
    for _ in range(10):
        one.turn()
        two.turn()
    assert {pod.uid for pod in pods_of(access, job)} == new
    assert len(one.entry().acts) == 1 and one.entry().attempt == 2
    assert two.manager.state(KEY).held_by == "not_leader"
    assert two.manager.answer(namespace, "train", "", "train-0", 1) is None
    one.close()
    two.close()


def test_a_controller_killed_in_the_middle_is_followed_by_one_that_goes_on(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fleet.make_job(access, namespace, pods=3)
    fleet.make_pods(access, job, 3)
    first = Controller(access, namespace, "one")
    fleet.decided(first.watch(job, attempt=5))
    allowed = access.delete
    deletes: list[str] = []
    lock = threading.Lock()  # several are sent at a time

    def delete(resource: Any, space: str, name: str, **more: Any) -> Any:
        with lock:
            is_first = not deletes
            deletes.append(name)
        if not is_first:
            first.manager._worker.closing.set()  # as if it were gone, after the first delete
            raise Unavailable("killed")
        return allowed(resource, space, name, **more)

    monkeypatch.setattr(access, "delete", delete)
    first.until(lambda: first.manager._worker.closing.is_set())
    first.close()  # also the first delete is over
    monkeypatch.setattr(access, "delete", allowed)
    first.lease.give_back()
    left = {pod.name for pod in pods_of(access, job)}
    assert len(left) == 2
    (gone,) = {f"train-{index}" for index in range(3)} - left
    new = things.make_pod(access, job, gone)

    second = Controller(access, namespace, "two")
    second.watch(job, attempt=5)
    second.until(lambda: second.manager.state(KEY).doing == "recovering")
    assert {pod.uid for pod in pods_of(access, job)} == {new}
    entry = second.entry()
    assert entry.attempt == 6 and [act.attempt for act in entry.acts] == [5]
    told = second.manager.answer(namespace, "train", "", "train-0", 5)
    assert told is not None and told["attempt"] == 6
    second.close()


def test_a_controller_that_starts_again_repeats_nothing(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    first = Controller(access, namespace)
    fleet.decided(first.watch(job, attempt=5))
    first.until(lambda: first.manager.state(KEY).doing == "recovering")
    first.close()
    new = set(fleet.make_pods(access, job, 2))
    # Its engine says what the first one's had said: it has not seen the new attempt yet.
    second = Controller(access, namespace, lease=first.lease)
    fleet.decided(second.watch(job, attempt=5))
    second.until(lambda: second.manager.answer(namespace, "train", "", "train-0", 5))
    for _ in range(10):
        second.turn()
    assert {pod.uid for pod in pods_of(access, job)} == new
    assert len(second.entry().acts) == 1 and second.entry().attempt == 6
    told = second.manager.answer(namespace, "train", "", "train-0", 5)
    assert told is not None and (told["attempt"], told["resume_from"]) == (6, 450)
    second.close()


def test_what_is_only_observed_is_written_down_once_and_nothing_is_changed(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace, mode="observe")
    old = set(fleet.make_pods(access, job, 2))
    controller = Controller(access, namespace)
    watch = controller.watch(job)
    fleet.decided(watch)
    controller.until(lambda: controller.entry().incidents)
    controller.until(lambda: fleet.events(access, namespace))
    for _ in range(5):
        controller.turn()
    assert {pod.uid for pod in pods_of(access, job)} == old
    entry = controller.entry()
    (record,) = entry.incidents
    assert not record.is_carried_out and record.action is Action.RESTART
    assert entry.step is None and entry.start is None and len(entry.acts) == 1
    ((reason, text),) = fleet.events(access, namespace)
    assert reason == "MwatchWould" and "from checkpoint 450" in text
    # A person lets it act: then it does, for the same attempt.
    access.patch(
        JOBS, namespace, "train", {"metadata": {"annotations": {"mwatch.dev/mode": "act"}}}
    )
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert not {pod.uid for pod in pods_of(access, job)} & old
    controller.close()


def test_a_stop_suspends_after_evidence_and_once(
    access: Access, namespace: str, tmp_path: Path
) -> None:
    job = fleet.make_job(access, namespace, in_queue=False)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, folder=tmp_path / "kept")
    with fleet.fakes(access, job, 2, tmp_path / "pods") as fakes:
        fleet.decided(controller.watch(job, fakes=fakes), Action.STOP, Cause.OOM, resume_from=None)
        controller.until(lambda: getattr(find_job(access, namespace, "train"), "is_suspended", 0))
        # Its last word, after the Event.
        controller.until(lambda: not controller.entry().is_under_way)
    entry = controller.entry()
    assert entry.step is not None and entry.step.way is Method.STOP and entry.start is None
    assert {each.name for each in (tmp_path / "kept").rglob("*.tgz")} == {
        "train-0.tgz", "train-1.tgz"
    }  # fmt: skip
    reasons = [reason for reason, _ in fleet.events(access, namespace)]
    assert reasons.count("MwatchStopped") == 1
    access.patch(JOBS, namespace, "train", {"spec": {"suspend": False}})
    for _ in range(10):
        controller.turn()
    found = find_job(access, namespace, "train")
    assert found is not None and not found.is_suspended  # a person has started it again
    controller.close()


def test_an_order_is_spent_when_the_new_gang_trains(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    watch = controller.watch(job)
    fleet.decided(watch)
    watch.engine.job.attempt.iteration = 480
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    fleet.make_pods(access, job, 2)
    fleet.began(watch, 2, 451)
    controller.until(lambda: controller.entry().start is None)
    assert controller.entry().attempt == 2
    assert controller.manager.state(KEY).doing == "nothing"
    fleet.began(watch, 2, 481)
    controller.until(lambda: controller.entry().incidents[-1].times.first_new_iteration)
    assert controller.entry().incidents[-1].lost_iterations == 30
    # Who asks now does not get the old order, whoever it is.
    late = controller.manager.answer(namespace, "train", "", "train-1", 0)
    assert late is not None and late["by_rule"] is True
    controller.close()


def test_a_pod_that_was_deleted_meanwhile_does_not_stop_the_rest(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    uid, *_ = fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    fleet.decided(controller.watch(job))
    access.delete(PODS, namespace, "train-0", uid=uid)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert pods_of(access, job) == ()
    controller.close()
