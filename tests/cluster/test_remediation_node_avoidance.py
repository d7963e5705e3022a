# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A sick node stays out of the next gang, where it was asked for, capped, and for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from mwatch.config.fleet import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job
from mwatch.kube.resources import NODES, PYTORCH_JOBS
from mwatch.model.decision import Action
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode, node_of
from mwatch.remediate.case import RestartTask
from mwatch.remediate.node_avoidance import keep_out, let_in

pytestmark = pytest.mark.timeout(900)
NOW = 1_800_000_000.0
AFFINITY = FleetSettings(keep_node_out="affinity", max_avoided=1, avoid_hours=2.0)


def job_of(access: Access, namespace: str) -> KubeJob:
    found = find_job(access, namespace, "train")
    assert found is not None
    return found


def make(access: Access, namespace: str) -> KubeJob:
    container = {"name": "pytorch", "image": "localhost/pause:1"}
    replica = {"replicas": 1, "restartPolicy": "OnFailure",
               "template": {"spec": {"containers": [container]}}}  # fmt: skip
    body: dict[str, Any] = {
        "apiVersion": PYTORCH_JOBS.api_version, "kind": PYTORCH_JOBS.kind,
        "metadata": {"name": "train"},
        # Suspended: nobody makes pods for it.
        "spec": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Master": replica}},
    }  # fmt: skip
    assert access.create(PYTORCH_JOBS, namespace, body).is_ok
    return job_of(access, namespace)


def task(job: KubeJob, node: str, nodes: tuple[KubeNode, ...] | None = None) -> RestartTask:
    return RestartTask(
        "id", "k", job, 1, Action.RESTART, "Xid 79", False, (), (), nodes, False, node
    )


def rules(job: KubeJob) -> str:
    return str(job.groups[0].template["spec"].get("affinity") or "")


def test_a_job_keeps_away_from_a_node_until_the_time_is_over(
    access: Access, namespace: str
) -> None:
    job = make(access, namespace)
    assert keep_out(access, task(job, "a-17"), FleetSettings(), NOW) == []  # off unless asked for
    (said,) = keep_out(access, task(job, "a-17"), AFFINITY, NOW)
    assert said == "a-17 is kept out for 2 h"
    job = job_of(access, namespace)
    assert "a-17" in rules(job) and "a-17" in job.annotations["mwatch.dev/avoid"]
    (said,) = keep_out(access, task(job, "b-2"), AFFINITY, NOW)
    assert "not kept out" in said and "limit" in said
    assert let_in(access, [job], None, NOW + 7199) == []
    assert len(let_in(access, [job], None, NOW + 7201)) == 1
    job = job_of(access, namespace)
    assert "a-17" not in rules(job) and "mwatch.dev/avoid" not in job.annotations


def test_a_node_is_cordoned_and_let_in_again(access: Access, namespace: str) -> None:
    name = f"sick-{namespace}"
    things.make_node(access, name)
    try:
        settings = replace(AFFINITY, keep_node_out="cordon")
        job = make(access, namespace)
        (said,) = keep_out(access, task(job, name, seen(access)), settings, NOW)
        assert said == f"{name} is kept out for 2 h"
        (node,) = [each for each in seen(access) if each.name == name]
        assert node.is_cordoned
        (said,) = keep_out(access, task(job, name, seen(access)), settings, NOW)
        assert "cordoned already" in said
        assert let_in(access, [], seen(access), NOW + 7201) == [name]
        (node,) = [each for each in seen(access) if each.name == name]
        assert not node.is_cordoned
    finally:
        access.call("DELETE", NODES.path(None, name))


def seen(access: Access) -> tuple[KubeNode, ...]:
    listing = access.list(NODES, None)
    assert listing.is_known
    return tuple(map(node_of, listing.objects))
