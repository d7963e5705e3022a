# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's eyes on the real API server: jobs found, pods polled, nobody deceived."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.controller_runs import (
    WatchedJob,
    cause,
    make_pod,
    page,
    remove_pod,
    set_status,
    until,
    watching,
)
from cluster.cut_line import CutLine
from cluster.test_kube_access import compact
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access
from mwatch.kube.resources import EVENTS, JOBS
from mwatch.model.decision import Action
from mwatch.model.phase import JobPhase

pytestmark = pytest.mark.timeout(900)  # a real API server, and pods that are polled in real time


def wants_action(watch: JobMonitor) -> bool:
    return watch.assessment is not None and watch.assessment.decision.action is not Action.NONE


def detectors(watch: JobMonitor) -> set[str]:
    return set() if watch.assessment is None else {e.detector for e in watch.assessment.findings}


def test_a_job_that_trains_is_found_polled_and_reported(
    plane: ControlPlane, job: WatchedJob
) -> None:
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        # A busy machine may see the cluster late now and then.
        watch = until(
            controller,
            lambda each: cause(each) == "healthy" and (each.view_age_seconds or 9) < 5,
            job,
        )
        assert {each.pod.name for each in watch.pods.values()} == {"train-0", "train-1"}
        assert watch.phase is not None
        assert watch.view_age_seconds is not None and watch.view_age_seconds < 5
        until(controller, lambda each: (each.engine.job.attempt.iteration or 0) > 5, job)

        def jobs() -> list[dict[str, Any]]:
            return list(json.loads(page(controller, "/v1/jobs"))["jobs"])

        def is_told(_: JobMonitor) -> bool:
            (told,) = jobs()
            is_healthy = (told["verdict"] or {}).get("cause") == "healthy"
            return is_healthy and told["pods"]["answering"] == 2

        until(controller, is_told, job)
        (told,) = jobs()
        assert (told["kind"], told["name"], told["mode"]) == ("Job", "train", "act")
        assert told["pods"]["wanted"] == 2
        assert told["verdict"]["cause"] == "healthy"
        one = json.loads(page(controller, f"/v1/jobs/{job.namespace}/train"))
        assert one["uid"] == job.job.uid
        metrics = page(controller, "/metrics").decode()
        assert f'mwatch_iteration{{run="train",run_namespace="{job.namespace}"}}' in metrics
        assert 'mwatch_controller_jobs{state="act"} 1' in metrics
        assert page(controller, "/healthz") == b"ok\n"


def test_a_sidecar_that_cannot_be_reached_makes_the_job_blind_and_not_hung(
    plane: ControlPlane, job: WatchedJob
) -> None:
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: cause(each) == "healthy", job)
        for pod in job.pods:
            pod.hang_up()
        # One of them may be noticed before the other.
        watch = until(controller, lambda each: detectors(each) == {"blind"})
        assert cause(watch) == "blind"
        seen = set()
        for _ in range(30):
            controller.turn()
            assert watch.assessment is not None
            seen |= detectors(watch)
            time.sleep(0.1)
        assert seen == {"blind"}
        for pod in job.pods:
            pod.listen()
        until(controller, lambda each: cause(each) == "healthy", job)


def test_a_snapshot_from_a_foreign_uid_is_refused(plane: ControlPlane, job: WatchedJob) -> None:
    job.pods[1].be("somebody-else")
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:

        def is_refused(each: JobMonitor) -> bool:
            """A busy machine may give another reason first: no answer in time."""
            mine, foreign = (each.pods.get(uid) for uid in job.uids)
            is_known = mine is not None and mine.snapshot is not None
            return is_known and foreign is not None and foreign.problem.startswith("refused")

        watch = until(controller, is_refused, job)
        refused = watch.pods[job.uids[1]]
        assert refused.snapshot is None and refused.problem.startswith("refused: the server there")
        assert list(watch.engine.job.streams) == ["train-0"]
        assert controller.poll.failures["foreign"] >= 1


def test_two_pods_that_swap_addresses_are_distinguished_by_their_uids(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    first, second = job.pods
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: cause(each) == "healthy", job)
        set_status(access, job.namespace, "train-0", second.address)
        until(controller, lambda each: "refused" in each.pods[job.uids[0]].problem, job)
        set_status(access, job.namespace, "train-0", first.address)
        until(controller, lambda each: not each.pods[job.uids[0]].problem, job)


