# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All watched jobs of a namespace, as the API server shows them, with the age of that view.

Covers jobs of every kind that the cluster knows, their pods, Events about them, Kueue's Workloads,
and nodes if the controller may list them. A thread per kind keeps a copy; reading a copy never
blocks. Pods are matched to a job by the chain of owners, since labels can be copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mwatch.kube.access import Access
from mwatch.kube.jobs import WATCHED
from mwatch.kube.mirror import WATCH_SECONDS, Mirror, MirrorStatus
from mwatch.kube.resources import EVENTS, NODES, OF_KIND, PODS, WORKLOADS
from mwatch.model.kube.facts import KubeEvent, KubeFacts, KubeWorkload, event_of, workload_of
from mwatch.model.kube.fields import Object, items, number, text, text_map
from mwatch.model.kube.job import JobKind, KubeJob, job_of, with_jobset
from mwatch.model.kube.node import KubeNode, node_of
from mwatch.model.kube.pod import KubePod, controller_uid, pod_of

PORT_NAME = "mwatch"
PORT_ANNOTATION = "mwatch.dev/port"
_CLAIM = "PersistentVolumeClaim"
_KEPT_REASONS = frozenset(
    {"Preempted", "FailedCreate", "FailedCreatePod", "SuccessfulDelete", "SuccessfulDeletePod"}
)
_MAX_CHAIN = 4


class PodSeen(NamedTuple):
    pod: KubePod
    port: int | None
    """The port of its sidecar; None: it has no sidecar."""


class OwnedJob(NamedTuple):
    """A job of any kind, also one between a watched job and its pods."""

    uid: str
    owner: str
    job: KubeJob | None
    """None: not watched, so only the owner matters."""


def owned_job(body: Object) -> OwnedJob | None:
    is_watched = text_map(body, "metadata", "labels").get("mwatch.dev/watch") == "true"
    job = job_of(body) if is_watched or text(body, "kind") != "Job" else None
    return OwnedJob(text(body, "metadata", "uid"), controller_uid(body), job)


def pod_seen(body: Object) -> PodSeen | None:
    """None: the pod has no owner, so it is not part of a job."""
    if not controller_uid(body):
        return None
    return PodSeen(pod_of(body), _port(body))


def _port(body: Object) -> int | None:
    """The port in the pod's annotation, else the container port named PORT_NAME."""
    given = text_map(body, "metadata", "annotations").get(PORT_ANNOTATION, "")
    if given.isascii() and given.isdigit() and 0 < int(given) < 65536:
        return int(given)
    every = (*items(body, "spec", "initContainers"), *items(body, "spec", "containers"))
    ports = (port for each in every for port in items(each, "ports"))
    named = (number(port, "containerPort") for port in ports if port.get("name") == PORT_NAME)
    return next((each for each in named if each), None)


def useful_event(body: Object) -> KubeEvent | None:
    """None: the Event is neither a warning nor of a reason that matters here."""
    found = event_of(body)
    return found if found.is_warning or found.reason in _KEPT_REASONS else None


def owners(jobs: Iterable[OwnedJob]) -> dict[str, str]:
    """By UID of each job that may own pods: the UID of the watched job above it, or its own."""
    by_uid = {each.uid: each for each in jobs}
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


KEPT_SECONDS = 1800.0
_MAX_PODS = 10_000


class _Left(NamedTuple):
    pod: KubePod
    at: float
    job: str = ""
    """UID of its watched job, kept after the objects between pod and job are gone."""


class DeletedPodTracker:
    """Pods that are being deleted or are gone, in their state at the first sign of deletion.

    A pod that crashed is over before it is deleted; a pod that a person deletes is not. Only a
    running watch shows which came first. The API server does not show who deleted a pod.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, _Left] = {}

    def on_change(self, before: PodSeen | None, after: PodSeen | None) -> None:
        """Called by the watch's thread; None: the pod did not exist, or is gone."""
        newest = after or before
        if newest is None or (after is not None and not after.pod.is_deleting):
            return
        with self._lock:
            known = self._left.get(newest.pod.uid)
            if known is None and len(self._left) < _MAX_PODS:
                self._left[newest.pod.uid] = _Left(newest.pod, self._clock())
            elif known is not None and newest.pod.disruption is not None:
                pod = replace(known.pod, disruption=newest.pod.disruption)
                self._left[newest.pod.uid] = known._replace(pod=pod)

    def by_job(self, tops: Mapping[str, str]) -> dict[str, tuple[KubePod, ...]]:
        """The tracked pods, by UID of their job. `tops`: see `owners`."""
        oldest = self._clock() - KEPT_SECONDS
        found: dict[str, list[KubePod]] = {}
        with self._lock:
            kept = {uid: each for uid, each in self._left.items() if each.at >= oldest}
            for uid, each in kept.items():
                job = tops.get(each.pod.owner, each.job)
                kept[uid] = each._replace(job=job)
                if job:
                    found.setdefault(job, []).append(each.pod)
            self._left = kept
        return {job: tuple(pods) for job, pods in found.items()}


