# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads all data about one job from the API server: job, pods, nodes, events, claims and ledger.

Only the job and its pods are required. Data that may not be read or does not arrive in time is
listed in `JobFacts.unavailable`, and the diagnosis continues without it. Nodes and storage classes
are cluster-wide objects, which many users may not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.errors import NoCluster
from mwatch.kube.installed import keeps_sidecar
from mwatch.kube.jobs import FoundJob, owners_of_pods, pod_labels, quotas, workload_for
from mwatch.kube.ledger import NAME as LEDGER
from mwatch.kube.ledger import same_job
from mwatch.kube.pod_pages import service_page
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
from mwatch.model import checks as names
from mwatch.model.checks import Claim, OtherObject
from mwatch.model.kube.facts import KubeEvent, KubeFacts, KubeQuota, event_of
from mwatch.model.kube.fields import items, text, text_map
from mwatch.model.kube.job import JobKind, KubeJob
from mwatch.model.kube.ledger import LedgerData, from_data
from mwatch.model.kube.node import node_of
from mwatch.model.kube.pod import KubePod, pod_of
from mwatch.runtime.fanout import TimedOut, gather

_MAX_NODES = 128


def around(
    access: Access, pods: tuple[KubePod, ...], claims: Any, seconds: float
) -> dict[str, Any]:
    """Read nodes and storage classes; the keys are names of `model.checks.running`."""
    nodes = sorted({pod.node for pod in pods if pod.node})[:_MAX_NODES]
    bodies = () if isinstance(claims, TimedOut) else claims
    classes = sorted({text(each, "spec", "storageClassName") for each in bodies} - {""})
    asks: dict[str, Callable[[], Any]] = {}
    for name in nodes:
        asks[f"node/{name}"] = partial(access.get, NODES, None, name)
    for name in classes:
        asks[f"class/{name}"] = partial(access.get, STORAGE_CLASSES, None, name)
    answers = gather(asks, seconds=seconds)
    found: dict[str, Any] = {names.NODES: _nodes([answers[f"node/{name}"] for name in nodes])}
    if not isinstance(claims, TimedOut):
        policies = {name: _policy(answers[f"class/{name}"]) for name in classes}
        found[names.CLAIMS] = tuple(_claim(each, policies) for each in bodies)
    return found


def _nodes(answers: list[Any]) -> Any:
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


