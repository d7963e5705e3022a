# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server tells about one job: itself, its pods, their nodes, and all around them.

Everything but the job and its pods is optional: what may not be read, or does not come in time,
is noted in `unseen`, and the diagnosis goes on without it.

The nodes of a job and the storage classes of its claims, each asked for by its name.

They are no part of a namespace: many people may not read them, and all goes on without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.discovery import FoundJob, kept_fields
from mwatch.kube.errors import NoCluster
from mwatch.kube.jobs import owners_of_pods, pod_labels, quotas, workload_for
from mwatch.kube.ledger import NAME as LEDGER
from mwatch.kube.ledger import same_job
from mwatch.kube.listing import list_all
from mwatch.kube.pod_proxy import service_page
from mwatch.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    NODES,
    PODS,
    RUNTIMES,
    SERVICES,
    STORAGE_CLASSES,
    ApiResource,
)
from mwatch.model.checks import running as names
from mwatch.model.checks.running import Claim, KeptFields
from mwatch.model.checks.workload import Reached
from mwatch.model.kube.event import KubeEvent, event_of
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.fields import items, text, words
from mwatch.model.kube.job import JobKind, KubeJob
from mwatch.model.kube.ledger import Book, from_data
from mwatch.model.kube.node import node_of
from mwatch.model.kube.pod import KubePod, pod_of
from mwatch.model.kube.queue import KubeQuota
from mwatch.runtime.fanout import TimedOut, gather

_MAX_NODES = 128


def around(
    access: Access, pods: tuple[KubePod, ...], claims: Any, seconds: float
) -> dict[str, Any]:
    """By the names of `model.running`: nodes and claims, or Missed."""
    nodes = sorted({pod.node for pod in pods if pod.node})[:_MAX_NODES]
    bodies = () if isinstance(claims, TimedOut) else claims
    classes = sorted({text(each, "spec", "storageClassName") for each in bodies} - {""})
    asks: dict[str, Callable[[], Any]] = {}
    for name in nodes:
        asks[f"node/{name}"] = partial(access.get, NODES, None, name)
    for name in classes:
        asks[f"class/{name}"] = partial(access.get, STORAGE_CLASSES, None, name)
    told = gather(asks, seconds=seconds)
    found: dict[str, Any] = {names.NODES: _nodes([told[f"node/{name}"] for name in nodes])}
    if not isinstance(claims, TimedOut):
        policies = {name: _policy(told[f"class/{name}"]) for name in classes}
        found[names.CLAIMS] = tuple(_claim(each, policies) for each in bodies)
    return found


def _nodes(answers: list[Any]) -> Any:
    """A node that is not there any more is none of them."""
    missed = next((each for each in answers if isinstance(each, TimedOut)), None)
    return missed or tuple(node_of(each.body) for each in answers if each.is_ok)


def _policy(answer: Any) -> str:
    if isinstance(answer, TimedOut) or not answer.is_ok:
        return ""
    return text(answer.body, "reclaimPolicy") or "Delete"


def _claim(body: Mapping[str, Any], policies: Mapping[str, str]) -> Claim:
    name = text(body, "spec", "storageClassName")
    return Claim(text(body, "metadata", "name"), name, policies.get(name, ""))


CONTROLLER, CONTROLLER_PORT = "mwatch-controller", 9402
_MAX_SCRIPTS = 8
_OUR_COMPONENT = "mwatch"


@dataclass(frozen=True, slots=True)
class JobFacts:
    found: FoundJob
    kube: KubeFacts
    bodies: Mapping[str, Mapping[str, Any]]
    """Of the pods, by name."""
    events: tuple[Mapping[str, Any], ...] = ()
    """About the job and its pods, whole."""
    quotas: tuple[KubeQuota, ...] | None = None
    others: tuple[Reached, ...] = ()
    claims: tuple[Claim, ...] | None = None
    services: tuple[str, ...] | None = None
    kept: KeptFields | None = None
    book: Book | None = None
    controller: Mapping[str, Any] | None = None
    """What the controller says of this job."""
    unseen: Mapping[str, str] = field(default_factory=dict)

    @property
    def job(self) -> KubeJob:
        return self.found.job

    @property
    def key(self) -> str:
        return ledger_key(self.job.kind.value, self.job.name)

    @property
    def said(self) -> tuple[KubeEvent, ...]:
        """By mwatch itself, on the job; the newest last."""
        ours = [
            event_of(each)
            for each in self.events
            if text(each, "source", "component") == _OUR_COMPONENT
        ]
        return tuple(sorted(ours, key=lambda each: each.at or 0.0))


def collect_facts(access: Access, found: FoundJob, now: float, *, seconds: float) -> JobFacts:
    """MwatchError where not even its pods can be listed."""
    job = found.job
    asks: dict[str, Callable[[], Any]] = {
        "pods": lambda: _pods(access, job),
        "events": lambda: _listed(access, EVENTS, job.namespace),
        "quotas": lambda: quotas(access, job.namespace),
        "workload": lambda: workload_for(access, job),
        "ledger": lambda: _ledger(access, job.namespace),
        "controller": lambda: _controller(access, job),
        names.CLAIMS: lambda: _listed(access, CLAIMS, job.namespace),
        names.SERVICES: lambda: _listed(access, SERVICES, job.namespace),
        names.CRD: lambda: kept_fields(access, job.kind),
        "scripts": lambda: _scripts(access, found),
        "runtime": lambda: _runtime(access, found),
    }
    told = gather(asks, seconds=seconds)
    if isinstance(told["pods"], TimedOut):
        raise told["pods"].error or NoCluster(f"the pods of {job.name}: {told['pods'].why}")
    bodies, pods = told["pods"]
    later = around(access, pods, told[names.CLAIMS], seconds)
    return _facts(found, now, bodies, pods, told, later)