_UNFILTERED = frozenset({JobKind.JOB, JobKind.JOB_SET})
"""Watched without a label selector: these may be between a watched job and its pods."""
_BETWEEN = {
    JobKind.JOB_SET: (JobKind.JOB,),
    JobKind.TRAIN_JOB: (JobKind.JOB_SET, JobKind.JOB),
}
_JOIN_SECONDS = 1.0
_LIST_SECONDS = 15.0


class JobSeen(NamedTuple):
    facts: KubeFacts
    pods: tuple[PodSeen, ...]
    view_age_seconds: float | None


class FleetView:
    def __init__(
        self,
        access: Access,
        namespace: str,
        clock: Callable[[], float],
        *,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        """`clock`: seconds since 1970 that never jump."""
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

        self._deleted = DeletedPodTracker(clock)

        def mirror(resource: Any, read: Any, *, of: str | None = "", **more: Any) -> Any:
            place = namespace if of == "" else of
            return Mirror(access, resource, place, read, watch_seconds=watch_seconds, **more)

        self._jobs: dict[JobKind, Mirror[OwnedJob]] = {
            kind: mirror(resource, owned_job, labels="" if kind in _UNFILTERED else WATCHED)
            for kind, resource in OF_KIND.items()
        }
        self._pods: Mirror[PodSeen] = mirror(PODS, pod_seen, on_change=self._deleted.on_change)
        self._events: Mirror[KubeEvent] = mirror(EVENTS, useful_event)
        self._nodes: Mirror[KubeNode] = mirror(NODES, node_of, of=None)
        self._workloads: Mirror[KubeWorkload] = mirror(WORKLOADS, workload_of)

        self._needed: list[Mirror[Any]] = [self._pods, *self._jobs.values()]
        self._all: dict[str, Mirror[Any]] = {
            **{OF_KIND[kind].plural: each for kind, each in self._jobs.items()},
            "pods": self._pods,
            "events": self._events,
            "nodes": self._nodes,
            "workloads": self._workloads,
        }

    def start(self) -> None:
        for name, each in self._all.items():
            # Workloads are few, and the right to list them need not include watching them.
            args = (self._stop, _LIST_SECONDS if each is self._workloads else None)
            thread = threading.Thread(
                target=each.follow, args=args, name=f"mwatch-see-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Does not wait for open watches, which end by themselves."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS / len(self._threads))

    @property
    def mirrors(self) -> dict[str, MirrorStatus]:
        return {name: each.status for name, each in self._all.items()}

    @property
    def relists(self) -> int:
        return sum(each.relists for each in self._all.values())

    @property
    def is_ready(self) -> bool:
        """Pods, and jobs of each kind that the controller may read, were read at least once."""
        pods, *jobs = (each.status for each in self._needed)
        return pods.age_seconds is not None and all(
            each.age_seconds is not None or not each.is_known or each.problem for each in jobs
        )

    @property
    def problem(self) -> str:
        """Why jobs or pods cannot be read now; empty: they can be."""
        return next((each.status.problem for each in self._needed if each.status.problem), "")

    @property
    def nodes(self) -> tuple[KubeNode, ...] | None:
        """None: the controller may not list them."""
        if self._nodes.status.age_seconds is None:
            return None
        return tuple(self._nodes.objects())

    def look(self) -> list[JobSeen]:
        now = self._clock()
        owned = {kind: each.objects() for kind, each in self._jobs.items()}
        every = [each for objects in owned.values() for each in objects]
        tops = owners(every)
        pods: dict[str, list[PodSeen]] = {}
        for pod in self._pods.objects():
            if (top := tops.get(pod.pod.owner)) is not None:
                pods.setdefault(top, []).append(pod)
        left = self._deleted.by_job(tops)
        about = EventIndex(self._events.objects())
        nodes, loads = self.nodes, {each.owner: each for each in self._workloads.objects()}
        jobsets = {each.owner: each.job for each in owned[JobKind.JOB_SET] if each.job is not None}
        found = []
        for job in _watched(every, tops):
            mine = tuple(pods.get(job.uid, ()))
            jobset = jobsets.get(job.uid) if job.kind is JobKind.TRAIN_JOB else None
            whole = job if jobset is None else with_jobset(job, jobset)
            facts = KubeFacts(
                now, whole, job.name,
                pods=tuple(each.pod for each in mine),
                events=about.of(whole, mine),
                nodes=nodes,
                workload=loads.get(job.uid),
                left=left.get(job.uid, ()),
            )  # fmt: skip
            found.append(JobSeen(facts, mine, self._age(job.kind)))
        return found

    def _age(self, kind: JobKind) -> float | None:
        """The age of the oldest copy that the job depends on."""
        needed: list[Mirror[Any]] = [self._jobs[each] for each in (kind, *_BETWEEN.get(kind, ()))]
        ages = [each.status.age_seconds for each in (*needed, self._pods)]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) else None


def _watched(every: Iterable[OwnedJob], tops: Mapping[str, str]) -> list[KubeJob]:
    """The watched jobs that do not belong to another watched job."""
    return [
        each.job
        for each in every
        if each.job is not None and each.job.is_watched and tops.get(each.uid) == each.uid
    ]
