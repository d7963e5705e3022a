# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster offers a training job: mwatch's image and wrapper, and native sidecars by kind.

A native sidecar is an init container with a `restartPolicy`. A CRD that does not know that field
drops it silently (that of training operator 1.7 does), and the sidecar becomes an init container
that never ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mwatch.kube.access import ONCE, Access, CallLimits, CallOutcome
from mwatch.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    OF_KIND,
    PYTORCH_JOBS,
    STATEFUL_SETS,
    ApiResource,
)
from mwatch.model.kube.fields import items, part, text
from mwatch.model.kube.job import JobKind

_LIMITS = CallLimits(call_seconds=5.0, tries=2)
_NAME = "mwatch-dry-run"
_RUNTIMES = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
_IMAGE = "mwatch"
_CONTROLLER = "mwatch-controller"
_CONTAINER = "controller"


def keeps_sidecar(access: Access, kind: JobKind) -> bool | None:
    """Whether the schema of the job's CRD keeps the restart policy that makes an init container a
    native sidecar; None: not known."""
    resource = OF_KIND[kind]
    if kind in (JobKind.JOB, JobKind.STATEFUL_SET):
        return None
    answer = access.get(CRDS, None, f"{resource.plural}.{resource.group}", limits=ONCE)
    if not answer.is_ok:
        return None
    found = [
        fields
        for each in items(answer.body, "spec", "versions")
        if text(each, "name") == resource.version
        for fields in _init_fields(part(each, "schema", "openAPIV3Schema"))
    ]
    return all("restartPolicy" in each for each in found) if found else None


def _init_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of each `initContainers`: pod templates may be anywhere in the schema."""
    if isinstance(schema, list):
        return [one for each in schema for one in _init_fields(each)]
    if not isinstance(schema, dict):
        return []
    found = part(schema, "initContainers", "items", "properties")
    here = [found] if isinstance(found, dict) else []
    deeper = (each for key, each in schema.items() if key != "initContainers")
    return here + [one for each in deeper for one in _init_fields(each)]


def keeps_native(access: Access, namespace: str, kind: str) -> bool | None:
    """Whether the cluster keeps a native sidecar in this kind, found by a dry run, which creates
    nothing. None: the API server has no such kind, or already has an object of this name. Raises
    NoPermission, Rejected and Unavailable."""
    found = _PROBES.get(kind)
    if found is None:
        return None
    resource, spec, path = found
    body = resource.typed({"metadata": {"name": _NAME, "namespace": namespace}, "spec": spec})
    answer = access.call(
        "POST", resource.path(namespace), query={"dryRun": "All"}, body=body, limits=_LIMITS
    )
    if answer.outcome is not CallOutcome.OK:
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
_PROBES: Mapping[str, tuple[ApiResource, dict[str, Any], Sequence[str | int]]] = {
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


class Installed:
    """Queries of one API call each; KubeError if a query cannot be answered."""

    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self.namespace = namespace

    def image(self) -> str | None:
        """The controller's image, which nodes of this cluster can pull; None: no controller."""
        answer = self._access.get(DEPLOYMENTS, self.namespace, _CONTROLLER, limits=ONCE)
        containers = items(answer.body, "spec", "template", "spec", "containers")
        found = (text(each, "image") for each in containers if each.get("name") == _CONTAINER)
        return next(found, None) if answer.is_ok else None

    def has_configmap(self, name: str) -> bool:
        return self._access.get(CONFIG_MAPS, self.namespace, name, limits=ONCE).is_ok

    def keeps_native(self, kind: str) -> bool | None:
        return keeps_native(self._access, self.namespace, kind)
