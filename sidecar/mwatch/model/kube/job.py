# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One data model for training jobs of all kinds: PyTorchJob, JobSet, TrainJob, Job, StatefulSet.

A TrainJob has few fields of its own; `with_jobset` adds those of the JobSet made for it. The mode
of the wrappers is read from the pod template, and a pause from the annotation `mwatch.dev/pause`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from mwatch.model.kube.fields import (
    Object,
    flag,
    is_true,
    items,
    mapping,
    moment,
    number,
    requests_of,
    text,
    text_map,
)

WATCH = "mwatch.dev/watch"
MODE = "mwatch.dev/mode"
POLICY = "mwatch.dev/policy"
PAUSE = "mwatch.dev/pause"
RESUME_FROM = "mwatch.dev/resume-from"
ATTEMPT = "mwatch.dev/attempt"
INJECTED = "mwatch.dev/injected"
REPLICAS = "mwatch.dev/replicas"
AVOID = "mwatch.dev/avoid"
QUEUE = "kueue.x-k8s.io/queue-name"
HYPERPOD_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"


class JobKind(StrEnum):
    PYTORCH_JOB = "PyTorchJob"
    JOB_SET = "JobSet"
    TRAIN_JOB = "TrainJob"
    JOB = "Job"
    STATEFUL_SET = "StatefulSet"


class ReplicaGroup(NamedTuple):
    """Pods made from one template."""

    name: str  # `Master`, `Worker`, or the replicated job; empty: there is only one
    pods: int
    restart_policy: str  # of the kind: a PyTorchJob has `ExitCode`
    requests: Mapping[str, float]
    node_selector: Mapping[str, str]
    tolerations: tuple[Object, ...]
    template: Object
    backoff_limit: int | None = None  # of the Jobs of a JobSet
    jobs: int = 1  # Jobs of a JobSet; `pods` is the total over all of them


class FailureRule(NamedTuple):
    action: str
    reasons: tuple[str, ...]
    parts: tuple[str, ...]


class FailurePolicy(NamedTuple):
    """The failure policy of a JobSet."""

    max_restarts: int
    restarts: int
    rules: tuple[FailureRule, ...]


@dataclass(frozen=True, slots=True)
class KubeJob:
    kind: JobKind
    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_suspended: bool = False
    finished: str = ""  # `Succeeded` or `Failed`; empty: neither
    is_deleting: bool = False
    groups: tuple[ReplicaGroup, ...] = ()
    backoff_limit: int | None = None
    failed_pods: int = 0  # counted by a Job so far
    failure_policy: FailurePolicy | None = None
    managed_by: str = ""
    is_elastic: bool = False

    @property
    def is_watched(self) -> bool:
        return self.labels.get(WATCH) == "true"

    @property
    def mode(self) -> str:
        """Mode of the job: `act` only if the annotation has exactly that value."""
        return "act" if self.annotations.get(MODE) == "act" else "observe"

    @property
    def queue(self) -> str:
        """Kueue's queue, which then owns `suspend`; empty: none."""
        return self.labels.get(QUEUE, "")

    @property
    def pods_wanted(self) -> int:
        return sum(group.pods for group in self.groups)

    @property
    def key(self) -> str:
        return f"{self.kind.value}/{self.namespace}/{self.name}"


def job_of(body: Object) -> KubeJob | None:
    """Read a job; None: not a kind that mwatch supports."""
    kind = text(body, "kind")
    if kind not in set(JobKind):
        return None
    job = KubeJob(
        kind=JobKind(kind),
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        uid=text(body, "metadata", "uid"),
        resource_version=text(body, "metadata", "resourceVersion"),
        created_at=moment(body, "metadata", "creationTimestamp"),
        labels=text_map(body, "metadata", "labels"),
        annotations=text_map(body, "metadata", "annotations"),
        is_deleting=bool(text(body, "metadata", "deletionTimestamp")),
        managed_by=text(body, "spec", "managedBy") or text(body, "spec", "runPolicy", "managedBy"),
    )
    return _READERS[job.kind](job, body)


def with_jobset(job: KubeJob, jobset: KubeJob) -> KubeJob:
    """Join a TrainJob with its JobSet, whose rules a restart follows."""
    return replace(job, groups=jobset.groups, failure_policy=jobset.failure_policy)


def _pytorch_job(job: KubeJob, body: Object) -> KubeJob:
    specs = mapping(body, "spec", "pytorchReplicaSpecs")
    groups = [
        _group(name, spec, mapping(spec, "template"), text(spec, "restartPolicy") or "OnFailure")
        for name, spec in specs.items()
    ]
    return replace(
        job,
        is_suspended=flag(body, "spec", "runPolicy", "suspend"),
        finished=_finished(body, "Succeeded"),
        groups=tuple(groups),
        backoff_limit=number(body, "spec", "runPolicy", "backoffLimit"),
        is_elastic=bool(mapping(body, "spec", "elasticPolicy")),
    )


