# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a new gang would find room: quota of the namespace, and nodes that take its pods.

Pure. What other namespaces' pods use of a node is not seen, so enough nodes are a condition
and no promise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from mwatch.model.kube_job import KubeJob, ReplicaGroup
from mwatch.model.kube_node import KubeNode
from mwatch.model.kube_pod import KubePod
from mwatch.model.kube_queue import KubeQuota, ScopeRule
from mwatch.model.kube_resources import total

_SLACK = 1e-6


def quota_lacks(job: KubeJob, pods: Sequence[KubePod], quotas: Iterable[KubeQuota]) -> str:
    """What there is no room for once the old pods are gone; empty: there is."""
    wanted = total(
        {**_charged(group.requests), "pods": 1.0} for group in job.groups for _ in range(group.pods)
    )
    like = next(iter(pods), None)
    for quota in quotas:
        if like is not None and not all(_covers(scope, like) for scope in quota.scopes):
            continue
        # Pods that have ended are not counted in what is used, except as objects.
        freed = total({**_charged(pod.requests), "pods": 1.0} for pod in pods if not pod.is_over)
        for name, hard in quota.hard.items():
            needs = _amount(wanted, name)
            after = quota.used.get(name, 0.0) - _amount(freed, name) + needs
            if needs > 0 and after > hard + _SLACK:
                return f"quota {quota.name} has {hard:g} of {name}, and {after:g} would be used"
    return ""


def nodes_lack(job: KubeJob, nodes: Collection[KubeNode], avoid: frozenset[str]) -> str:
    """Why the pods cannot all be placed; empty: they may. `avoid`: nodes that are left out."""
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
    """Quota counts both names."""
    named = {f"requests.{name}": amount for name, amount in requests.items()}
    plain = {name: requests[name] for name in ("cpu", "memory") if name in requests}
    return {**named, **plain}


def _amount(amounts: Mapping[str, float], name: str) -> float:
    return amounts.get("pods" if name == "count/pods" else name, 0.0)


def _covers(scope: ScopeRule, pod: KubePod) -> bool:
    """Whether a quota of that scope counts such a pod; one we do not know is taken to."""
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