@dataclass(frozen=True, slots=True)
class JobFacts:
    found: FoundJob
    kube: KubeFacts
    bodies: Mapping[str, Mapping[str, Any]]
    """The pods as JSON, by name."""
    events: tuple[Mapping[str, Any], ...] = ()
    """Events of the job and its pods, as JSON."""
    quotas: tuple[KubeQuota, ...] | None = None
    others: tuple[OtherObject, ...] = ()
    claims: tuple[Claim, ...] | None = None
    services: tuple[str, ...] | None = None
    keeps_sidecar: bool | None = None
    book: LedgerData | None = None
    controller: Mapping[str, Any] | None = None
    """What the controller reports about this job."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""

    @property
    def job(self) -> KubeJob:
        return self.found.job

    @property
    def key(self) -> str:
        return ledger_key(self.job.kind.value, self.job.name)

    @property
    def mwatch_events(self) -> list[KubeEvent]:
        """Events that mwatch itself wrote, newest last."""
        ours = (each for each in self.events if text(each, "source", "component") == "mwatch")
        return sorted(map(event_of, ours), key=lambda each: each.at or 0.0)


def collect_facts(access: Access, found: FoundJob, now: float, *, seconds: float) -> JobFacts:
    """Read all data in parallel; raise MwatchError if the pods cannot be listed."""
    job = found.job
    asks: dict[str, Callable[[], Any]] = {
        "pods": lambda: job_pods(access, job),
        "events": lambda: _listed(access, EVENTS, job.namespace),
        "quotas": lambda: quotas(access, job.namespace),
        "workload": lambda: workload_for(access, job),
        "ledger": lambda: _ledger(access, job.namespace),
        "controller": lambda: _controller(access, job),
        names.CLAIMS: lambda: _listed(access, CLAIMS, job.namespace),
        names.SERVICES: lambda: _listed(access, SERVICES, job.namespace),
        names.CRD: lambda: keeps_sidecar(access, job.kind),
        "scripts": lambda: _scripts(access, found),
        "runtime": lambda: _runtime(access, found),
    }
    answers = gather(asks, seconds=seconds)
    if isinstance(answers["pods"], TimedOut):
        raise answers["pods"].error or NoCluster(
            f"cannot list the pods of {job.name}: {answers['pods'].why}"
        )
    pods = tuple(pod for _, pod in answers["pods"])
    later = around(access, pods, answers[names.CLAIMS], seconds)
    return _facts(found, now, pods, answers, later)


def _ours(job: KubeJob, book: LedgerData | None) -> frozenset[str]:
    if book is None:
        return frozenset()
    return same_job(book.of(ledger_key(job.kind.value, job.name)), job.uid).ours


def _facts(
    found: FoundJob,
    now: float,
    pods: tuple[KubePod, ...],
    answers: Mapping[str, Any],
    later: Mapping[str, Any],
) -> JobFacts:
    job = found.job
    events = _about(job, pods, _or(answers["events"], ()))
    nodes = later.get(names.NODES)
    services = _or(answers[names.SERVICES], None)
    kube = KubeFacts(
        now=now,
        job=job,
        name=job.name,
        pods=pods,
        events=tuple(map(event_of, events)),
        nodes=None if isinstance(nodes, TimedOut) else nodes,
        workload=_or(answers["workload"], None),
        ours=_ours(job, _or(answers["ledger"], None)),
    )
    others = [*_or(answers["scripts"], ()), *_or(answers["runtime"], ())]
    others += [_reached(each) for each in services or ()]
    return JobFacts(
        found=found,
        kube=kube,
        bodies={pod.name: body for body, pod in answers["pods"]},
        events=events,
        quotas=_or(answers["quotas"], None),
        others=tuple(others),
        claims=later.get(names.CLAIMS),
        services=None if services is None else tuple(_name(each) for each in services),
        keeps_sidecar=_or(answers[names.CRD], None),
        book=_or(answers["ledger"], None),
        controller=_or(answers["controller"], None),
        unavailable={
            name: each.why
            for name, each in {**answers, **later}.items()
            if isinstance(each, TimedOut)
        },
    )


def _or(answer: Any, otherwise: Any) -> Any:
    return otherwise if isinstance(answer, TimedOut) else answer


def job_pods(access: Access, job: KubeJob) -> list[tuple[Mapping[str, Any], KubePod]]:
    """List the pods of a job, as JSON and parsed, in order: master-0, worker-0 … worker-10."""
    owners = owners_of_pods(access, job)
    listing = access.list(PODS, job.namespace, labels=pod_labels(job))
    both = [(each, pod_of(each)) for each in listing.objects]
    return sorted((each for each in both if each[1].owner in owners), key=_replica)


def _replica(both: tuple[Mapping[str, Any], KubePod]) -> tuple[str, int, str]:
    pod = both[1]
    return pod.replica_type, pod.replica_index or 0, pod.name


def _listed(
    access: Access, resource: ApiResource, namespace: str | None
) -> tuple[Mapping[str, Any], ...]:
    return access.list(resource, namespace).objects


def _ledger(access: Access, namespace: str) -> LedgerData | None:
    answer = access.get(CONFIG_MAPS, namespace, LEDGER)
    return from_data(text_map(answer.body, "data")) if answer.is_ok else None


def _controller(access: Access, job: KubeJob) -> Mapping[str, Any]:
    path = f"/v1/jobs/{job.namespace}/{job.name}"
    return service_page(access, job.namespace, CONTROLLER, CONTROLLER_PORT, path, seconds=2.0)


def _scripts(access: Access, found: FoundJob) -> list[OtherObject]:
    """Read the ConfigMaps that the pods mount: the training script is often in one."""
    mounted = {
        text(volume, "configMap", "name")
        for group in found.job.groups
        for volume in items(group.template, "spec", "volumes")
    }
    wanted = sorted(name for name in mounted if name)[:_MAX_SCRIPTS]
    answers = [access.get(CONFIG_MAPS, found.job.namespace, name) for name in wanted]
    return [_reached({"kind": "ConfigMap", **each.body}) for each in answers if each.is_ok]


def _runtime(access: Access, found: FoundJob) -> list[OtherObject]:
    name = text(found.body, "spec", "runtimeRef", "name")
    if found.job.kind is not JobKind.TRAIN_JOB or not name:
        return []
    answer = access.get(RUNTIMES, None, name)
    return [_reached({"kind": RUNTIMES.kind, **answer.body})] if answer.is_ok else []


def _reached(body: Mapping[str, Any]) -> OtherObject:
    return OtherObject(text(body, "kind"), _name(body), body, 0)


def _name(body: Mapping[str, Any]) -> str:
    return text(body, "metadata", "name")


def _about(
    job: KubeJob, pods: tuple[KubePod, ...], events: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """Keep events of the job, of its current and earlier pods, and of claims."""
    known = {job.uid, *(pod.uid for pod in pods)}
    mine = {job.name, *(pod.name for pod in pods)}

    def is_about(event: Mapping[str, Any]) -> bool:
        uid, name, kind = (text(event, "involvedObject", key) for key in ("uid", "name", "kind"))
        return uid in known or (not uid and name in mine) or kind == "PersistentVolumeClaim"

    return tuple(filter(is_about, events))
