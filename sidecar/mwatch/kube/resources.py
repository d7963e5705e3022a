# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of Kubernetes objects that mwatch reads or writes, with their paths in the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from mwatch.model.kube.job import JobKind


class ApiResource(NamedTuple):
    group: str
    """Empty: the core group."""
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def is_builtin(self) -> bool:
        """Served by every Kubernetes, unlike custom resources, which include `x-k8s.io`."""
        return "." not in self.group or self.group.endswith(".k8s.io")

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", *, part: str = "") -> str:
        """`namespace` None: all namespaces, or a kind that has none."""
        steps = ["apis", self.group] if self.group else ["api"]
        steps.append(self.version)
        if self.is_namespaced and namespace is not None:
            steps += ["namespaces", namespace]
        steps += [step for step in (self.plural, name, part) if step]
        return "/" + "/".join(quote(step, safe="") for step in steps)

    def typed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The object with its type, which objects in a list lack."""
        return {"apiVersion": self.api_version, "kind": self.kind, **body}


PODS = ApiResource("", "v1", "pods", "Pod")
EVENTS = ApiResource("", "v1", "events", "Event")
CONFIG_MAPS = ApiResource("", "v1", "configmaps", "ConfigMap")
SECRETS = ApiResource("", "v1", "secrets", "Secret")
QUOTAS = ApiResource("", "v1", "resourcequotas", "ResourceQuota")
NODES = ApiResource("", "v1", "nodes", "Node", is_namespaced=False)
SERVICES = ApiResource("", "v1", "services", "Service")
CLAIMS = ApiResource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STORAGE_CLASSES = ApiResource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", is_namespaced=False
)
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
RUNTIMES = ApiResource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", False
)
LEASES = ApiResource("coordination.k8s.io", "v1", "leases", "Lease")
WORKLOADS = ApiResource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
PYTORCH_JOBS = ApiResource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
JOB_SETS = ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAIN_JOBS = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
JOBS = ApiResource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = ApiResource("apps", "v1", "statefulsets", "StatefulSet")

OF_KIND: dict[JobKind, ApiResource] = {
    JobKind.PYTORCH_JOB: PYTORCH_JOBS,
    JobKind.JOB_SET: JOB_SETS,
    JobKind.TRAIN_JOB: TRAIN_JOBS,
    JobKind.JOB: JOBS,
    JobKind.STATEFUL_SET: STATEFUL_SETS,
}
