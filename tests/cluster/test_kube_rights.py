# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The rights of the controller, on the real authorizer: each is needed, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from mwatch.controller.history import HistoryStore
from mwatch.gang.suspend import start, stop
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of, quotas, watched_jobs, workload_for
from mwatch.kube.lease import Lease
from mwatch.kube.ledger import Ledger
from mwatch.kube.mirror import Mirror
from mwatch.kube.resources import CLAIMS, CONFIG_MAPS, EVENTS, OF_KIND, PODS, WORKLOADS, ApiResource
from mwatch.model.kube.job import QUEUE, JobKind, KubeJob
from mwatch.model.kube.ledger import LedgerData
from mwatch.remediate.bookkeeping import Tokens
from mwatch.remediate.node_avoidance import avoid_patch, keep_off

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
OTHERS = ("impersonate", "bind", "escalate", "approve")


class Right(NamedTuple):
    group: str
    resource: str
    verb: str
    name: str = ""


def rights(role: dict[str, Any]) -> set[Right]:
    return {
        Right(group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def without(role: dict[str, Any], right: Right) -> dict[str, Any]:
    """The same role, one right less."""
    rules = [
        {
            "apiGroups": [each.group],
            "resources": [each.resource],
            "verbs": [each.verb],
            **({"resourceNames": [each.name]} if each.name else {}),
        }
        for each in sorted(rights(role) - {right})
    ]
    return {**role, "rules": rules}


def user(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:mwatch-controller"


def installed(admin: Access, right: Right | None = None) -> tuple[str, dict[str, Any]]:
    """A namespace of its own with the controller's role, less one right."""
    namespace = things.fresh_namespace(admin)
    account, role, binding = things.manifests("controller.yaml", namespace)
    less = role if right is None else without(role, right)
    admin.create(things.SERVICE_ACCOUNTS, namespace, account)
    assert admin.create(things.ROLES, namespace, less).is_ok
    assert admin.create(things.BINDINGS, namespace, binding).is_ok
    probe = next(each for each in sorted(rights(less)) if not each.name)
    things.wait_for(lambda: allowed(admin, namespace, probe), "the role is in force")
    return namespace, role


def allowed(admin: Access, namespace: str, right: Right) -> bool:
    resource, _, part = right.resource.partition("/")
    asks = {
        "namespace": namespace, "verb": right.verb, "group": right.group, "resource": resource,
        "subresource": part, "name": right.name,
    }  # fmt: skip
    return things.is_allowed(admin, user(namespace), asks)


def make_workload(admin: Access, namespace: str, job: KubeJob) -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": job.kind.value, "name": job.name,
             "uid": job.uid, "controller": True}  # fmt: skip
    sets = [{"name": "main", "count": 1, "template": things.pod_template()}]
    body = {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {"name": "work", "ownerReferences": [owner]},
        "spec": {"queueName": "q", "podSets": sets},
    }
    assert admin.create(WORKLOADS, namespace, body).is_ok


def everything(admin: Access, ours: Access, namespace: str) -> None:
    """All that the controller does with the API, once; raises where a right is missing."""
    jobs = {kind: things.make_of(admin, namespace, kind) for kind in JobKind}
    things.make_pod(admin, jobs[JobKind.JOB], "old")
    make_workload(admin, namespace, jobs[JobKind.PYTORCH_JOB])
    found = watched_jobs(ours, namespace)
    assert not found.problems, found.problems
    assert len(found.jobs) == len(jobs)
    for kind, job in jobs.items():
        assert find_job(ours, namespace, job.name, kind) is not None
        _follow(ours, OF_KIND[kind], namespace)
        pods_of(ours, job)
        assert stop(ours, job, None, id="i1")
    stopped = find_job(ours, namespace, jobs[JobKind.STATEFUL_SET].name)
    assert stopped is not None and stopped.is_suspended and start(ours, stopped, None)
    _queue(ours, jobs[JobKind.PYTORCH_JOB])
    _follow(ours, PODS, namespace)
    (pod,) = pods_of(ours, jobs[JobKind.JOB])
    assert ours.delete(PODS, namespace, pod.name, uid=pod.uid).is_ok
    quotas(ours, namespace)
    ours.list(CLAIMS, namespace)
    _own_things(ours, namespace, jobs[JobKind.JOB])


def _queue(ours: Access, job: KubeJob) -> None:
    queued = replace(job, labels={**job.labels, QUEUE: "q"})
    work = workload_for(ours, queued)
    assert work is not None and stop(ours, queued, work, id="i1")


def _follow(ours: Access, resource: ApiResource, namespace: str) -> None:
    mirror = Mirror(ours, resource, namespace, lambda body: body, watch_seconds=1.0)
    mirror.turn()
    # Version 0: what is there is told at once.
    query = {"watch": "true", "timeoutSeconds": 1, "resourceVersion": "0"}
    stream = ours.stream(resource.path(namespace), query, 30.0)
    next(stream, None)
    stream.close()  # type: ignore[attr-defined]


def _one_more(book: LedgerData) -> LedgerData:
    entry = book.of("Job.x")
    return book.with_job("Job.x", replace(entry, attempt=entry.attempt + 1))


def _own_things(ours: Access, namespace: str, job: KubeJob) -> None:
    ledger = Ledger(ours, namespace)
    for _ in range(2):
        ledger.change(_one_more)
    logged: list[str] = []
    history = HistoryStore(ours, namespace, logged.append)
    for _ in range(2):  # made, then changed
        assert history.save({})
        if history.is_refused:
            raise NoPermission(logged[0])
    assert not ours.get(CONFIG_MAPS, namespace, "mwatch-policy").is_ok
    lease = Lease(ours, namespace, "one")
    for _ in range(2):
        if not lease.turn() or lease.problem:
            raise NoPermission(lease.problem)
    events = Events(ours, "one")
    for _ in range(2):
        if not events.emit(job, "Test", "the same words"):
            raise NoPermission("events")
    assert list(events._counts.values()) == [2]
    _follow(ours, EVENTS, namespace)
    Tokens(ours, namespace).ensure(job)


@pytest.mark.timeout(600)
def test_the_role_is_enough_for_all_that_the_controller_does(
    plane: ControlPlane, admin: Access
) -> None:
    namespace, _ = installed(admin)
    everything(admin, things.impatient(plane, impersonate=user(namespace)), namespace)


@pytest.mark.timeout(1800)
def test_without_any_one_right_something_cannot_be_done(plane: ControlPlane, admin: Access) -> None:
    _, role = installed(admin)
    needless = []
    for right in sorted(rights(role)):
        namespace, _ = installed(admin, right)
        ours = things.impatient(plane, impersonate=user(namespace))
        try:
            everything(admin, ours, namespace)
            needless.append(right)
        except (KubeError, AssertionError) as error:
            assert "cannot" in str(error) or "events" in str(error), (right, error)
    assert needless == []


@pytest.mark.timeout(900)
def test_nothing_else_is_allowed_here_or_elsewhere(admin: Access) -> None:
    namespace, role = installed(admin)
    granted = rights(role)
    for right in granted:
        assert allowed(admin, namespace, right)
    excess = [
        right
        for group, resource in known_resources(admin)
        for verb in (*VERBS, *OTHERS)
        if (right := Right(group, resource, verb)) not in granted
        and allowed(admin, namespace, right)
    ]
    assert excess == []
    named = {(each.group, each.resource, each.verb) for each in granted if each.name}
    assert not any(allowed(admin, namespace, Right(*each, "other")) for each in named)
    elsewhere = things.fresh_namespace(admin)
    seen = [each for each in granted if _in(admin, namespace, elsewhere, each)]
    assert seen == []


def _in(admin: Access, home: str, elsewhere: str, right: Right) -> bool:
    """As the controller of `home`, in another namespace."""
    asks = {
        "namespace": elsewhere, "verb": right.verb, "group": right.group,
        "resource": right.resource.partition("/")[0], "name": right.name,
    }  # fmt: skip
    return things.is_allowed(admin, user(home), asks)


def known_resources(admin: Access) -> list[tuple[str, str]]:
    """All that the API server serves, subresources too."""
    groups = admin.call("GET", "/apis").body["groups"]
    paths = [("", "/api/v1")]
    paths += [
        (each["name"], f"/apis/{each['preferredVersion']['groupVersion']}") for each in groups
    ]
    found = []
    for group, path in paths:
        listed = admin.call("GET", path).body.get("resources") or ()
        found += [(group, each["name"]) for each in listed]
    return found


def test_an_affinity_is_patched_with_the_role_alone(plane: ControlPlane, admin: Access) -> None:
    namespace, _ = installed(admin)
    ours = things.impatient(plane, impersonate=user(namespace))
    job = things.make_of(admin, namespace, JobKind.PYTORCH_JOB)
    patch = avoid_patch(job, "a-17", now=0.0, until=100.0)
    assert isinstance(patch, dict) and keep_off(ours, job, patch)
