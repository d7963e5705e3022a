# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All watched jobs of a namespace as the API server tells of them, kept up to date by watches.

Jobs of every kind that the cluster knows, their pods by the chain of owners, Events about them,
Kueue's records; nodes where we may see them. Each copy is kept by a thread of its own;
reading them never waits. How old the sight of a job is comes with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mwatch.app.fleet_leavings import Leavings
from mwatch.app.fleet_parts import EventIndex, Held, PodSeen, held_of, owners, pod_seen, said_of
from mwatch.kube.access import Access
from mwatch.kube.jobs import WATCHED
from mwatch.kube.mirror import WATCH_SECONDS, Mirror, Sight
from mwatch.kube.resources import EVENTS, NODES, OF_KIND, PODS, WORKLOADS
from mwatch.model.kube_event import KubeEvent
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_job import JobKind, KubeJob, with_jobset
from mwatch.model.kube_node import KubeNode, node_of
from mwatch.model.kube_queue import KubeWorkload, workload_of

_UNFILTERED = frozenset({JobKind.JOB, JobKind.JOB_SET})
"""They may stand between a watched job and its pods."""
_BETWEEN = {
    JobKind.JOB_SET: (JobKind.JOB,),
    JobKind.TRAIN_JOB: (JobKind.JOB_SET, JobKind.JOB),
}
_JOIN_SECONDS = 1.0
_LIST_SECONDS = 15.0


class JobSeen(NamedTuple):
    facts: KubeFacts
    """With the job."""
    pods: tuple[PodSeen, ...]
    sight_age_seconds: float | None


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

        self._leavings = Leavings(clock)

        def mirror(resource: Any, read: Any, *, of: str | None = "", **more: Any) -> Any:
            place = namespace if of == "" else of
            return Mirror(access, resource, place, read, watch_seconds=watch_seconds, **more)

        self._jobs: dict[JobKind, Mirror[Held]] = {
            kind: mirror(resource, held_of, labels="" if kind in _UNFILTERED else WATCHED)
            for kind, resource in OF_KIND.items()
        }
        self._pods: Mirror[PodSeen] = mirror(PODS, pod_seen, told=self._leavings.told)
        self._events: Mirror[KubeEvent] = mirror(EVENTS, said_of)
        self._nodes: Mirror[KubeNode] = mirror(NODES, node_of, of=None)
        self._workloads: Mirror[KubeWorkload] = mirror(WORKLOADS, workload_of)

    @property
    def _all(self) -> dict[str, Mirror[Any]]:
        others: dict[str, Mirror[Any]] = {
            "pods": self._pods,
            "events": self._events,
            "nodes": self._nodes,
            "workloads": self._workloads,
        }
        found: dict[str, Mirror[Any]] = {
            OF_KIND[kind].plural: each for kind, each in self._jobs.items()
        }
        return {**found, **others}

    @property
    def _needed(self) -> list[Mirror[Any]]:
        return [self._pods, *self._jobs.values()]

    def start(self) -> None:
        for name, each in self._all.items():
            thread = threading.Thread(
                target=self._follow, args=(each,), name=f"mwatch-see-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _follow(self, mirror: Mirror[Any]) -> None:
        if mirror is self._workloads:  # few, and who may list them need not be let watch them
            mirror.follow_by_lists(self._stop, _LIST_SECONDS)
        else:
            mirror.follow(self._stop)

    def close(self) -> None:
        """A watch that is open ends by itself within its time: nobody waits for it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS / len(self._threads))

    @property
    def sights(self) -> dict[str, Sight]:
        """Of each kind of object, by its plural."""
        return {name: each.sight for name, each in self._all.items()}

    @property
    def relists(self) -> int:
        return sum(each.relists for each in self._all.values())

    @property
    def is_ready(self) -> bool:
        """Pods were read at least once, and jobs of each kind that we may read."""
        sights = [each.sight for each in self._needed]
        are_all = all(
            sight.age_seconds is not None or not sight.is_known or sight.problem for sight in sights
        )
        return are_all and sights[0].age_seconds is not None

    @property
    def problem(self) -> str:
        """Why jobs or pods cannot be read now; empty: they can."""
        return next((each.sight.problem for each in self._needed if each.sight.problem), "")

    @property
    def nodes(self) -> tuple[KubeNode, ...] | None:
        """None: we may not see them."""
        if self._nodes.sight.age_seconds is None:
            return None
        return tuple(self._nodes.objects())

    def look(self) -> list[JobSeen]:
        now = self._clock()
        held = {kind: each.objects() for kind, each in self._jobs.items()}
        every = [each for objects in held.values() for each in objects]
        tops = owners(every)
        pods: dict[str, list[PodSeen]] = {}
        for pod in self._pods.objects():
            if (top := tops.get(pod.pod.owner)) is not None:
                pods.setdefault(top, []).append(pod)
        left = self._leavings.by_job(tops)
        about = EventIndex(self._events.objects())
        nodes, loads = self.nodes, {each.owner: each for each in self._workloads.objects()}
        jobsets = {each.owner: each.job for each in held[JobKind.JOB_SET] if each.job is not None}
        found = []
        for job in _watched(every, tops):
            mine = tuple(pods.get(job.uid, ()))
            whole = _whole(job, jobsets)
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
        """Of the oldest that is needed."""
        needed: list[Mirror[Any]] = [self._jobs[each] for each in (kind, *_BETWEEN.get(kind, ()))]
        oldest = 0.0
        for each in (*needed, self._pods):
            age = each.sight.age_seconds
            if age is None:
                return None
            oldest = max(oldest, age)
        return oldest


def _watched(every: Iterable[Held], tops: Mapping[str, str]) -> list[KubeJob]:
    """Those that nobody else who is watched has made."""
    return [
        each.job
        for each in every
        if each.job is not None and each.job.is_watched and tops.get(each.uid) == each.uid
    ]


def _whole(job: KubeJob, jobsets: Mapping[str, KubeJob]) -> KubeJob:
    made = jobsets.get(job.uid) if job.kind is JobKind.TRAIN_JOB else None
    return job if made is None else with_jobset(job, made)
