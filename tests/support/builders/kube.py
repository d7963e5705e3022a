# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs, pods and nodes for tests, as the API server would tell of them."""

from __future__ import annotations

from typing import Any

from mwatch.model.kube.job import KubeJob, job_of
from mwatch.model.kube.pod import KubePod, pod_of

ACT = {"mwatch.dev/mode": "act", "mwatch.dev/injected": "1"}


def template(policy: str = "Never", gpus: int = 0, mode: str = "", **pod: Any) -> dict[str, Any]:
    """`mode`: what its pods' wrapper is told; empty: nothing."""
    container: dict[str, Any] = {"name": "pytorch", "image": "trainer"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    if mode:
        container["env"] = [{"name": "OTHER", "value": "observe"},
                            {"name": "MWATCH_MODE", "value": mode}]  # fmt: skip
    return {"spec": {"restartPolicy": policy, "containers": [container], **pod}}


def body(kind: str, spec: dict[str, Any], status: dict[str, Any] | None = None,
         **metadata: Any) -> dict[str, Any]:  # fmt: skip
    about = {
        "name": "train",
        "namespace": "ns",
        "uid": "job-uid",
        "resourceVersion": "7",
        "labels": {"mwatch.dev/watch": "true"},
        "annotations": dict(ACT),
        **metadata,
    }
    return {"kind": kind, "metadata": about, "spec": spec, "status": status or {}}


def made(kind: str, spec: dict[str, Any], status: dict[str, Any] | None = None,
         **metadata: Any) -> KubeJob:  # fmt: skip
    job = job_of(body(kind, spec, status, **metadata))
    assert job is not None
    return job


def pytorch_job(policy: str = "OnFailure", workers: int = 1, gpus: int = 0,
                run_policy: dict[str, Any] | None = None, spec: dict[str, Any] | None = None,
                **metadata: Any) -> KubeJob:  # fmt: skip
    def group(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": policy, "template": template(gpus=gpus)}

    groups = {"Master": group(1), "Worker": group(workers)}
    whole = {"pytorchReplicaSpecs": groups, "runPolicy": run_policy or {}, **(spec or {})}
    return made("PyTorchJob", whole, **metadata)


def job_set(limit: int | None = 0, failure: dict[str, Any] | None = None, restarts: int = 0,
            pods: int = 2, **metadata: Any) -> KubeJob:  # fmt: skip
    spec: dict[str, Any] = {"parallelism": pods, "template": template()}
    if limit is not None:
        spec["backoffLimit"] = limit
    whole: dict[str, Any] = {"replicatedJobs": [{"name": "node", "template": {"spec": spec}}]}
    if failure is not None:
        whole["failurePolicy"] = failure
    return made("JobSet", whole, {"restarts": restarts}, **metadata)


def batch_job(limit: int | None = None, pods: int = 2, failed: int = 0, **metadata: Any) -> KubeJob:
    spec: dict[str, Any] = {"parallelism": pods, "template": template()}
    if limit is not None:
        spec["backoffLimit"] = limit
    return made("Job", spec, {"failed": failed}, **metadata)


def stateful_set(replicas: int = 2, mode: str = "", **metadata: Any) -> KubeJob:
    pods = template("Always", mode=mode)
    return made("StatefulSet", {"replicas": replicas, "template": pods}, **metadata)


def pod(
    name: str = "train-0",
    *,
    node: str = "n1",
    phase: str = "Running",
    gpus: int = 0,
    deleting: bool = False,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> KubePod:
    about: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": "job-uid", "controller": True}],
    }
    if deleting:
        about["deletionTimestamp"] = "2026-01-01T00:10:30Z"
        about["deletionGracePeriodSeconds"] = 30
    whole = {**template(gpus=gpus)["spec"], "nodeName": node, **spec}
    return pod_of({"metadata": about, "spec": whole, "status": {"phase": phase, **(status or {})}})
