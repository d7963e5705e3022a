# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a real cluster does to pods, told apart from what the trainer does to itself."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cluster import kube_things as things
from mwatch.checks.kube_causes import kube_causes, kube_phase
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.resources import EVENTS, JOBS, NODES, PODS, ApiResource
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding
from mwatch.model.kube.facts import KubeFacts, event_of
from mwatch.model.kube.node import node_of
from mwatch.model.phase import JobPhase

IMAGE = "localhost/pause:1"
PRIORITIES = ApiResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
_RECORD = os.environ.get("MWATCH_RECORD_KUBE")
GRACE = 60
STAYS = {"preStop": {"sleep": {"seconds": GRACE - 5}}}
"""The process does not hear SIGTERM for so long: the pod can be seen on its way out."""
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]


def new_job(access: Access, *, name: str = "train", **spec: Any) -> tuple[str, str]:
    """Its namespace and name. `pod` and `container` are parts of the pod's spec."""
    namespace = things.fresh_namespace(access)
    container = {"name": "pytorch", "image": IMAGE, "imagePullPolicy": "IfNotPresent"}
    container.update(spec.pop("container", {}))
    pod = {"restartPolicy": "Never", "containers": [container], **spec.pop("pod", {})}
    pod.setdefault("terminationGracePeriodSeconds", 2)
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"mwatch.dev/watch": "true"}},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}, **spec},
    }
    assert access.create(JOBS, namespace, body).is_ok
    return namespace, name


def facts(access: Access, namespace: str, name: str, later: float = 0.0) -> KubeFacts:
    job = find_job(access, namespace, name)
    events = access.list(EVENTS, namespace)
    nodes = access.list(NODES, None)
    assert events.is_known and nodes.is_known
    return KubeFacts(
        now=time.time() + later,
        job=job,
        name=name,
        pods=() if job is None else pods_of(access, job),
        events=tuple(map(event_of, events.objects)),
        nodes=tuple(map(node_of, nodes.objects)),
    )


def expect(
    access: Access, where: tuple[str, str], cause: Cause, *says: str, later: float = 60.0
) -> Finding:
    """Wait until this is the only cause and its summary has one of these words. `later`: as if it
    had lasted so long.

    The first mount of a new namespace may fail for a moment: that is a cause before this one, or
    the same for another reason.
    """
    found: list[Finding] = []

    def is_there() -> bool:
        found[:] = kube_causes(facts(access, *where, later))
        if [each.cause for each in found] != [cause]:
            return False
        return not says or any(each in found[0].summary for each in says)

    try:
        things.wait_for(is_there, cause.value, things.POD_SECONDS)
    finally:
        record(access, where[0], cause.value)
        print("found:", found)
    return found[0]


def record(access: Access, namespace: str, name: str) -> None:
    """For the tests that need no cluster."""
    if _RECORD:
        body = {
            "jobs": access.call("GET", JOBS.path(namespace)).body["items"],
            "pods": access.call("GET", PODS.path(namespace)).body["items"],
            "events": access.call("GET", EVENTS.path(namespace)).body["items"],
            "nodes": access.call("GET", NODES.path(None)).body["items"],
            "at": time.time(),
        }
        (Path(_RECORD) / f"{name}.json").write_text(json.dumps(body, indent=1))


def running(access: Access, where: tuple[str, str], count: int = 1) -> None:
    def is_so() -> bool:
        pods = facts(access, *where).pods
        return sum(pod.phase == "Running" for pod in pods) == count

    things.wait_for(is_so, "running pods", things.POD_SECONDS)


def going(access: Access, **more: Any) -> tuple[str, str]:
    """A job whose one pod stays for a while when it is sent away; no other takes its place before
    it is gone."""
    container = {**more.pop("container", {}), "lifecycle": STAYS}
    where = new_job(
        access, backoffLimit=6, podReplacementPolicy="Failed", container=container,
        pod={"terminationGracePeriodSeconds": GRACE}, **more,
    )  # fmt: skip
    running(access, where)
    return where


