# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Choose how to restart a job's gang, or refuse: a pure decision on known facts.

Cases it handles: a PyTorchJob with `Never` fails when a pod is deleted, with `ExitCode` when such a
pod exits with a code below 128, with a `backoffLimit` when pods fail again, and succeeds when its
master exits with 0; a Job counts each deleted pod as failed; Kueue owns `suspend` of queued jobs;
HyperPod replaces nodes and pods by itself.

It also checks whether a new gang fits: quota of the namespace, and nodes for its pods. Pods of
other namespaces are not visible, so the check of the nodes is necessary but not sufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mwatch.model.kube.facts import KubeQuota, KubeWorkload, ScopeRule
from mwatch.model.kube.fields import total
from mwatch.model.kube.gang import GangPlan, GangRefusal, Method, Reason, Target
from mwatch.model.kube.job import (
    HYPERPOD_RESUME,
    INJECTED,
    JobKind,
    KubeJob,
    ReplicaGroup,
    pause_of,
    wrappers_observe,
)
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod

_SLACK = 1e-6


def quota_lacks(job: KubeJob, pods: Sequence[KubePod], quotas: Iterable[KubeQuota]) -> str:
    """The quota that a new gang would exceed once the old pods are gone; empty: none."""
    wanted = total(
        {**_charged(group.requests), "pods": 1.0} for group in job.groups for _ in range(group.pods)
    )
    like = next(iter(pods), None)
    for quota in quotas:
        if like is not None and not all(_covers(scope, like) for scope in quota.scopes):
            continue
        # A quota counts ended pods as objects only.
        freed = total({**_charged(pod.requests), "pods": 1.0} for pod in pods if not pod.is_over)
        for name, hard in quota.hard.items():
            needs = _amount(wanted, name)
            after = quota.used.get(name, 0.0) - _amount(freed, name) + needs
            if needs > 0 and after > hard + _SLACK:
                return f"quota {quota.name} has {hard:g} of {name}, and {after:g} would be used"
    return ""


def nodes_lack(job: KubeJob, nodes: Collection[KubeNode], avoid: frozenset[str]) -> str:
    """Why the pods cannot all be placed; empty: they may fit. `avoid`: nodes to leave out."""
    free = {node.name: dict(node.allocatable) for node in nodes if node.name not in avoid}
    known = {node.name: node for node in nodes}
    groups = sorted(job.groups, key=lambda group: -max(group.requests.values(), default=0.0))
    for group in groups:
        homes = [name for name in free if known[name].takes(group.node_selector, group.tolerations)]
        placed = 0
        for name in homes:
            while placed < group.pods and _fits(group, free[name]):
                _take(group, free[name])
                placed += 1
        if placed < group.pods:
            what = group.name or "pods"
            return f"{placed} of {group.pods} {what} fit on the {len(homes)} nodes that take them"
    return ""


def _charged(requests: Mapping[str, float]) -> dict[str, float]:
    """Quotas may limit CPU and memory under either name, with or without `requests.`."""
    named = {f"requests.{name}": amount for name, amount in requests.items()}
    plain = {name: requests[name] for name in ("cpu", "memory") if name in requests}
    return {**named, **plain}


def _amount(amounts: Mapping[str, float], name: str) -> float:
    return amounts.get("pods" if name == "count/pods" else name, 0.0)


def _covers(scope: ScopeRule, pod: KubePod) -> bool:
    """Whether a quota of that scope counts such a pod; an unknown scope counts every pod."""
    if scope.scope == "Terminating":
        return pod.has_deadline
    if scope.scope == "NotTerminating":
        return not pod.has_deadline
    if scope.scope == "BestEffort":
        return not {"cpu", "memory"} & set(pod.requests)
    if scope.scope == "NotBestEffort":
        return bool({"cpu", "memory"} & set(pod.requests))
    if scope.scope == "PriorityClass":
        return _of_class(scope, pod.priority_class)
    return True


def _of_class(scope: ScopeRule, name: str) -> bool:
    if scope.operator == "In":
        return name in scope.values
    if scope.operator == "NotIn":
        return name not in scope.values
    return bool(name) == (scope.operator == "Exists")