def _job_set(job: KubeJob, body: Object) -> KubeJob:
    groups = []
    for each in items(body, "spec", "replicatedJobs"):
        spec, jobs = mapping(each, "template", "spec"), _count(each, "replicas")
        group = _group(text(each, "name"), spec, mapping(spec, "template"), _pod_policy(spec))
        limit = number(spec, "backoffLimit")
        groups.append(
            group._replace(
                pods=_count(spec, "parallelism") * jobs,
                backoff_limit=6 if limit is None else limit,
                jobs=jobs,
            )
        )
    return replace(
        job,
        is_suspended=flag(body, "spec", "suspend"),
        finished=_finished(body, "Completed"),
        groups=tuple(groups),
        failure_policy=_failure_policy(body),
    )


def _failure_policy(body: Object) -> FailurePolicy:
    policy = mapping(body, "spec", "failurePolicy")
    rules = tuple(
        FailureRule(text(each, "action"), _texts(each, "onJobFailureReasons"),
                    _texts(each, "targetReplicatedJobs"))
        for each in items(policy, "rules")
    )  # fmt: skip
    # `restarts` includes restarts that did not count; `restartsCountTowardsMax` does not.
    counted = number(body, "status", "restartsCountTowardsMax")
    restarts = number(body, "status", "restarts") if counted is None else counted
    return FailurePolicy(number(policy, "maxRestarts") or 0, restarts or 0, rules)


def _train_job(job: KubeJob, body: Object) -> KubeJob:
    return replace(
        job, is_suspended=flag(body, "spec", "suspend"), finished=_finished(body, "Complete")
    )


def _batch_job(job: KubeJob, body: Object) -> KubeJob:
    spec = mapping(body, "spec")
    group = _group("", spec, mapping(spec, "template"), _pod_policy(spec))
    limit = number(spec, "backoffLimit")
    return replace(
        job,
        is_suspended=flag(spec, "suspend"),
        finished=_finished(body, "Complete"),
        groups=(group._replace(pods=_count(spec, "parallelism")),),
        backoff_limit=6 if limit is None else limit,
        failed_pods=number(body, "status", "failed") or 0,
    )


def _stateful_set(job: KubeJob, body: Object) -> KubeJob:
    spec = mapping(body, "spec")
    group = _group("", spec, mapping(spec, "template"), "Always")
    stopped = group.pods == 0 and REPLICAS in job.annotations
    return replace(job, is_suspended=stopped, groups=(group,))


_READERS = {
    JobKind.PYTORCH_JOB: _pytorch_job,
    JobKind.JOB_SET: _job_set,
    JobKind.TRAIN_JOB: _train_job,
    JobKind.JOB: _batch_job,
    JobKind.STATEFUL_SET: _stateful_set,
}


def _group(name: str, spec: Object, template: Object, policy: str) -> ReplicaGroup:
    pod = mapping(template, "spec")
    return ReplicaGroup(
        name=name,
        pods=_count(spec, "replicas"),
        restart_policy=policy,
        requests=requests_of(pod),
        node_selector=text_map(pod, "nodeSelector"),
        tolerations=tuple(items(pod, "tolerations")),
        template=template,
    )


def _pod_policy(spec: Object) -> str:
    return text(spec, "template", "spec", "restartPolicy") or "Always"


def _count(body: Object, name: str) -> int:
    found = number(body, name)
    return 1 if found is None else found


def _texts(body: Object, name: str) -> tuple[str, ...]:
    found = body.get(name)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _finished(body: Object, good: str) -> str:
    if is_true(body, good):
        return "Succeeded"
    return "Failed" if is_true(body, "Failed") else ""


_VARIABLE = "MWATCH_MODE"


def wrapper_modes(job: KubeJob) -> frozenset[str]:
    """Return the modes of the wrappers by the pod templates.

    Empty: mwatch is not injected, or the mode is not in the template.
    """
    return frozenset(
        text(each, "value")
        for group in job.groups
        for container in items(group.template, "spec", "containers")
        for each in items(container, "env")
        if text(each, "name") == _VARIABLE
    )


def wrappers_observe(job: KubeJob) -> bool:
    """Whether some wrappers observe: they request no attempt and count from 1 in a new pod."""
    return "observe" in wrapper_modes(job)


MAX_TEXT = 200


class Pause(NamedTuple):
    until: float | None  # None: until it is removed
    who: str
    why: str

    @property
    def words(self) -> str:
        return ": ".join(each for each in (self.who, self.why) if each)


def pause_of(job: KubeJob, now: float) -> Pause | None:
    """Return the pause of a job; None: it is not paused, or the pause has ended."""
    text = job.annotations.get(PAUSE)
    if text is None:
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Pause(None, "", text[:MAX_TEXT])
    until = body.get("until")
    end = None
    if isinstance(until, int | float) and not isinstance(until, bool) and math.isfinite(until):
        end = float(until)
    if end is not None and end <= now:
        return None
    return Pause(end, str(body.get("who", ""))[:MAX_TEXT], str(body.get("why", ""))[:MAX_TEXT])


def pause_text(pause: Pause) -> str:
    """The text of the annotation."""
    words = {"who": pause.who[:MAX_TEXT], "why": pause.why[:MAX_TEXT]}
    until = {} if pause.until is None else {"until": round(pause.until)}
    return json.dumps({**until, **words}, sort_keys=True)
