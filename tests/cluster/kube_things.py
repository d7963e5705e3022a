# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Objects and clients for the tests of `mwatch.kube` on the real API server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cluster.binaries import module_folder
from cluster.control_plane import ControlPlane
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import connect
from mwatch.kube.resources import JOBS, NODES, OF_KIND, PODS, ApiResource
from mwatch.model.kube.job import JobKind, KubeJob, job_of

SERVICE_ACCOUNTS = ApiResource("", "v1", "serviceaccounts", "ServiceAccount")
NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", is_namespaced=False)
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
REVIEWS = ApiResource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False
)
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
MANIFESTS = Path(__file__).parents[2] / "manifests" / "rbac"
_CRD_FILES = {
    "pytorchjobs.kubeflow.org": (
        "github.com/kubeflow/training-operator", "1.8.1", "manifests/base/crds",
        "kubeflow.org_pytorchjobs.yaml",
    ),
    "jobsets.jobset.x-k8s.io": (
        "sigs.k8s.io/jobset", "0.10.1", "config/components/crd/bases",
        "jobset.x-k8s.io_jobsets.yaml",
    ),
    "trainjobs.trainer.kubeflow.org": (
        "github.com/kubeflow/trainer/v2", "2.1.0", "manifests/base/crds",
        "trainer.kubeflow.org_trainjobs.yaml",
    ),
    "workloads.kueue.x-k8s.io": (
        "sigs.k8s.io/kueue", "0.14.0", "config/components/crd/bases",
        "kueue.x-k8s.io_workloads.yaml",
    ),
}  # fmt: skip
MANAGER = "mwatch.dev/test"
POD_SECONDS = 240.0
"""Until a pod runs or ends, or its operator has noticed something, on a busy machine; when all is
well nobody waits so long."""
_numbers = itertools.count(1)


OF_TESTS = "mwatch.dev/of-tests"
"""Label of namespaces that nobody needs after the file that made them."""


def client(plane: ControlPlane, **more: Any) -> Access:
    """As the administrator, or as whoever `impersonate` names."""
    return Access(connect(str(plane.kubeconfig("admin"))), **more)


def impatient(plane: ControlPlane, **more: Any) -> Access:
    """It does not wait before it asks again; a busy API server has time to answer."""
    return client(plane, limits=CallLimits(call_seconds=30.0, tries=2, first_wait=0.01), **more)


def fresh_namespace(access: Access) -> str:
    """With the service account that pods need: no controller makes it here."""
    name = f"t{next(_numbers)}"
    body = _named(NAMESPACES, name, None)
    body["metadata"]["labels"] = {OF_TESTS: "yes"}
    access.call("POST", NAMESPACES.path(None), body=body)
    access.create(SERVICE_ACCOUNTS, name, _named(SERVICE_ACCOUNTS, "default", name))
    return name


def _named(resource: ApiResource, name: str, namespace: str | None) -> dict[str, Any]:
    about = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": about}


def make_job(
    access: Access, namespace: str, name: str = "train", *, pods: int = 3, claim: str = ""
) -> KubeJob:
    """A Job that is left to the test: whoever else runs here makes no pods for it."""
    container = {"name": "pytorch", "image": "localhost/pause:1"}
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if claim:
        pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    body = {
        **_named(JOBS, name, namespace),
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 100,
            "managedBy": MANAGER,
            "template": {"spec": pod},
        },
    }
    body["metadata"]["labels"] = {"mwatch.dev/watch": "true"}
    body["metadata"]["annotations"] = {"mwatch.dev/mode": "act"}
    answer = access.create(JOBS, namespace, body)
    assert answer.is_ok, answer
    job = job_of({**answer.body, "kind": "Job"})
    assert job is not None and job.managed_by == MANAGER
    return replace(job, managed_by="")


def pod_template() -> dict[str, Any]:
    container = {"name": "pytorch", "image": "localhost/pause:1"}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def _specs() -> dict[JobKind, dict[str, Any]]:
    job = {"parallelism": 1, "template": pod_template()}
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": pod_template()}
    stateful = {"template": {"spec": {"containers": pod_template()["spec"]["containers"]}}}
    stateful["template"]["metadata"] = {"labels": {"app": "train"}}
    return {
        JobKind.PYTORCH_JOB: {"pytorchReplicaSpecs": {"Master": replica}},
        JobKind.JOB_SET: {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]},
        JobKind.TRAIN_JOB: {"runtimeRef": {"name": "mwatch"}},
        JobKind.JOB: {**job, "managedBy": MANAGER},
        JobKind.STATEFUL_SET: {
            "replicas": 2, "serviceName": "x", "selector": {"matchLabels": {"app": "train"}},
            **stateful,
        },
    }  # fmt: skip