def _fits(group: ReplicaGroup, free: Mapping[str, float]) -> bool:
    return free.get("pods", 1.0) >= 1.0 and all(
        free.get(name, 0.0) + _SLACK >= amount for name, amount in group.requests.items()
    )


def _take(group: ReplicaGroup, free: dict[str, float]) -> None:
    free["pods"] = free.get("pods", float(group.pods)) - 1.0
    for name, amount in group.requests.items():
        free[name] = free.get(name, 0.0) - amount


OUR_OWN = (
    "kubernetes.io/job-controller",
    "", "kubeflow.org/training-operator", "jobset.sigs.k8s.io/jobset-controller",
           "trainer.kubeflow.org/trainjob-controller")  # fmt: skip
"""Values of `managedBy` that leave the job to this cluster's controller."""


@dataclass(frozen=True, slots=True)
class GangFacts:
    """Facts read recently, for this decision."""

    pods: tuple[KubePod, ...]
    view_age_seconds: float | None
    nodes: tuple[KubeNode, ...] | None = None  # None: not readable
    quotas: tuple[KubeQuota, ...] | None = None
    workload: KubeWorkload | None = None
    can_in_place: bool = False  # every wrapper can restart in place
    avoid: frozenset[str] = frozenset()  # nodes that the new gang must not use
    is_asked: bool = False  # by a person, who may also restart a job that mwatch only observes
    blamed: str = ""  # UID of the pod to blame, if known
    unused: frozenset[str] = frozenset()
    """Names of newer pods that wait for their first attempt: they can stay."""
    max_view_age_seconds: float = 30.0
    now: float = 0.0  # seconds since 1970, to decide whether a pause has ended


def plan(job: KubeJob, facts: GangFacts) -> GangPlan | GangRefusal:
    for check in (_may, _counts, _sees, _alone, _admitted):
        if (refusal := check(job, facts)) is not None:
            return refusal
    if _is_new(facts):
        # No pod of the gang that was judged is left: the new gang only needs its attempt number.
        note = "all its pods are new already: none is deleted"
        return GangPlan(
            Method.DELETE_PODS, job.kind, job.namespace, job.name, job.uid, (), notes=(note,)
        )
    way = Method.IN_PLACE if _in_place(job, facts) else _OTHER_WAYS[job.kind](job, facts)
    if isinstance(way, GangRefusal):
        return way
    if way is not Method.IN_PLACE and (refusal := _room(job, facts)) is not None:
        return refusal
    stay = _staying(facts) if way is Method.DELETE_PODS else frozenset()
    targets = tuple(
        Target(pod.name, pod.uid, pod.node) for pod in facts.pods if pod.uid not in stay
    )
    return GangPlan(
        way, job.kind, job.namespace, job.name, job.uid, targets,
        first=_first(facts) if way is Method.FAIL_ONE else "",
        notes=tuple(_notes(job, facts, way, len(stay))),
    )  # fmt: skip


