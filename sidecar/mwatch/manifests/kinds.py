# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a job has its pod templates, by kind.

| kind | templates | pod label with the name of the run |
| --- | --- | --- |
| PyTorchJob (`kubeflow.org/v1`) | one per replica type | `training.kubeflow.org/job-name` |
| JobSet (`jobset.x-k8s.io`) | one per replicated job | `jobset.sigs.k8s.io/jobset-name` |
| TrainingRuntime, ClusterTrainingRuntime | as a JobSet, below `spec.template` | the same |
| Job (`batch/v1`) | one | `job-name` |
| StatefulSet (`apps/v1`) | one | none: its own name |

A TrainJob has no template; its runtime has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.model.checks import Path, Tree
from mwatch.model.kube.fields import mapping, part

PYTORCHJOB, JOBSET, TRAINJOB, JOB, STATEFULSET = (
    "PyTorchJob", "JobSet", "TrainJob", "Job", "StatefulSet",
)  # fmt: skip
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
JOBS = (PYTORCHJOB, JOBSET, TRAINJOB, JOB, STATEFULSET)
_GROUPS = {
    PYTORCHJOB: "kubeflow.org",
    JOBSET: "jobset.x-k8s.io",
    TRAINJOB: "trainer.kubeflow.org",
    JOB: "batch",
    STATEFULSET: "apps",
    **dict.fromkeys(RUNTIMES, "trainer.kubeflow.org"),
}
RUN_LABELS = {
    PYTORCHJOB: "training.kubeflow.org/job-name",
    JOBSET: "jobset.sigs.k8s.io/jobset-name",
    JOB: "job-name",
    **dict.fromkeys(RUNTIMES, "jobset.sigs.k8s.io/jobset-name"),
}


class Template(NamedTuple):
    """A pod template. `path` has list items by index, to find lines; `steps` by name, for edits."""

    name: str
    path: Path
    steps: tuple[str, ...]
    content: Tree
    pods: int | None
    """Number of pods; None: not a number in the manifest."""
    restart_policy: str | None

    @property
    def spec(self) -> Tree:
        return mapping(self.content, "spec")


def kind_of(content: Any) -> str | None:
    """The kind; None for an object that is neither a job nor a runtime, including the same kind of
    another API group."""
    if not isinstance(content, Mapping):
        return None
    kind, version = str(content.get("kind")), str(content.get("apiVersion", ""))
    group = version.partition("/")[0] if "/" in version else ""
    return kind if kind in _GROUPS and _GROUPS[kind] == group else None


def templates(content: Tree) -> list[Template]:
    """The pod templates, in the order of the manifest, without malformed ones."""
    kind = kind_of(content)
    if kind == PYTORCHJOB:
        return list(_of_pytorchjob(content))
    if kind == JOBSET:
        return list(_of_jobset(content, ("spec",)))
    if kind in RUNTIMES:
        return list(_of_jobset(content, ("spec", "template", "spec")))
    if kind in (JOB, STATEFULSET):
        counts = "parallelism" if kind == JOB else "replicas"
        template = part(content, "spec", "template")
        if isinstance(template, Mapping):
            count = whole(part(content, "spec", counts), default=1)
            path = ("spec", "template")
            policy = "Always" if kind == STATEFULSET else _policy(template)
            return [Template(kind, path, path, template, count, policy)]
    return []


def _of_pytorchjob(content: Tree) -> Iterator[Template]:
    for name, replica in mapping(content, "spec", "pytorchReplicaSpecs").items():
        template = part(replica, "template")
        if not isinstance(template, Mapping):
            continue
        path = ("spec", "pytorchReplicaSpecs", str(name), "template")
        policy = replica.get("restartPolicy")
        count = whole(replica.get("replicas"), default=1)
        yield Template(
            str(name), path, path, template, count, None if policy is None else str(policy)
        )


def _of_jobset(content: Tree, above: tuple[str, ...]) -> Iterator[Template]:
    jobs = part(content, *above, "replicatedJobs")
    for index, job in enumerate(jobs if isinstance(jobs, Sequence) else ()):
        template = part(job, "template", "spec", "template")
        if not isinstance(template, Mapping):
            continue
        name = str(job.get("name"))
        below = ("template", "spec", "template")
        replicas = whole(job.get("replicas"), default=1)
        pods = whole(part(job, "template", "spec", "parallelism"), default=1)
        count = None if replicas is None or pods is None else replicas * pods
        yield Template(
            name,
            (*above, "replicatedJobs", index, *below),
            (*above, "replicatedJobs", f"[{name}]", *below),
            template,
            count,
            _policy(template),
        )


def _policy(template: Tree) -> str | None:
    found = part(template, "spec", "restartPolicy")
    return None if found is None else str(found)


def whole(value: Any, default: int | None = None) -> int | None:
    if value is None:
        return default
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
