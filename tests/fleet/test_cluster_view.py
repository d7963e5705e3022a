# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What belongs to a watched job: by owners, never by labels; and where its sidecars answer."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.fleet.cluster_view import (
    EventIndex,
    OwnedJob,
    PodSeen,
    owned_job,
    owners,
    pod_seen,
    useful_event,
)
from support.builders import kube


def pod_body(**metadata: Any) -> dict[str, Any]:
    about = {"name": "train-0", "uid": "u", "ownerReferences": [{"uid": "o", "controller": True}]}
    port = {"name": "mwatch", "containerPort": 9501}
    containers = [{"name": "pytorch", "ports": [{"name": "x", "containerPort": 23456}]}]
    sidecar = {"name": "mwatch", "restartPolicy": "Always", "ports": [port]}
    return {
        "metadata": {**about, **metadata},
        "spec": {"containers": containers, "initContainers": [sidecar]},
    }


def test_the_port_is_the_one_of_that_name_also_of_a_native_sidecar() -> None:
    found = pod_seen(pod_body())
    assert found is not None and found.port == 9501


def test_an_annotation_goes_before_it() -> None:
    found = pod_seen(pod_body(annotations={"mwatch.dev/port": "9700"}))
    assert found is not None and found.port == 9700


@pytest.mark.parametrize("given", ["", "x", "0", "70000", "-1"])
def test_an_annotation_that_is_no_port_is_none(given: str) -> None:
    found = pod_seen(pod_body(annotations={"mwatch.dev/port": given}))
    assert found is not None and found.port == 9501


def test_a_pod_without_such_a_port_has_no_sidecar() -> None:
    body = pod_body()
    body["spec"]["initContainers"] = []
    found = pod_seen(body)
    assert found is not None and found.port is None


def test_a_pod_that_nobody_owns_is_of_no_job() -> None:
    assert pod_seen(pod_body(ownerReferences=[])) is None


def watched(kind: str, uid: str, owner: str = "") -> OwnedJob:
    metadata: dict[str, Any] = {"uid": uid}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    found = owned_job(kube.body(kind, {}, **metadata))
    assert found is not None
    return found


def between(uid: str, owner: str) -> OwnedJob:
    return OwnedJob(uid, owner, None)


def test_pods_of_a_jobset_belong_to_it_through_its_jobs() -> None:
    found = owners([watched("JobSet", "set"), between("job", "set"), between("other", "x")])
    assert found == {"set": "set", "job": "set"}


def test_pods_of_a_trainjob_belong_to_it_and_not_to_the_jobset_made_for_it() -> None:
    found = owners(
        [watched("TrainJob", "top"), watched("JobSet", "set", "top"), between("job", "set")]
    )
    assert found == {"top": "top", "set": "top", "job": "top"}


def test_owners_that_own_each_other_do_not_hang_us() -> None:
    assert owners([between("a", "b"), between("b", "a")]) == {}


def test_of_a_job_that_nobody_watches_only_its_owner_is_kept() -> None:
    found = owned_job(kube.body("Job", {}, labels={}))
    assert found is not None and found.job is None


def event(
    reason: str, kind: str, name: str, uid: str = "", type: str = "Warning"
) -> dict[str, Any]:
    about = {"kind": kind, "name": name, "uid": uid}
    return {"reason": reason, "type": type, "involvedObject": about}


def test_events_are_those_of_the_job_its_pods_of_now_and_its_volumes() -> None:
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"template": kube.template(volumes=volumes)}
    job = kube.made("Job", spec)
    pod = kube.pod("train-0")
    bodies = [
        event("FailedCreate", "Job", "train", "job-uid"),
        event("FailedMount", "Pod", "train-0", "uid-train-0"),
        event("Preempted", "Pod", "train-0", "uid-of-before"),
        event("ProvisioningFailed", "PersistentVolumeClaim", "data"),
        event("ProvisioningFailed", "PersistentVolumeClaim", "another"),
        event("Pulled", "Pod", "train-0", "uid-train-0", type="Normal"),
    ]
    kept = [found for found in map(useful_event, bodies) if found is not None]
    told = EventIndex(kept).of(job, [PodSeen(pod, 9401)])
    assert sorted((each.reason, each.about_name) for each in told) == [
        ("FailedCreate", "train"),
        ("FailedMount", "train-0"),
        ("ProvisioningFailed", "data"),
    ]