def may_stop(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    """Why a job must not be stopped; None: it may be stopped."""
    age = facts.view_age_seconds
    if age is None or age > facts.max_view_age_seconds:
        return GangRefusal(Reason.STALE_VIEW, "the cluster was not seen lately")
    return _may(job, facts)


def _may(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    if job.is_deleting:
        return GangRefusal(Reason.DELETING, "the job is being deleted")
    if job.finished:
        return GangRefusal(Reason.FINISHED, f"the job has ended: {job.finished}")
    if job.is_suspended:
        return GangRefusal(Reason.SUSPENDED, "the job is suspended")
    if pause_of(job, facts.now) is not None and not facts.is_asked:
        return GangRefusal(Reason.PAUSED, "a person has paused mwatch for this job")
    if job.mode != "act" and not facts.is_asked:
        return GangRefusal(Reason.OBSERVING, "mwatch only observes this job")
    if job.managed_by not in OUR_OWN:
        return GangRefusal(Reason.MANAGED_ELSEWHERE, f"the job is managed by {job.managed_by}")
    return None


def _counts(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    """Wrappers that observe request no attempt: each gang is attempt 1 again, and a later incident
    would look like the one that was acted on."""
    if facts.is_asked or not wrappers_observe(job):
        return None
    return GangRefusal(Reason.WRAPPERS_OBSERVE, "its pods were made to observe (MWATCH_MODE in "
                   "their template); make it anew with mwatch inject --mode act")  # fmt: skip


def _sees(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    age = facts.view_age_seconds
    if age is None or age > facts.max_view_age_seconds:
        when = "never" if age is None else f"{age:.0f} s ago"
        return GangRefusal(Reason.STALE_VIEW, f"the cluster was last seen {when}")
    if not facts.pods:
        return GangRefusal(Reason.NO_PODS, "the job has no pods that could be restarted")
    return None


def _alone(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    """HyperPod's auto-resume also deletes pods, when it replaces a node."""
    if job.annotations.get(HYPERPOD_RESUME) != "true":
        return None
    if facts.nodes is None:
        return GangRefusal(Reason.SECOND_ACTOR, "HyperPod's auto-resume is on and the nodes cannot "
                       "be read; grant the right to read nodes, or turn one off")  # fmt: skip
    used = {pod.node for pod in facts.pods}
    sick = [node.name for node in facts.nodes if node.name in used and node.is_replaced]
    if sick:
        return GangRefusal(Reason.SECOND_ACTOR, f"HyperPod is replacing {', '.join(sick[:3])}")
    return None


def _admitted(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    if not job.queue:
        return None
    work = facts.workload
    if work is None:
        return GangRefusal(
            Reason.QUEUED, f"queue {job.queue} has no Workload of this job that we can see"
        )
    if work.evicted or not work.is_active or not work.is_admitted:
        return GangRefusal(Reason.QUEUED, f"queue {job.queue} has not admitted the job")
    return None


def _room(job: KubeJob, facts: GangFacts) -> GangRefusal | None:
    lacks = quota_lacks(job, facts.pods, facts.quotas or ())
    if lacks:
        return GangRefusal(Reason.QUOTA, lacks)
    if facts.nodes is not None and (lacks := nodes_lack(job, facts.nodes, facts.avoid)):
        return GangRefusal(Reason.NODES, lacks)
    return None


def _is_new(facts: GangFacts) -> bool:
    """Whether none of its pods has run anything. Always False for a person's request, which is
    about the pods as they are."""
    return not facts.is_asked and all(
        pod.phase == "Pending" and not pod.is_deleting for pod in facts.pods
    )


def _in_place(job: KubeJob, facts: GangFacts) -> bool:
    """Whether a restart in place is possible: only if every pod exists and can be kept."""
    if not facts.can_in_place or len(facts.pods) < job.pods_wanted:
        return False
    return len(_keepable(facts)) == len(facts.pods)


def _staying(facts: GangFacts) -> frozenset[str]:
    """UIDs of pods that need no replacement: they hold nothing of the old attempt."""
    return frozenset(pod.uid for pod in _keepable(facts) if pod.name in facts.unused)


def _keepable(facts: GangFacts) -> list[KubePod]:
    """Running pods on nodes that may be kept."""
    bad = {node.name for node in facts.nodes or () if not node.is_ready or node.is_replaced}
    bad |= facts.avoid
    return [
        pod
        for pod in facts.pods
        if pod.phase == "Running" and not pod.is_deleting and pod.node not in bad
    ]


def _pytorch_job(job: KubeJob, facts: GangFacts) -> Method | GangRefusal:
    if not job.queue:
        is_safe = _maps_codes(job) and not _is_strict(job) and job.backoff_limit is None
        return Method.DELETE_PODS if is_safe else Method.SUSPEND_RESUME
    if _is_strict(job):
        return GangRefusal(
            Reason.RESTART_POLICY,
            "a pod that is deleted fails this job (restartPolicy), and Kueue owns suspend; "
            "use OnFailure",
        )
    if job.backoff_limit == 0:
        return GangRefusal(Reason.BACKOFF_LIMIT, "backoffLimit 0 fails the job at the first pod "
                       "that ends, and Kueue owns suspend; leave it out")  # fmt: skip
    return Method.DELETE_PODS


def _is_strict(job: KubeJob) -> bool:
    """Whether a deleted pod fails the job."""
    policies = {group.restart_policy for group in job.groups}
    return "Never" in policies or ("ExitCode" in policies and not _maps_codes(job))


def _maps_codes(job: KubeJob) -> bool:
    """Whether a trainer that is ended by SIGTERM reliably exits with 143, as it does under an
    acting wrapper. torchrun makes it 1, and Megatron's own handler 0, which the operator takes for
    the success of the whole job."""
    return INJECTED in job.annotations and job.mode == "act"


def _batch_job(job: KubeJob, facts: GangFacts) -> Method | GangRefusal:
    """Pods removed by suspending a Job do not count as failed; deleted ones do."""
    if not job.queue:
        return Method.SUSPEND_RESUME
    limit = job.backoff_limit or 0
    if job.failed_pods + len(facts.pods) <= limit:
        return Method.DELETE_PODS
    return GangRefusal(
        Reason.BACKOFF_LIMIT,
        f"each deleted pod counts as failed ({job.failed_pods} have, of {limit}), and Kueue owns "
        "suspend; raise backoffLimit",
    )


def _job_set(job: KubeJob, facts: GangFacts) -> Method | GangRefusal:
    if _restarts_all(job):
        return Method.FAIL_ONE
    # A deleted pod counts as one failure of its Job; the Jobs of a part share its limit.
    if all(
        _pods_per_job(group.pods, group.jobs) <= (group.backoff_limit or 0) for group in job.groups
    ):
        return Method.DELETE_PODS
    if not job.queue:
        return Method.SUSPEND_RESUME
    return GangRefusal(Reason.BACKOFF_LIMIT, "the JobSet's failure policy would not restart it, "
                   "and Kueue owns suspend; raise failurePolicy.maxRestarts")  # fmt: skip


def _restarts_all(job: KubeJob) -> bool:
    """Whether one failed pod makes the JobSet restart as a whole."""
    policy = job.failure_policy
    if policy is None or any(group.backoff_limit != 0 for group in job.groups):
        return False
    actions = {_action(job, group.name) for group in job.groups}
    if actions == {"RestartJobSetAndIgnoreMaxRestarts"}:
        return True
    usual = {"RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
    return actions <= usual and policy.restarts < policy.max_restarts


def _action(job: KubeJob, part: str) -> str:
    """The action of the first rule that matches a Job of that part beyond its backoffLimit."""
    assert job.failure_policy is not None
    for rule in job.failure_policy.rules:
        of_part = not rule.parts or part in rule.parts
        of_reason = not rule.reasons or "BackoffLimitExceeded" in rule.reasons
        if of_part and of_reason:
            return rule.action
    return "RestartJobSet"


def _pods_per_job(pods: int, jobs: int) -> int:
    return -(-pods // max(1, jobs))


def _stateful_set(job: KubeJob, facts: GangFacts) -> Method | GangRefusal:
    return Method.DELETE_PODS


_OTHER_WAYS: dict[JobKind, Callable[[KubeJob, GangFacts], Method | GangRefusal]] = {
    JobKind.PYTORCH_JOB: _pytorch_job,
    JobKind.JOB: _batch_job,
    JobKind.JOB_SET: _job_set,
    JobKind.TRAIN_JOB: _job_set,
    JobKind.STATEFUL_SET: _stateful_set,
}


def _first(facts: GangFacts) -> str:
    """UID of the culprit's pod, else of any pod that can be ended."""
    uids = [pod.uid for pod in facts.pods if not pod.is_over and not pod.is_deleting]
    uids = uids or [pod.uid for pod in facts.pods]
    return facts.blamed if facts.blamed in uids else uids[0]


def _notes(job: KubeJob, facts: GangFacts, way: Method, staying: int) -> list[str]:
    notes = []
    if way is not Method.IN_PLACE and facts.nodes is None:
        notes.append("nodes are not seen: whether enough are ready is not known")
    if way is not Method.IN_PLACE and facts.quotas is None:
        notes.append("quotas are not seen")
    if staying:
        notes.append(f"{staying} new pods stay: nothing has run in them yet")
    if way is Method.DELETE_PODS and job.backoff_limit is not None:
        notes.append(f"backoffLimit is {job.backoff_limit}: pods that fail anew count")
    if way is Method.DELETE_PODS and job.kind is JobKind.PYTORCH_JOB and not _maps_codes(job):
        notes.append("without mwatch-run a pod that leaves with 0 may end the job as Succeeded")
    return notes
