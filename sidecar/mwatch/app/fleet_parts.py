# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the fleet view keeps of each object, and how objects belong together.

Labels can be copied, so only the chain of owners counts. Of Events only those are kept that can
explain something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mwatch.model.kube_event import KubeEvent, event_of
from mwatch.model.kube_fields import Object, items, number, text, words
from mwatch.model.kube_job import KubeJob, job_of
from mwatch.model.kube_pod import KubePod, controller_uid, pod_of

PORT_NAME = "mwatch"
PORT_ANNOTATION = "mwatch.dev/port"
PORT = 9401
_CLAIM = "PersistentVolumeClaim"
_TOLD = frozenset(
    {"Preempted", "FailedCreate", "FailedCreatePod", "SuccessfulDelete", "SuccessfulDeletePod"}
)
_MAX_CHAIN = 4


class PodSeen(NamedTuple):
    pod: KubePod
    port: int | None
    """Of its sidecar; None: it has none."""


class Held(NamedTuple):
    """A job of any kind, also one that only stands between a watched job and its pods."""

    uid: str
    owner: str
    """UID of who controls it; empty: nobody does."""
    job: KubeJob | None
    """None: nobody watches it, and nothing more need be known."""


def held_of(body: Object) -> Held | None:
    is_needed = text(body, "kind") != "Job" or _is_watched(body)
    job = job_of(body) if is_needed else None
    return Held(text(body, "metadata", "uid"), controller_uid(body), job)


def _is_watched(body: Object) -> bool:
    return words(body, "metadata", "labels").get("mwatch.dev/watch") == "true"


def pod_seen(body: Object) -> PodSeen | None:
    """None: nobody's, so of no job."""
    if not controller_uid(body):
        return None
    return PodSeen(pod_of(body), _port(body))


def _port(body: Object) -> int | None:
    """As somebody has written it on the pod; else that of the container port of this name."""
    given = words(body, "metadata", "annotations").get(PORT_ANNOTATION, "")
    if given.isascii() and given.isdigit() and 0 < int(given) < 65536:
        return int(given)
    every = (*items(body, "spec", "initContainers"), *items(body, "spec", "containers"))
    ports = (port for each in every for port in items(each, "ports"))
    named = (number(port, "containerPort") for port in ports if port.get("name") == PORT_NAME)
    return next((each for each in named if each), None)


def said_of(body: Object) -> KubeEvent | None:
    found = event_of(body)
    return found if found.is_warning or found.reason in _TOLD else None


def owners(held: Iterable[Held]) -> dict[str, str]:
    """By UID of whoever may own pods: UID of the watched job above it, which may be itself."""
    by_uid = {each.uid: each for each in held}
    found: dict[str, str] = {}
    for uid in by_uid:
        top, at = "", uid
        for _ in range(_MAX_CHAIN):
            each = by_uid.get(at)
            if each is None:
                break
            if each.job is not None and each.job.is_watched:
                top = each.uid
            at = each.owner
        if top:
            found[uid] = top
    return found


class EventIndex:
    def __init__(self, events: Iterable[KubeEvent]) -> None:
        self._by_uid: dict[str, list[KubeEvent]] = {}
        self._by_claim: dict[str, list[KubeEvent]] = {}
        for each in events:
            if each.about_kind == _CLAIM:
                self._by_claim.setdefault(each.about_name, []).append(each)
            else:
                self._by_uid.setdefault(each.about_uid, []).append(each)

    def of(self, job: KubeJob, pods: Iterable[PodSeen]) -> tuple[KubeEvent, ...]:
        """About the job, its pods as they are now, who made them, and its volumes."""
        if not self._by_uid and not self._by_claim:
            return ()
        uids = {job.uid}
        for each in pods:
            uids |= {each.pod.uid, each.pod.owner}
        found = [event for uid in uids for event in self._by_uid.get(uid, ())]
        found += [event for name in _claims(job) for event in self._by_claim.get(name, ())]
        return tuple(found)


def _claims(job: KubeJob) -> set[str]:
    volumes: list[Mapping[str, object]] = []
    for group in job.groups:
        volumes += items(group.template, "spec", "volumes")
    named = {text(each, "persistentVolumeClaim", "claimName") for each in volumes}
    return named - {""}
