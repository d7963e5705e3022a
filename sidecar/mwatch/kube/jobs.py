# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The watched jobs of a namespace, and the pods that are theirs.

A pod belongs to a job when its labels say so **and** the chain of owners ends in the job's UID:
labels can be copied, and a job of the same name may be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission
from mwatch.kube.listing import list_all
from mwatch.kube.resources import JOB_SETS, JOBS, OF_KIND, PODS, QUOTAS, WORKLOADS
from mwatch.model.kube.job import WATCH, JobKind, KubeJob, job_of, with_jobset
from mwatch.model.kube.pod import (
    BATCH_JOB_NAME,
    JOB_NAME,
    JOBSET_NAME,
    KubePod,
    controller_uid,
    pod_of,
)
from mwatch.model.kube.queue import KubeQuota, KubeWorkload, quota_of, workload_of

WATCHED = f"{WATCH}=true"
_LABELS = {
    JobKind.PYTORCH_JOB: JOB_NAME,
    JobKind.JOB_SET: JOBSET_NAME,
    JobKind.TRAIN_JOB: JOBSET_NAME,
    JobKind.JOB: BATCH_JOB_NAME,
}
KINDS = (
    JobKind.PYTORCH_JOB, JobKind.TRAIN_JOB, JobKind.JOB_SET, JobKind.JOB, JobKind.STATEFUL_SET,
)  # fmt: skip
"""In the order in which a name is looked up."""


class FoundJobs(NamedTuple):
    jobs: tuple[KubeJob, ...]
    kinds: frozenset[JobKind]
    """That the cluster knows, and that we may list."""
    problems: tuple[str, ...] = ()
    """Kinds that we may not list: their jobs are not seen."""


def watched_jobs(access: Access, namespace: str | None) -> FoundJobs:
    """NoPermission where no kind at all may be listed."""
    jobs: list[KubeJob] = []
    kinds, problems = set(), list[str]()
    for kind, resource in OF_KIND.items():
        try:
            listing = list_all(access, resource, namespace, labels=WATCHED)
        except NoPermission as error:
            problems.append(str(error))
            continue
        if listing is not None:
            kinds.add(kind)
            jobs += filter(None, map(job_of, listing.objects))
    if problems and not kinds:
        raise NoPermission(problems[0])
    return FoundJobs(tuple(jobs), frozenset(kinds), tuple(problems))


def find_job(
    access: Access, namespace: str, name: str, kind: JobKind | None = None
) -> KubeJob | None:
    """By name, of the first kind that has one; a TrainJob comes before the JobSet made for it.
    NoPermission where none was found, and there are kinds that we may not read."""
    problem: NoPermission | None = None
    for each in KINDS if kind is None else (kind,):
        resource = OF_KIND[each]
        try:
            answer = access.get(resource, namespace, name)
        except NoPermission as error:
            problem = problem or error
            continue
        if answer.is_ok:
            whole = {"apiVersion": resource.api_version, "kind": resource.kind, **answer.body}
            job = job_of(whole)
            return job and complete(access, job)
    if problem is not None:
        raise problem
    return None


def complete(access: Access, job: KubeJob) -> KubeJob:
    """A TrainJob with what its JobSet says; others as they are."""
    if job.kind is not JobKind.TRAIN_JOB:
        return job
    jobset = _jobset_of(access, job)
    return job if jobset is None else with_jobset(job, jobset)


def pods_of(access: Access, job: KubeJob) -> tuple[KubePod, ...]:
    """A fresh list."""
    owners = owners_of_pods(access, job)
    listing = list_all(access, PODS, job.namespace, labels=pod_labels(job))
    found = map(pod_of, listing.objects if listing is not None else ())
    return tuple(pod for pod in found if pod.owner in owners)


def pod_labels(job: KubeJob) -> str:
    """Empty: the labels are the user's own (StatefulSet), and only the owner tells."""
    label = _LABELS.get(job.kind)
    return f"{label}={job.name}" if label else ""


def owners_of_pods(access: Access, job: KubeJob) -> frozenset[str]:
    """UIDs of the objects that control the job's pods directly."""
    if job.kind not in (JobKind.JOB_SET, JobKind.TRAIN_JOB):
        return frozenset({job.uid})
    top = job if job.kind is JobKind.JOB_SET else _jobset_of(access, job)
    if top is None:
        return frozenset()
    listing = list_all(access, JOBS, job.namespace, labels=f"{JOBSET_NAME}={top.name}")
    children = listing.objects if listing is not None else ()
    return frozenset(_uid(each) for each in children if controller_uid(each) == top.uid)


def workload_for(access: Access, job: KubeJob) -> KubeWorkload | None:
    """Kueue's record of the job; None where there is none."""
    if not job.queue:
        return None
    listing = list_all(access, WORKLOADS, job.namespace)
    found = map(workload_of, listing.objects if listing is not None else ())
    return next((each for each in found if each.owner == job.uid), None)


def quotas(access: Access, namespace: str) -> tuple[KubeQuota, ...]:
    listing = list_all(access, QUOTAS, namespace)
    return tuple(map(quota_of, listing.objects if listing is not None else ()))


def _jobset_of(access: Access, job: KubeJob) -> KubeJob | None:
    """Trainer v2 makes it under the same name."""
    answer = access.get(JOB_SETS, job.namespace, job.name)
    if not answer.is_ok or controller_uid(answer.body) != job.uid:
        return None
    return job_of({"apiVersion": JOB_SETS.api_version, "kind": JOB_SETS.kind, **answer.body})


def _uid(body: Mapping[str, Any]) -> str:
    return str((body.get("metadata") or {}).get("uid", ""))