def make_of(admin: Access, namespace: str, kind: JobKind) -> KubeJob:
    resource = OF_KIND[kind]
    about = {"name": f"train-{kind.value.lower()}", "labels": {"mwatch.dev/watch": "true"}}
    body = {"apiVersion": resource.api_version, "kind": kind.value, "metadata": about}
    answer = admin.create(resource, namespace, {**body, "spec": _specs()[kind]})
    assert answer.is_ok, answer
    job = job_of({**answer.body, "kind": kind.value})
    assert job is not None
    return job


def make_pod(access: Access, job: KubeJob, name: str, *, node: str | None = None,
             owner: KubeJob | None = None) -> str:  # fmt: skip
    """As the Job's controller would, but it never runs; gives its UID back. `owner`: another job
    than its labels say."""
    mine = owner or job
    body = _named(PODS, name, job.namespace)
    body["metadata"]["labels"] = {"batch.kubernetes.io/job-name": job.name}
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": mine.name, "uid": mine.uid,
         "controller": True}
    ]  # fmt: skip
    container = {"name": "pytorch", "image": "localhost/pause:1"}
    body["spec"] = {"schedulerName": "nobody", "containers": [container]}
    if node is not None:
        body["spec"]["nodeName"] = node
    answer = access.create(PODS, job.namespace, body)
    assert answer.is_ok, answer
    return str(answer.body["metadata"]["uid"])


def make_node(access: Access, name: str) -> None:
    access.call("POST", NODES.path(None), body=_named(NODES, name, None))


def make_ready_node(access: Access, name: str) -> None:
    """As a kubelet would tell of itself; nothing runs there."""
    make_node(access, name)
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"status": {"conditions": [ready], "allocatable": {"pods": "110", "cpu": "64"}}}
    assert access.patch(NODES, None, name, status, part="status").is_ok
    # A new node is tainted until its controller sees it ready.
    assert access.patch(NODES, None, name, {"spec": {"taints": None}}).is_ok


def let_read(access: Access, namespace: str, user: str, group: str, resource: str) -> None:
    """Ends when the right is in force."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["get", "list"]}
    group_name = "rbac.authorization.k8s.io"
    access.create(ROLES, namespace, {**_named(ROLES, user, namespace), "rules": [rule]})
    access.create(
        BINDINGS,
        namespace,
        {
            **_named(BINDINGS, user, namespace),
            "roleRef": {"apiGroup": group_name, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group_name, "kind": "User", "name": user}],
        },
    )
    asks = {"namespace": namespace, "verb": "list", "group": group, "resource": resource}
    wait_for(lambda: is_allowed(access, user, asks), f"the right of {user} to read {resource}")


def is_allowed(admin: Access, user: str, asks: Mapping[str, str]) -> bool:
    """By the API server's own word: its authorizer hears of a new role a moment later."""
    spec = {"user": user, "resourceAttributes": asks}
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": spec}
    return bool(admin.call("POST", REVIEWS.path(None), body=body).body["status"]["allowed"])


def install_crds(access: Access) -> None:
    """Once: they are long, and reading them takes seconds."""
    for name, (module, version, folder, file) in _CRD_FILES.items():
        if _is_established(access, name):
            continue
        body = yaml.safe_load((module_folder(module, version) / folder / file).read_text())
        access.call("POST", CRDS.path(None), body=body)
        wait_for(lambda name=name: _is_established(access, name), f"CRD {name}")  # type: ignore[misc]
        group, plural = body["spec"]["group"], body["spec"]["names"]["plural"]
        for version in (each["name"] for each in body["spec"]["versions"] if each["served"]):
            path = f"/apis/{group}/{version}/{plural}"
            wait_for(lambda path=path: access.call("GET", path).is_ok, path)  # type: ignore[misc]


def _is_established(access: Access, name: str) -> bool:
    answer = access.get(CRDS, None, name)
    status = (answer.body.get("status") or {}) if answer.is_ok else {}
    found = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return found.get("Established") == "True"


def manifests(name: str, namespace: str) -> list[dict[str, Any]]:
    """Of `manifests/rbac`, for this namespace."""
    text = (MANIFESTS / name).read_text().replace("namespace: training", f"namespace: {namespace}")
    return [body for body in yaml.safe_load_all(text) if body]


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def names(bodies: Mapping[str, Any]) -> set[str]:
    return {each["metadata"]["name"] for each in bodies["items"]}
