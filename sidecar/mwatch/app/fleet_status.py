# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status` and `mwatch top`: every watched job in one line.

A controller knows best, where it answers by the service proxy. Without one a few sidecars of each
job are asked, and Kubernetes: enough for a line, not for a culprit. No logs are read here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mwatch.app.at_once import Missed, ask_all
from mwatch.app.diagnose_job_facts import CONTROLLER, CONTROLLER_PORT
from mwatch.app.diagnose_job_pods import ask_sidecar
from mwatch.app.fleet_line import FleetLine, of_controller, of_sidecars
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import complete, owners_of_pods, pod_labels, watched_jobs
from mwatch.kube.listing import list_all
from mwatch.kube.pod_proxy import service_page
from mwatch.kube.resources import EVENTS, PODS
from mwatch.model.kube_event import event_of
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_pod import pod_of

_SECONDS = 4.0
_CALL_SECONDS = 2.0
_PODS_ASKED = 8
"""Of one job: the first and the last of them, and those in trouble."""
_FINE = frozenset({"healthy", "finished"})
_UNSEEN = frozenset({"unknown", "blind"})


class Fleet(NamedTuple):
    at: float
    lines: tuple[FleetLine, ...]
    problems: tuple[str, ...]
    """What could not be seen, each in one line."""
    took_seconds: float

    @property
    def exit_code(self) -> int:
        causes = {each.cause for each in self.lines}
        if causes - _FINE - _UNSEEN:
            return 1
        return 3 if causes & _UNSEEN else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "at": self.at,
            "jobs": [each.to_json() for each in self.lines],
            "problems": list(self.problems),
        }


def look(access: Access, namespace: str | None, now: float) -> Fleet:
    """`namespace` None: all of them. KubeError where no job may be listed."""
    began = time.monotonic()
    found = watched_jobs(access, namespace)
    spaces = sorted({job.namespace for job in found.jobs})
    told = ask_all(
        {space: partial(_controller, access, space) for space in spaces}, seconds=_CALL_SECONDS
    )
    by_key = {space: _by_job(answer) for space, answer in told.items()}
    known = {
        (job.namespace, job.kind.value, job.name): by_key[job.namespace].get(
            (job.kind.value, job.name)
        )
        for job in found.jobs
    }
    lines: list[FleetLine] = []
    asks: dict[str, Callable[[], FleetLine]] = {}
    for job in found.jobs:
        body = known[job.namespace, job.kind.value, job.name]
        if body is not None:
            lines.append(of_controller(job, body))
        else:
            asks[job.key] = partial(_ask, access, job, now)
    jobs = {job.key: job for job in found.jobs}
    for key, answer in ask_all(asks, seconds=_SECONDS).items():
        missed = isinstance(answer, Missed)
        lines.append(FleetLine.unseen(jobs[key], answer.why) if missed else answer)
    order = sorted(lines, key=lambda each: (each.namespace, each.name))
    return Fleet(now, tuple(order), tuple(found.problems), time.monotonic() - began)


def _controller(access: Access, namespace: str) -> Mapping[str, Any]:
    return service_page(
        access, namespace, CONTROLLER, CONTROLLER_PORT, "/v1/jobs", seconds=_CALL_SECONDS
    )


def _by_job(answer: Any) -> dict[tuple[str, str], Mapping[str, Any]]:
    if isinstance(answer, Missed):
        return {}
    listed = answer.get("jobs")
    bodies: Iterable[Any] = listed if isinstance(listed, list) else ()
    return {
        (str(each.get("kind")), str(each.get("name"))): each
        for each in bodies
        if isinstance(each, Mapping)
    }


def _ask(access: Access, job: KubeJob, now: float) -> FleetLine:
    job = complete(access, job)
    owners = owners_of_pods(access, job)
    listing = list_all(access, PODS, job.namespace, labels=pod_labels(job))
    both = [(each, pod_of(each)) for each in (listing.objects if listing is not None else ())]
    mine = [each for each in both if each[1].owner in owners]
    pods = tuple(pod for _, pod in mine)
    facts = KubeFacts(now, job, job.name, pods, _events(access, job))
    words = [ask_sidecar(access, pod, body) for body, pod in _chosen(mine)]
    return of_sidecars(job, facts, words)


def _chosen(mine: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Rank 0 is in the first, the last rank often in the last."""
    running = [each for each in mine if each[1].phase == "Running"]
    half = _PODS_ASKED // 2
    return running if len(running) <= _PODS_ASKED else [*running[:half], *running[-half:]]


def _events(access: Access, job: KubeJob) -> tuple[Any, ...]:
    """Of the job itself; those of its pods show in the pods."""
    try:
        listing = list_all(access, EVENTS, job.namespace, fields=f"involvedObject.name={job.name}")
    except KubeError:
        return ()
    return tuple(map(event_of, listing.objects)) if listing is not None else ()