def let_go(access: Access, where: tuple[str, str]) -> None:
    """Its room is for the next test."""
    for pod in facts(access, *where).pods:
        access.delete(PODS, pod.namespace, pod.name, uid=pod.uid, grace_seconds=0)


def test_a_job_that_runs_has_no_cause_and_no_phase_of_kubernetes(access: Access) -> None:
    where = new_job(access)
    running(access, where)
    record(access, where[0], "running")
    seen = facts(access, *where, later=60.0)
    assert kube_causes(seen) == [] and kube_phase(seen) is None


def test_pods_that_find_no_node(access: Access) -> None:
    where = new_job(access, pod={"nodeSelector": {"gpu": "h200"}})
    found = expect(access, where, Cause.UNSCHEDULABLE, "didn't match")
    assert "didn't match" in found.summary
    assert kube_phase(facts(access, *where)) is JobPhase.SCHEDULING
    assert kube_causes(facts(access, *where, later=-3600.0)) == [], "not at the first look"


def test_an_image_that_is_not_there(access: Access) -> None:
    where = new_job(access, container={"image": "localhost/nobody:1"})
    found = expect(access, where, Cause.IMAGE, "localhost/nobody:1", "ImagePull")
    assert "localhost/nobody:1" in found.summary or "ImagePull" in found.summary


def test_a_volume_whose_secret_is_not_there(access: Access) -> None:
    volume = {"name": "v", "secret": {"secretName": "nobody"}}
    where = new_job(access, pod={"volumes": [volume]},
                    container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})  # fmt: skip
    assert "nobody" in expect(access, where, Cause.VOLUME, "nobody").summary


def test_a_claim_that_is_not_there(access: Access) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "nobody"}}
    where = new_job(access, pod={"volumes": [volume]},
                    container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})  # fmt: skip
    assert "nobody" in expect(access, where, Cause.VOLUME, "nobody").summary


def test_a_job_that_a_person_suspends(access: Access) -> None:
    where = new_job(access)
    running(access, where)
    access.patch(JOBS, *where, {"spec": {"suspend": True}})
    expect(access, where, Cause.SUSPENDED)


def test_a_job_that_a_person_deletes(access: Access) -> None:
    where = new_job(access, pod={"terminationGracePeriodSeconds": 2})
    running(access, where)
    access.call("DELETE", JOBS.path(*where), body={"propagationPolicy": "Foreground"})
    expect(access, where, Cause.DELETED_BY_USER)
    things.wait_for(
        lambda: find_job(access, *where) is None, "the end of the job", things.POD_SECONDS
    )
    expect(access, where, Cause.DELETED_BY_USER)


def test_a_pod_that_a_drain_sends_away(access: Access) -> None:
    where = going(access)
    (pod,) = facts(access, *where).pods
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.name}}
    path = PODS.path(where[0], pod.name, part="eviction")
    access.call("POST", path, body=eviction)
    found = expect(access, where, Cause.DRAINED)
    assert found.culprit is not None and found.culprit.node == "node1"
    let_go(access, where)


def test_a_pod_that_must_make_room(access: Access) -> None:
    (node,) = (each for each in facts(access, "default", "x").nodes or () if each.name == "node1")
    most = {"resources": {"requests": {"cpu": f"{node.allocatable['cpu'] * 0.6:.3f}"}}}
    where = going(access, container=most)
    body = {"apiVersion": PRIORITIES.api_version, "kind": PRIORITIES.kind, "value": 1000}
    access.call("POST", PRIORITIES.path(None), body={**body, "metadata": {"name": "first"}})
    new_job(access, name="first", container=most, pod={"priorityClassName": "first"})
    expect(access, where, Cause.PREEMPTED)
    let_go(access, where)


def test_a_process_that_crashes_is_no_cause_of_kubernetes(access: Access) -> None:
    where = new_job(access, container={"command": ["/nobody"]})
    things.wait_for(lambda: _is_failed(access, where), "a failed job", things.POD_SECONDS)
    record(access, where[0], "crash")
    assert kube_causes(facts(access, *where, later=60.0)) == []


def _is_failed(access: Access, where: tuple[str, str]) -> bool:
    job = find_job(access, *where)
    return job is not None and job.finished == "Failed"
