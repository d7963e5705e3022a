# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The facts about one job from the API server at one moment: the job, its pods, Events, nodes,
quotas and Kueue's Workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.model.kube.fields import (
    Object,
    condition,
    is_true,
    items,
    moment,
    number,
    part,
    quantities,
    text,
)
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod, controller_uid


@dataclass(frozen=True, slots=True)
class KubeFacts:
    """Facts about one job; None: not readable, or not requested."""

    now: float
    job: KubeJob | None  # None: the job no longer exists
    name: str
    pods: tuple[KubePod, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    nodes: tuple[KubeNode, ...] | None = None
    workload: KubeWorkload | None = None
    ours: frozenset[str] = frozenset()  # UIDs of pods that mwatch itself is deleting
    left: tuple[KubePod, ...] = ()
    """Pods being deleted or recently deleted, as they were when that was first observed."""

    @property
    def wants_no_pods(self) -> bool:
        """Whether the job's controller removes its pods: gone, being deleted, finished or
        suspended."""
        job = self.job
        return job is None or job.is_deleting or job.is_suspended or bool(job.finished)


_MAX_TEXT = 500


class KubeEvent(NamedTuple):
    about_kind: str
    about_name: str
    about_uid: str
    reason: str
    text: str
    is_warning: bool
    at: float | None  # newest observation
    times: int


def event_of(body: Object) -> KubeEvent:
    times = [
        moment(body, "series", "lastObservedTime"),
        moment(body, "lastTimestamp"),
        moment(body, "eventTime"),
        moment(body, "firstTimestamp"),
        moment(body, "metadata", "creationTimestamp"),
    ]
    return KubeEvent(
        about_kind=text(body, "involvedObject", "kind"),
        about_name=text(body, "involvedObject", "name"),
        about_uid=text(body, "involvedObject", "uid"),
        reason=text(body, "reason"),
        text=text(body, "message")[:_MAX_TEXT],
        is_warning=text(body, "type") == "Warning",
        at=next((each for each in times if each is not None), None),
        times=number(body, "series", "count") or number(body, "count") or 1,
    )


class ScopeRule(NamedTuple):
    scope: str
    operator: str
    values: tuple[str, ...]


class KubeQuota(NamedTuple):
    name: str
    hard: Mapping[str, float]
    used: Mapping[str, float]
    scopes: tuple[ScopeRule, ...]


class KubeWorkload(NamedTuple):
    """Kueue's own record of a job."""

    name: str
    uid: str
    resource_version: str
    owner: str  # UID of the job
    is_active: bool
    is_admitted: bool
    evicted: str  # reason, such as `Preempted` or `PodsReadyTimeout`; empty: not evicted
    evicted_text: str


def quota_of(body: Object) -> KubeQuota:
    plain = part(body, "spec", "scopes")
    scopes = [ScopeRule(str(each), "Exists", ()) for each in (plain or ())]
    for each in items(body, "spec", "scopeSelector", "matchExpressions"):
        values = tuple(map(str, each.get("values") or ()))
        scopes.append(ScopeRule(text(each, "scopeName"), text(each, "operator"), values))
    return KubeQuota(
        text(body, "metadata", "name"),
        quantities(body, "status", "hard") or quantities(body, "spec", "hard"),
        quantities(body, "status", "used"),
        tuple(scopes),
    )


def workload_of(body: Object) -> KubeWorkload:
    evicted = condition(body, "Evicted") if is_true(body, "Evicted") else None
    return KubeWorkload(
        text(body, "metadata", "name"),
        text(body, "metadata", "uid"),
        text(body, "metadata", "resourceVersion"),
        controller_uid(body),
        part(body, "spec", "active") is not False,
        is_true(body, "Admitted"),
        text(evicted, "reason"),
        text(evicted, "message")[:500],
    )
