# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Training jobs of a namespace, by label or by name, and the pods that belong to them.

A pod belongs to a job if its labels name the job **and** its chain of owners ends in the job's UID:
labels can be copied, and another job can have the same name later.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoCluster, NoPermission
from mwatch.kube.resources import JOB_SETS, JOBS, OF_KIND, PODS, QUOTAS, WORKLOADS
from mwatch.model.kube.facts import KubeQuota, KubeWorkload, quota_of, workload_of
from mwatch.model.kube.fields import text
from mwatch.model.kube.job import WATCH, JobKind, KubeJob, job_of, with_jobset
from mwatch.model.kube.pod import (
    BATCH_JOB_NAME,
    JOB_NAME,
    JOBSET_NAME,
    KubePod,
    controller_uid,
    pod_of,
)

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
"""The order in which a name is looked up: a TrainJob comes before the JobSet made for it."""
_MAX_NAMES = 500
_METADATA_PAGE = 2000
_MAX_HINTS = 3


class FoundJobs(NamedTuple):
    jobs: tuple[KubeJob, ...]
    kinds: frozenset[JobKind]
    """Kinds that the cluster knows and this user may list."""
    problems: tuple[str, ...] = ()
    """One for each kind that this user may not list; its jobs are missing here."""


class FoundJob(NamedTuple):
    job: KubeJob
    body: Mapping[str, Any]
    """The object in the API server's form."""


def watched_jobs(access: Access, namespace: str | None) -> FoundJobs:
    """NoPermission if this user may list no kind at all."""
    jobs: list[KubeJob] = []
    kinds, problems = set(), list[str]()
    for kind, resource in OF_KIND.items():
        try:
            listing = access.list(resource, namespace, labels=WATCHED)
        except NoPermission as error:
            problems.append(str(error))
            continue
        if listing.is_known:
            kinds.add(kind)
            jobs += filter(None, map(job_of, listing.objects))
    if problems and not kinds:
        raise NoPermission(problems[0])
    return FoundJobs(tuple(jobs), frozenset(kinds), tuple(problems))


def find_job(
    access: Access, namespace: str, name: str, kind: JobKind | None = None
) -> KubeJob | None:
    found = find_whole(access, namespace, name, kind)
    return None if found is None else found.job


def find_whole(
    access: Access, namespace: str, name: str, kind: JobKind | None = None
) -> FoundJob | None:
    """The first kind that has a job of this name. NoPermission if none was found and this user may
    not read some of the kinds."""
    problem: NoPermission | None = None
    for each in KINDS if kind is None else (kind,):
        resource = OF_KIND[each]
        try:
            answer = access.get(resource, namespace, name)
        except NoPermission as error:
            problem = problem or error
            continue
        body = resource.typed(answer.body)
        if answer.is_ok and (job := job_of(body)) is not None:
            return FoundJob(complete(access, job), body)
    if problem is not None:
        raise problem
    return None


def parse_job_name(text: str) -> tuple[JobKind | None, str]:
    """`pytorchjob/gpt` and `PyTorchJob/gpt` as kubectl takes them; InputError for another kind."""
    kind, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    by_name = {each.value.lower(): each for each in JobKind}
    singular = kind.lower().partition(".")[0].removesuffix("s")
    if singular in by_name:
        return by_name[singular], name
    kinds = ", ".join(each.value for each in JobKind)
    raise InputError(f"{text}: mwatch knows no {kind}; it knows {kinds}")


def no_such_job(access: Access, namespace: str, name: str) -> InputError:
    known = _job_names(access, namespace)
    near = difflib.get_close_matches(name, known, _MAX_HINTS, 0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        some = ", ".join(sorted(known)[:_MAX_HINTS])
        hint = f"there are: {some}; run mwatch status -n {namespace}"
    else:
        hint = "the namespace has no jobs; give another with -n, or run mwatch status -A"
    return InputError(f"no job is called {name} in namespace {namespace}; {hint}")


def _job_names(access: Access, namespace: str) -> list[str]:
    """Names of the jobs that this user may list: for a hint, never for an action."""
    names: list[str] = []
    for kind in KINDS:
        try:
            listing = access.list(OF_KIND[kind], namespace)
        except NoCluster:
            raise  # not an API server: ignore its earlier answers too
        except KubeError:
            continue
        names += (text(body, "metadata", "name") for body in listing.objects)
    return list(dict.fromkeys(names))[:_MAX_NAMES]


def complete(access: Access, job: KubeJob) -> KubeJob:
    """A TrainJob with the facts of its JobSet; other jobs unchanged."""
    jobset = _jobset_of(access, job) if job.kind is JobKind.TRAIN_JOB else None
    return job if jobset is None else with_jobset(job, jobset)


def pods_of(access: Access, job: KubeJob, known: Collection[KubePod] = ()) -> tuple[KubePod, ...]:
    """The job's pods as they are now. `known`: the pods as they were a moment ago. If the metadata
    shows that nothing has changed, only that is read: a whole pod is several times as large."""
    owners = owners_of_pods(access, job)
    if known and (same := _unchanged(access, job, owners, known)) is not None:
        return same
    found = map(pod_of, access.list(PODS, job.namespace, labels=pod_labels(job)).objects)
    return tuple(pod for pod in found if pod.owner in owners)


def _unchanged(
    access: Access, job: KubeJob, owners: frozenset[str], known: Collection[KubePod]
) -> tuple[KubePod, ...] | None:
    """The pods, if all of them have the resourceVersion of a known one; else None."""
    listed = access.list(
        PODS, job.namespace, labels=pod_labels(job), page=_METADATA_PAGE, only_metadata=True
    )
    versions = {(pod.uid, pod.resource_version): pod for pod in known if pod.resource_version}
    now = [
        (text(each, "metadata", "uid"), text(each, "metadata", "resourceVersion"))
        for each in listed.objects
        if controller_uid(each) in owners
    ]
    found = [versions.get(each) for each in now]
    return None if None in found else tuple(pod for pod in found if pod is not None)


def pod_labels(job: KubeJob) -> str:
    """The label selector of the job's pods; empty for a StatefulSet, whose labels are the user's
    own, so only the owner decides."""
    label = _LABELS.get(job.kind)
    return f"{label}={job.name}" if label else ""


def owners_of_pods(access: Access, job: KubeJob) -> frozenset[str]:
    """UIDs of the objects that control the job's pods directly."""
    if job.kind not in (JobKind.JOB_SET, JobKind.TRAIN_JOB):
        return frozenset({job.uid})
    top = job if job.kind is JobKind.JOB_SET else _jobset_of(access, job)
    if top is None:
        return frozenset()
    children = access.list(JOBS, job.namespace, labels=f"{JOBSET_NAME}={top.name}").objects
    mine = (each for each in children if controller_uid(each) == top.uid)
    return frozenset(text(each, "metadata", "uid") for each in mine)


def workload_for(access: Access, job: KubeJob) -> KubeWorkload | None:
    if not job.queue:
        return None
    found = map(workload_of, access.list(WORKLOADS, job.namespace).objects)
    return next((each for each in found if each.owner == job.uid), None)


def quotas(access: Access, namespace: str) -> tuple[KubeQuota, ...]:
    return tuple(map(quota_of, access.list(QUOTAS, namespace).objects))


def _jobset_of(access: Access, job: KubeJob) -> KubeJob | None:
    """The JobSet that trainer v2 makes under the same name."""
    answer = access.get(JOB_SETS, job.namespace, job.name)
    if not answer.is_ok or controller_uid(answer.body) != job.uid:
        return None
    return job_of(JOB_SETS.typed(answer.body))