def test_an_api_server_that_goes_away_is_reported_and_the_pods_are_watched_on(
    plane: ControlPlane, job: WatchedJob
) -> None:
    line = CutLine(plane)
    try:
        with watching(line.kubeconfig, job.namespace) as controller:
            until(controller, lambda each: cause(each) == "healthy", job)
            line.cut()
            watch = until(controller, lambda each: (each.view_age_seconds or 0) > 4, job)
            before = watch.engine.job.attempt.iteration or 0

            def goes_on(each: JobMonitor) -> bool:
                has_trained = (each.engine.job.attempt.iteration or 0) > before
                return has_trained and cause(each) == "healthy"

            until(controller, goes_on, job)
            assert (watch.view_age_seconds or 0) > 4 and controller.fleet.problem
            line.fix()
            again = until(controller, lambda each: (each.view_age_seconds or 9) < 4, job)
            assert again is watch
            until(controller, lambda each: not controller.fleet.problem, job)
    finally:
        line.close()


def test_what_the_api_server_has_forgotten_is_read_anew(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    line = CutLine(plane)
    try:
        with watching(line.kubeconfig, job.namespace) as controller:
            until(controller, lambda each: cause(each) == "healthy", job)
            lists = controller.fleet.relists
            line.cut()
            until(controller, lambda each: (each.view_age_seconds or 0) > 2, job)
            for number in range(3):
                about = {"kind": "Pod", "name": "train-0", "uid": job.uids[0],
                         "namespace": job.namespace}  # fmt: skip
                body = {
                    "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{number}"},
                    "involvedObject": about, "reason": "FailedMount", "type": "Warning",
                }  # fmt: skip
                assert access.create(EVENTS, job.namespace, body).is_ok
            compact(plane)  # the version that the watch on Events goes on from is gone: 410
            line.fix()

            def is_healthy(each: JobMonitor) -> bool:
                return len(each.facts.events) == 3 and cause(each) == "healthy"

            until(controller, is_healthy, job)
            assert controller.fleet.relists > lists
    finally:
        line.close()


def test_a_pod_that_somebody_deletes_is_informed_and_its_gang_is_restarted_without_budget(
    plane: ControlPlane, access: Access, job: WatchedJob
) -> None:
    with watching(plane.kubeconfig("admin"), job.namespace) as controller:
        until(controller, lambda each: cause(each) == "healthy", job)
        until(controller, lambda each: (each.engine.job.attempt.iteration or 0) > 5, job)
        until(
            controller, lambda each: each.engine.job.streams.keys() >= {"train-0", "train-1"}, job
        )
        job.pods[1].hang_up()
        remove_pod(access, job.namespace, "train-1", job.uids[1])
        # It may be seen on its way out first, when nothing is broken yet.
        watch = until(controller, lambda each: each.is_broken and cause(each) == "deleted_by_user")
        assert watch.assessment is not None
        assert watch.assessment.decision.action is Action.NONE, "its place is empty"

        uid = make_pod(access, job.job, "train-1", job.pods[1].address, job.pods[1].port)
        watch = until(controller, wants_action)
        assert cause(watch) == "deleted_by_user" and watch.assessment is not None
        assert not watch.assessment.decision.spends_budget

        job.iteration = 0
        for pod in job.pods:
            pod.attempt, pod.started_at = 2, time.time()
        job.pods[1].be(uid)
        job.pods[1].listen()
        job.pods[0].be(job.uids[0])
        watch = until(controller, lambda each: each.attempt == 2 and cause(each) == "healthy", job)
        assert watch.engine.job.past


def test_kubernetes_causes_explain_a_job_that_waits(plane: ControlPlane, access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    things.make_pod(access, job, "train-0")
    waits = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
             "message": "0/9 nodes are available", "lastTransitionTime": "2020-01-01T00:00:00Z"}
        ],
    }  # fmt: skip
    access.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/train-0/status",
                body={"status": waits}, kind="application/merge-patch+json")  # fmt: skip
    with watching(plane.kubeconfig("admin"), namespace) as controller:
        watch = until(controller, lambda each: cause(each) == "unschedulable")
        assert watch.phase is JobPhase.SCHEDULING
        access.patch(JOBS, namespace, "train", {"spec": {"suspend": True}})
        until(controller, lambda each: cause(each) == "suspended")
