# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods, nodes, quotas and amounts, as the API server tells of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mwatch.model.kube.facts import quota_of, workload_of
from mwatch.model.kube.fields import moment, quantity, requests_of
from mwatch.model.kube.node import KubeNode, Taint, node_of
from mwatch.model.kube.pod import pod_of
from support.builders.kube import pod

RECORDED = Path(__file__).parents[2] / "data" / "kube"


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2.0), (8, 8.0), ("1500m", 1.5), ("64Gi", 64 * 2.0**30), ("1k", 1000.0),
        ("1e3", 1000.0), ("1.5Mi", 1.5 * 2**20), ("-1", -1.0), ("", None), ("x", None),
        ("1.2.3", None), (None, None), ("5 apples", None), (True, None),
    ],
)  # fmt: skip
def test_amounts_are_read_as_the_api_writes_them(text: object, amount: float | None) -> None:
    assert quantity(text) == pytest.approx(amount) if amount is not None else quantity(text) is None


def test_times_are_seconds() -> None:
    assert moment({"at": "1970-01-01T00:01:00Z"}, "at") == 60.0
    assert moment({"at": "1970-01-01T00:01:00.500000Z"}, "at") == 60.5
    assert moment({"at": "soon"}, "at") is None


def test_a_recorded_pod_is_read() -> None:
    body = json.loads((RECORDED / "running.json").read_text())
    (found,) = map(pod_of, body["pods"])
    assert (found.phase, found.node, found.scheduled) == ("Running", "node1", True)
    assert found.owner == body["jobs"][0]["metadata"]["uid"]
    (container,) = found.containers
    assert (container.name, container.is_running, container.restarts) == ("pytorch", True, 0)
    (node,) = (node_of(each) for each in body["nodes"] if each["metadata"]["name"] == "node1")
    assert node.is_ready and node.allocatable["pods"] == 110.0 and node.takes({}, ())


def test_a_recorded_pod_on_its_way_out_says_who_sends_it() -> None:
    body = json.loads((RECORDED / "drained.json").read_text())
    (found,) = (each for each in map(pod_of, body["pods"]) if each.is_deleting)
    assert found.disruption is not None
    assert found.disruption.reason == "EvictionByEvictionAPI"
    assert found.grace_seconds == 5


def test_labels_of_the_operators_give_type_and_index() -> None:
    def replica(**labels: str) -> tuple[str, int | None]:
        named = {key.replace("__", "/").replace("_", "-"): text for key, text in labels.items()}
        found = pod_of({"metadata": {"labels": named}})
        return found.replica_type, found.replica_index

    kubeflow = "training.kubeflow.org__replica_"
    assert replica(**{f"{kubeflow}type": "worker", f"{kubeflow}index": "3"}) == ("worker", 3)
    jobset = {"jobset.sigs.k8s.io__replicatedjob_name": "node"}
    assert replica(**jobset, batch__x="", **{"batch.kubernetes.io__job_completion_index": "5"}) == (
        "node",
        5,
    )
    assert replica(**{"apps.kubernetes.io__pod_index": "2"}) == ("", 2)
    assert replica() == ("", None)


def test_a_staying_init_container_adds_to_what_a_pod_asks_for() -> None:
    def asks(cpu: str, **more: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [asks("1", restartPolicy="Always"), asks("8")],
        "containers": [asks("2"), {"resources": {"limits": {"cpu": "3"}}}],
        "overhead": {"cpu": "500m"},
    }
    assert requests_of(spec) == {"cpu": 9.5}
    spec["initContainers"] = [asks("1", restartPolicy="Always"), asks("2")]
    assert requests_of(spec) == {"cpu": 6.5}


def test_sidecars_are_known_by_their_policy() -> None:
    spec = {"initContainers": [{"name": "mwatch", "restartPolicy": "Always"}, {"name": "copy"}]}
    said = [{"name": "mwatch", "restartCount": 2}, {"name": "copy"}]
    found = pod_of({"spec": spec, "status": {"initContainerStatuses": said}})
    assert [each.is_sidecar for each in found.containers] == [True, False]
    assert found.restarts == 2


def test_tolerations_are_weighed_against_taints() -> None:
    node = KubeNode("n", taints=(Taint("gpu", "yes", "NoSchedule", None),))
    assert not node.takes({}, ())
    assert node.takes({}, [{"operator": "Exists"}])
    assert node.takes({}, [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}])
    assert not node.takes({}, [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}])
    assert not node.takes({}, [{"key": "gpu", "value": "no"}])


def test_quota_and_workload_are_read() -> None:
    quota = quota_of(
        {
            "metadata": {"name": "team"},
            "spec": {
                "hard": {"pods": "4"},
                "scopes": ["NotTerminating"],
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
                    ]
                },
            },
            "status": {"used": {"pods": "2"}},
        }
    )
    assert (quota.hard, quota.used, len(quota.scopes)) == ({"pods": 4.0}, {"pods": 2.0}, 2)
    yes = {"status": "True", "reason": "Preempted", "message": "room"}
    work = workload_of({"status": {"conditions": [{"type": "Evicted", **yes}]}})
    assert work.is_active and not work.is_admitted and work.evicted == "Preempted"


def test_a_pod_that_says_nothing_has_no_place() -> None:
    found = pod_of({})
    assert (found.name, found.node, found.scheduled, found.owner) == ("", "", None, "")
    assert pod().requests == {}
