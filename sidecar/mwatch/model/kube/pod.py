# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pod as the API server reports it.

That does not include the state of its processes: a Running pod may hang, and a pod on a lost node
keeps its last state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mwatch.model.kube.fields import (
    Object,
    condition,
    flag,
    items,
    mapping,
    moment,
    number,
    part,
    requests_of,
    text,
    text_map,
)

JOB_NAME = "training.kubeflow.org/job-name"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
BATCH_JOB_NAME = "batch.kubernetes.io/job-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
MAX_TEXT = 500
SIDECAR = "mwatch"
"""The name of mwatch's own container in a training pod."""
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_CREATING = _STARTING | {""}
_NOT_STARTED = frozenset(
    {"StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError"}
)


class Container(NamedTuple):
    """State of one container; `is_sidecar`: an init container that keeps running."""

    name: str
    is_init: bool
    is_sidecar: bool
    is_running: bool
    restarts: int
    waiting: str  # reason; empty: not waiting
    waiting_text: str
    exit_code: int | None  # of the last known exit, of this run or the one before
    exit_reason: str
    ended_at: float | None
    start_error: str = ""  # why the runtime could not start it; empty: it has started, or may yet


class Disruption(NamedTuple):
    """The reason why the cluster ends this pod: scheduler, drain, taint or kubelet."""

    reason: str
    text: str
    at: float | None


@dataclass(frozen=True, slots=True)
class KubePod:
    namespace: str
    name: str
    uid: str
    resource_version: str
    owner: str  # UID of its controller object; empty: none
    phase: str
    node: str = ""
    ip: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None
    deleting_at: float | None = None  # when its grace period ends; None: not being deleted
    grace_seconds: float | None = None
    replica_type: str = ""
    replica_index: int | None = None
    scheduled: bool | None = None  # None: not known yet
    unscheduled_reason: str = ""
    unscheduled_text: str = ""
    unscheduled_since: float | None = None
    disruption: Disruption | None = None
    reason: str = ""  # of the whole pod: `Evicted`, `NodeLost`, `Terminated`
    text: str = ""
    containers: tuple[Container, ...] = ()
    requests: Mapping[str, float] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    priority_class: str = ""
    has_deadline: bool = False
    has_host_network: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_deleting(self) -> bool:
        return self.deleting_at is not None

    @property
    def trains_alone(self) -> bool:
        """Whether the trainer runs while mwatch's container cannot start.

        The pod may still be Pending.
        """
        ours = [each.waiting for each in self.containers if each.name == SIDECAR]
        rest = [each for each in self.containers if each.name != SIDECAR and not each.is_init]
        is_held = any(why and why not in _STARTING for why in ours)
        return is_held and any(each.is_running for each in rest)

    @property
    def has_volumes(self) -> bool:
        """Whether all volumes are mounted: the kubelet does that before it pulls any image."""
        return any(
            each.is_running or each.exit_code is not None or each.waiting not in _CREATING
            for each in self.containers
        )

    @property
    def restarts(self) -> int:
        return sum(each.restarts for each in self.containers)


def pod_of(body: Object) -> KubePod:
    labels = text_map(body, "metadata", "labels")
    kind, index = _replica(labels)
    scheduled = condition(body, "PodScheduled")
    return KubePod(
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        uid=text(body, "metadata", "uid"),
        resource_version=text(body, "metadata", "resourceVersion"),
        owner=controller_uid(body),
        phase=text(body, "status", "phase"),
        node=text(body, "spec", "nodeName"),
        ip=text(body, "status", "podIP"),
        labels=labels,
        created_at=moment(body, "metadata", "creationTimestamp"),
        deleting_at=moment(body, "metadata", "deletionTimestamp"),
        grace_seconds=number(body, "metadata", "deletionGracePeriodSeconds"),
        replica_type=kind,
        replica_index=index,
        scheduled=None if scheduled is None else text(scheduled, "status") == "True",
        unscheduled_reason=text(scheduled, "reason"),
        unscheduled_text=text(scheduled, "message")[:MAX_TEXT],
        unscheduled_since=moment(scheduled, "lastTransitionTime"),
        disruption=_disruption(body),
        reason=text(body, "status", "reason"),
        text=text(body, "status", "message")[:MAX_TEXT],
        containers=_containers(body),
        requests=requests_of(mapping(body, "spec")),
        node_selector=text_map(body, "spec", "nodeSelector"),
        tolerations=tuple(items(body, "spec", "tolerations")),
        priority_class=text(body, "spec", "priorityClassName"),
        has_deadline=number(body, "spec", "activeDeadlineSeconds") is not None,
        has_host_network=flag(body, "spec", "hostNetwork"),
    )


def controller_uid(body: Object) -> str:
    """UID of the controlling owner; empty: none."""
    owners = items(body, "metadata", "ownerReferences")
    return next((text(each, "uid") for each in owners if each.get("controller") is True), "")


def _replica(labels: Mapping[str, str]) -> tuple[str, int | None]:
    kind = labels.get(REPLICA_TYPE) or labels.get(JOBSET_PART) or ""
    keys = (REPLICA_INDEX, COMPLETION_INDEX, POD_INDEX)
    index = next((labels[key] for key in keys if key in labels), "")
    return kind, int(index) if index.isdigit() else None


def _disruption(body: Object) -> Disruption | None:
    found = condition(body, "DisruptionTarget")
    if found is None or found.get("status") != "True":
        return None
    text_map = text(found, "message")[:MAX_TEXT]
    return Disruption(text(found, "reason"), text_map, moment(found, "lastTransitionTime"))


def _containers(body: Object) -> tuple[Container, ...]:
    stay = {
        text(each, "name")
        for each in items(body, "spec", "initContainers")
        if each.get("restartPolicy") == "Always"
    }
    first = [
        _container(each, True, stay) for each in items(body, "status", "initContainerStatuses")
    ]
    then = [_container(each, False, stay) for each in items(body, "status", "containerStatuses")]
    return (*first, *then)


def _container(body: Object, is_init: bool, stay: set[str]) -> Container:
    ended = part(body, "state", "terminated") or part(body, "lastState", "terminated")
    name = text(body, "name")
    return Container(
        name=name,
        is_init=is_init,
        is_sidecar=is_init and name in stay,
        is_running=part(body, "state", "running") is not None,
        restarts=number(body, "restartCount") or 0,
        waiting=text(body, "state", "waiting", "reason"),
        waiting_text=text(body, "state", "waiting", "message")[:MAX_TEXT],
        exit_code=number(ended, "exitCode"),
        exit_reason=text(ended, "reason"),
        ended_at=moment(ended, "finishedAt"),
        start_error=_start_error(part(body, "state", "waiting"), ended),
    )


def _start_error(waiting: Object | None, ended: Object | None) -> str:
    """Return the runtime's message if it could not start the container.

    The message of any other end was written by the program itself, and is left out.
    """
    states = [each for each in (waiting, ended) if text(each, "reason") in _NOT_STARTED]
    return text(states[0], "message")[:MAX_TEXT] if states else ""
