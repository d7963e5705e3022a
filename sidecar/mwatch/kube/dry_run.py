# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the API server what it would keep of a native sidecar, by a dry run: nothing is made.

A CRD that does not know `restartPolicy` of an init container drops it without a word (the
training operator 1.7's does), and the sidecar becomes an init container that never ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mwatch.kube.access import Access, Limits
from mwatch.kube.answer import Outcome
from mwatch.kube.resources import JOB_SETS, JOBS, PYTORCH_JOBS, STATEFUL_SETS, Resource

_LIMITS = Limits(call_seconds=5.0, tries=2)
_NAME = "mwatch-dry-run"
_RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
_IMAGE = "mwatch"


def keeps_native(access: Access, namespace: str, kind: str) -> bool | None:
    """None where the API server cannot say: it has no such kind, or an object of this name.

    NoPermission, Rejected and Unavailable as they come: who asks decides without an answer.
    """
    found = _PROBES.get(kind)
    if found is None:
        return None
    resource, spec, path = found
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": spec,
    }
    answer = access.call(
        "POST", resource.path(namespace), query={"dryRun": "All"}, body=body, limits=_LIMITS
    )
    if answer.outcome is not Outcome.OK:
        return None
    pod: Any = answer.body
    for step in path:
        pod = pod[step]
    return any(each.get("restartPolicy") == "Always" for each in pod.get("initContainers", ()))


def _pod(trainer: str, policy: str) -> dict[str, Any]:
    container = {"image": _IMAGE, "command": ["true"]}
    sidecar = {"name": "mwatch", **container, "restartPolicy": "Always"}
    return {
        "metadata": {"labels": {"app": _NAME}},
        "spec": {
            "restartPolicy": policy,
            "containers": [{"name": trainer, **container}],
            "initContainers": [sidecar],
        },
    }


def _jobset() -> dict[str, Any]:
    job = {"name": "node", "template": {"spec": {"template": _pod("node", "Never")}}}
    return {"replicatedJobs": [job]}


_OF_JOBSET: Sequence[str | int] = ("replicatedJobs", 0, "template", "spec", "template", "spec")
_WORKER = {"replicas": 1, "restartPolicy": "OnFailure", "template": _pod("pytorch", "OnFailure")}
_PROBES: Mapping[str, tuple[Resource, dict[str, Any], Sequence[str | int]]] = {
    "PyTorchJob": (
        PYTORCH_JOBS,
        {"pytorchReplicaSpecs": {"Worker": _WORKER}},
        ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec"),
    ),
    "JobSet": (JOB_SETS, _jobset(), ("spec", *_OF_JOBSET)),
    "TrainJob": (
        _RUNTIMES,
        {"template": {"spec": _jobset()}},
        ("spec", "template", "spec", *_OF_JOBSET),
    ),
    "Job": (JOBS, {"template": _pod("main", "Never")}, ("spec", "template", "spec")),
    "StatefulSet": (
        STATEFUL_SETS,
        {
            "serviceName": _NAME,
            "selector": {"matchLabels": {"app": _NAME}},
            "template": _pod("main", "Always"),
        },
        ("spec", "template", "spec"),
    ),
}
