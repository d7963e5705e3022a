# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Controllers on the real API server: one leads, none forgets, each job has its own policy."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.controller_runs import (
    WatchedJob,
    cause,
    page,
    until,
    watching,
)
from mwatch.kube.access import Access
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import CONFIG_MAPS, EVENTS, JOBS
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.kube.ledger import JobEntry, LedgerData

pytestmark = pytest.mark.timeout(900)  # a real API server, and pods that are polled in real time


def test_two_controllers_have_one_leader_and_the_next_takes_over_at_once(
    plane: ControlPlane, job: WatchedJob
) -> None:
    admin = plane.kubeconfig("admin")
    with watching(admin, job.namespace) as first:
        until(first, lambda each: first.lease.is_leader and cause(each) == "healthy", job)
        with watching(admin, job.namespace) as second:
            until(second, lambda each: second.lease.turns > 0 and cause(each) == "healthy", job)
            assert first.lease.is_leader and not second.lease.is_leader
            document = json.loads(page(second, "/v1/jobs"))
            assert document["leader"] is False and len(document["jobs"]) == 1
            first.lease.close(60.0)
            assert not first.lease.is_leader
            until(second, lambda each: second.lease.is_leader, job)


def test_a_controller_that_starts_knows_what_was_done_before(
    plane: ControlPlane, access: Access
) -> None:
    job = WatchedJob(access, attempt=3, host=2)
    act = Act(time.time() - 100, 3, Action.RESTART, Cause.HANG, "hang/x", 10, 20, True)
    entry = JobEntry(uid=job.job.uid, updated_at=time.time(), attempt=3, acts=(act,))
    ledger = Ledger(access, job.namespace)
    ledger.change(lambda book: LedgerData(jobs={"Job.train": entry}))
    try:
        with watching(plane.kubeconfig("admin"), job.namespace, can_act=True) as controller:
            watch = until(controller, lambda each: each.attempt == 3, job)
            kept = watch.engine.record.of_attempt(3)
            assert kept is not None and (kept.cause, kept.resume_from) == (Cause.HANG, 10)
    finally:
        job.close()


def test_the_entry_of_another_job_of_the_same_name_is_not_believed(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    act = Act(time.time() - 100, 1, Action.RESTART, Cause.HANG, "hang/x", 10, 20, True)
    entry = JobEntry(uid="of-last-week", updated_at=time.time(), attempt=1, acts=(act,))
    Ledger(access, job.namespace).change(lambda book: LedgerData(jobs={"Job.train": entry}))
    with watching(plane.kubeconfig("admin"), job.namespace, can_act=True) as controller:
        watch = until(controller, lambda each: cause(each) == "healthy", job)
        assert not watch.engine.record.acts


def test_the_policy_that_a_job_names_is_used_and_a_bad_one_is_reported(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    def say(text: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"},
                "data": {"policy.toml": text}}  # fmt: skip
        if not access.create(CONFIG_MAPS, job.namespace, body).is_ok:
            access.patch(CONFIG_MAPS, job.namespace, "mine", {"data": {"policy.toml": text}})

    say("[hang]\nprobe_floor_seconds = 17.0\n")
    note = {"metadata": {"annotations": {"mwatch.dev/policy": "mine"}}}
    access.patch(JOBS, job.namespace, "train", note)
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: each.engine.settings.hang.probe_floor_seconds == 17.0, job)
        say("[hang]\nprobe_flor_seconds = 1.0\n")
        controller.policies.read()
        watch = until(
            controller, lambda each: each.policy_problem and cause(each) == "healthy", job
        )
        assert watch.engine.settings.hang.probe_floor_seconds == 5.0
        assert "unknown key hang.probe_flor_seconds" in watch.policy_problem

        def reasons() -> list[str]:
            listed = access.call("GET", EVENTS.path(job.namespace)).body["items"]
            return [each["reason"] for each in listed]

        things.wait_for(lambda: bool(reasons()), "the Event")
        assert reasons() == ["PolicyRefused"]


def test_a_fault_about_one_job_does_not_hold_the_others(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    other = things.make_job(access, job.namespace, "other", pods=1)
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: cause(each) == "healthy", job)
        until(controller, lambda each: each.kube.name == "other", job)
        broken = next(each for each in controller.jobs if each.kube.uid == other.uid)
        broken.engine = None  # type: ignore[assignment]
        before = job.iteration
        until(
            controller,
            lambda each: (
                each.kube.name == "train" and (each.engine.job.attempt.iteration or 0) > before
            ),
            job,
        )
        assert controller.faults.count > 0


def test_a_job_that_is_deleted_or_loses_its_label_is_forgotten(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: cause(each) == "healthy", job)
        access.patch(
            JOBS, job.namespace, "train", {"metadata": {"labels": {"mwatch.dev/watch": None}}}
        )

        def is_forgotten() -> bool:
            controller.turn()
            return not controller.jobs

        things.wait_for(is_forgotten, "that it is forgotten")
        # What was under way ends; nothing new is asked.
        poll = controller.poll
        things.wait_for(lambda: not poll._pods and not poll._tasks, "the end of its polls")
        asked = controller.poll.polls
        for _ in range(15):
            controller.turn()
            time.sleep(0.1)
        assert controller.poll.polls == asked


def test_the_phase_of_a_job_in_no_mode_is_only_observed(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    access.patch(
        JOBS, job.namespace, "train", {"metadata": {"annotations": {"mwatch.dev/mode": None}}}
    )
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        watch = until(controller, lambda each: cause(each) == "healthy", job)
        assert not watch.is_acting
        assert replace(watch.kube).mode == "observe"
