# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Keeping a sick node out of a job: the patch, its limit and its end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mwatch.model.kube.job import AVOID, KubeJob
from mwatch.model.kube.node import CORDONED_UNTIL, KubeNode
from mwatch.remediate.node_avoidance import AvoidanceRefused, avoid_patch, avoided, expired
from support.builders.kube import ACT, batch_job, job_set, pytorch_job, stateful_set

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
A17 = {"key": "metadata.name", "operator": "NotIn", "values": ["a-17"]}


def terms(patch: dict[str, Any], group: str = "Master") -> Any:
    template = patch["spec"]["pytorchReplicaSpecs"][group]["template"]
    required = template["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    return required and required["nodeSelectorTerms"]


def patched(job: KubeJob, node: str | None, **more: Any) -> dict[str, Any]:
    found = avoid_patch(job, node, **{"now": 0.0, "until": 100.0, **more})
    assert isinstance(found, dict)
    return found


def with_affinity(*rules: dict[str, Any], avoid: dict[str, float] | None = None) -> KubeJob:
    words = {**ACT, **({AVOID: json.dumps(avoid)} if avoid else {})}
    job = pytorch_job(annotations=words)
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(rules)}}}
    groups = [
        each._replace(template={"spec": {**each.template["spec"], "affinity": affinity}})
        for each in job.groups
    ]
    return replace(job, groups=tuple(groups))


def test_every_group_of_pods_keeps_off_the_node() -> None:
    patch = patched(pytorch_job(), "a-17")
    assert terms(patch) == terms(patch, "Worker") == [{"matchFields": [A17]}]
    assert json.loads(patch["metadata"]["annotations"][AVOID]) == {"a-17": 100.0}
    assert patch["metadata"]["resourceVersion"] == "7"


def test_each_way_that_the_user_allows_is_closed() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    rack = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["b"]}]}
    assert terms(patched(with_affinity(zone, rack), "a-17")) == [
        {**zone, "matchFields": [A17]},
        {**rack, "matchFields": [A17]},
    ]


def test_what_has_ended_is_taken_away_and_the_user_s_own_stays() -> None:
    own = {"key": "metadata.name", "operator": "NotIn", "values": ["b-1"]}
    job = with_affinity({"matchFields": [own, A17]}, avoid={"a-17": 50.0})
    patch = patched(job, None, now=60.0)
    assert terms(patch) == [{"matchFields": [own]}]
    assert patch["metadata"]["annotations"][AVOID] is None
    only = with_affinity({"matchFields": [A17]}, avoid={"a-17": 50.0})
    assert terms(patched(only, None, now=60.0)) is None


def test_so_many_and_no_more() -> None:
    held = with_affinity(avoid={f"n{index}": 90.0 for index in range(4)})
    assert isinstance(avoid_patch(held, "a-17", now=0.0, until=100.0), AvoidanceRefused)
    assert isinstance(avoid_patch(held, "a-17", now=95.0, until=100.0), dict)


def test_nothing_to_change_is_no_patch() -> None:
    assert avoid_patch(pytorch_job(), None, now=0.0, until=0.0) is None
    held = with_affinity({"matchFields": [A17]}, avoid={"a-17": 100.0})
    assert avoid_patch(held, "a-17", now=0.0, until=100.0) is None


@pytest.mark.parametrize(
    "job",
    [
        job_set(),
        batch_job(),
        pytorch_job(labels={"kueue.x-k8s.io/queue-name": "q"}),
    ],
)
def test_a_template_that_may_not_be_changed_is_left_alone(job: KubeJob) -> None:
    found = avoid_patch(job, "a-17", now=0.0, until=100.0)
    assert isinstance(found, AvoidanceRefused) and "cordon" in found.text


def test_a_stateful_set_has_one_template() -> None:
    patch = patched(stateful_set(), "a-17")
    required = patch["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert required["nodeSelectorTerms"] == [{"matchFields": [A17]}]


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"a": "b"}'])
def test_words_of_others_in_the_annotation_are_ignored(text: str) -> None:
    assert avoided(pytorch_job(annotations={AVOID: text}), now=0.0) == {}


def test_a_cordon_ends_by_itself_and_only_our_own() -> None:
    nodes = [
        KubeNode("ours", annotations={CORDONED_UNTIL: "100"}, is_cordoned=True),
        KubeNode("broken", annotations={CORDONED_UNTIL: "soon"}, is_cordoned=True),
        KubeNode("theirs", is_cordoned=True),
    ]
    assert [node.name for node in expired(nodes, 99.0)] == ["broken"]
    assert [node.name for node in expired(nodes, 100.0)] == ["ours", "broken"]