def _ours(job: KubeJob, book: Book | None) -> frozenset[str]:
    if book is None:
        return frozenset()
    return same_job(book.of(ledger_key(job.kind.value, job.name)), job.uid).ours


def _facts(
    found: FoundJob,
    now: float,
    bodies: tuple[Mapping[str, Any], ...],
    pods: tuple[KubePod, ...],
    told: Mapping[str, Any],
    later: Mapping[str, Any],
) -> JobFacts:
    job = found.job
    events = _about(job, pods, _or(told["events"], ()))
    nodes = later.get(names.NODES)
    services = _or(told[names.SERVICES], None)
    kube = KubeFacts(
        now=now,
        job=job,
        name=job.name,
        pods=pods,
        events=tuple(map(event_of, events)),
        nodes=None if isinstance(nodes, TimedOut) else nodes,
        workload=_or(told["workload"], None),
        ours=_ours(job, _or(told["ledger"], None)),
    )
    others = [*_or(told["scripts"], ()), *_or(told["runtime"], ())]
    others += [_reached(each) for each in services or ()]
    return JobFacts(
        found=found,
        kube=kube,
        bodies={text(each, "metadata", "name"): each for each in bodies},
        events=events,
        quotas=_or(told["quotas"], None),
        others=tuple(others),
        claims=later.get(names.CLAIMS),
        services=None if services is None else tuple(_name(each) for each in services),
        kept=_or(told[names.CRD], None),
        book=_or(told["ledger"], None),
        controller=_or(told["controller"], None),
        unseen={
            name: each.why for name, each in {**told, **later}.items() if isinstance(each, TimedOut)
        },
    )


def _or(answer: Any, otherwise: Any) -> Any:
    return otherwise if isinstance(answer, TimedOut) else answer


def _pods(
    access: Access, job: KubeJob
) -> tuple[tuple[Mapping[str, Any], ...], tuple[KubePod, ...]]:
    owners = owners_of_pods(access, job)
    listing = list_all(access, PODS, job.namespace, labels=pod_labels(job))
    both = [(each, pod_of(each)) for each in (listing.objects if listing is not None else ())]
    mine = sorted((each for each in both if each[1].owner in owners), key=lambda each: _order(each))
    return tuple(body for body, _ in mine), tuple(pod for _, pod in mine)


def _order(both: tuple[Mapping[str, Any], KubePod]) -> tuple[str, int, str]:
    """master-0, worker-0, worker-1 … worker-10."""
    pod = both[1]
    return pod.replica_type, pod.replica_index or 0, pod.name


def _listed(
    access: Access, resource: ApiResource, namespace: str | None
) -> tuple[Mapping[str, Any], ...]:
    listing = list_all(access, resource, namespace)
    return listing.objects if listing is not None else ()


def _ledger(access: Access, namespace: str) -> Book | None:
    answer = access.get(CONFIG_MAPS, namespace, LEDGER)
    return from_data(words(answer.body, "data")) if answer.is_ok else None


def _controller(access: Access, job: KubeJob) -> Mapping[str, Any]:
    path = f"/v1/jobs/{job.namespace}/{job.name}"
    return service_page(access, job.namespace, CONTROLLER, CONTROLLER_PORT, path, seconds=2.0)


def _scripts(access: Access, found: FoundJob) -> list[Reached]:
    """ConfigMaps that its pods mount: the training script often lies in one."""
    names_ = {
        text(volume, "configMap", "name")
        for group in found.job.groups
        for volume in items(group.template, "spec", "volumes")
    }
    wanted = sorted(name for name in names_ if name)[:_MAX_SCRIPTS]
    answers = [access.get(CONFIG_MAPS, found.job.namespace, name) for name in wanted]
    return [_reached({"kind": "ConfigMap", **each.body}) for each in answers if each.is_ok]


def _runtime(access: Access, found: FoundJob) -> list[Reached]:
    name = text(found.body, "spec", "runtimeRef", "name")
    if found.job.kind is not JobKind.TRAIN_JOB or not name:
        return []
    answer = access.get(RUNTIMES, None, name)
    return [_reached({"kind": RUNTIMES.kind, **answer.body})] if answer.is_ok else []


def _reached(body: Mapping[str, Any]) -> Reached:
    return Reached(text(body, "kind"), _name(body), body, 0)


def _name(body: Mapping[str, Any]) -> str:
    return text(body, "metadata", "name")


def _about(
    job: KubeJob, pods: tuple[KubePod, ...], events: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """Of the job and its pods, also of those before them, and of claims."""
    known = {job.uid, *(pod.uid for pod in pods)}
    mine = {job.name, *(pod.name for pod in pods)}
    return tuple(
        each
        for each in events
        if text(each, "involvedObject", "uid") in known
        or (
            not text(each, "involvedObject", "uid") and text(each, "involvedObject", "name") in mine
        )
        or text(each, "involvedObject", "kind") == "PersistentVolumeClaim"
    )
