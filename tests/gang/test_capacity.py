# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Room for a new gang: quota and nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.gang.plan import nodes_lack, quota_lacks
from mwatch.model.kube.facts import KubeQuota, ScopeRule
from mwatch.model.kube.node import KubeNode, Taint
from support.builders.kube import pod, pytorch_job

GPU = "requests.nvidia.com/gpu"
JOB = pytorch_job(gpus=8, workers=1)
PODS = (pod("train-0", gpus=8), pod("train-1", gpus=8))
NODE = KubeNode("n1", allocatable={"nvidia.com/gpu": 8.0, "pods": 110.0})


def quota(hard: float, used: float, *scopes: ScopeRule) -> KubeQuota:
    return KubeQuota("team", {GPU: hard}, {GPU: used}, scopes)


def test_a_gang_of_the_same_size_takes_the_place_of_the_old_one() -> None:
    assert quota_lacks(JOB, PODS, [quota(16, 16)]) == ""


def test_a_quota_that_was_lowered_has_no_room() -> None:
    assert "quota team has 8" in quota_lacks(JOB, PODS, [quota(8, 16)])


def test_pods_that_have_ended_free_nothing() -> None:
    ended = (replace(PODS[0], phase="Failed"), PODS[1])
    assert "24 would be used" in quota_lacks(JOB, ended, [quota(16, 16)])
    assert quota_lacks(JOB, ended, [quota(16, 8)]) == ""


def test_what_the_job_does_not_ask_for_does_not_matter() -> None:
    disk = KubeQuota("disk", {"requests.storage": 1.0}, {"requests.storage": 5.0}, ())
    assert quota_lacks(JOB, PODS, [disk]) == ""


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        (ScopeRule("NotTerminating", "Exists", ()), True),
        (ScopeRule("Terminating", "Exists", ()), False),
        (ScopeRule("BestEffort", "Exists", ()), True),
        (ScopeRule("NotBestEffort", "Exists", ()), False),
        (ScopeRule("PriorityClass", "In", ("high",)), False),
        (ScopeRule("PriorityClass", "In", ("",)), True),
        (ScopeRule("PriorityClass", "NotIn", ("high",)), True),
        (ScopeRule("PriorityClass", "Exists", ()), False),
        (ScopeRule("PriorityClass", "DoesNotExist", ()), True),
        (ScopeRule("SomethingNew", "Exists", ()), True),
    ],
)
def test_a_quota_counts_only_the_pods_of_its_scope(scope: ScopeRule, counts: bool) -> None:
    assert bool(quota_lacks(JOB, PODS, [quota(8, 16, scope)])) is counts


def test_two_pods_of_eight_gpus_need_two_nodes() -> None:
    assert "1 of 1 Master" not in nodes_lack(JOB, [NODE], frozenset())
    assert "0 of 1" in nodes_lack(JOB, [NODE], frozenset())
    assert nodes_lack(JOB, [NODE, replace(NODE, name="n2")], frozenset()) == ""


@pytest.mark.parametrize(
    "node",
    [
        replace(NODE, name="n2", is_ready=False),
        replace(NODE, name="n2", is_cordoned=True),
        replace(NODE, name="n2", taints=(Taint("sick", "", "NoSchedule", None),)),
        replace(NODE, name="n2", allocatable={"nvidia.com/gpu": 7.0}),
        replace(NODE, name="avoided"),
    ],
)
def test_a_node_that_takes_no_pods_is_no_room(node: KubeNode) -> None:
    assert nodes_lack(JOB, [NODE, node], frozenset({"avoided"}))


def test_a_taint_that_only_prefers_is_no_hindrance() -> None:
    node = replace(NODE, name="n2", taints=(Taint("sick", "", "PreferNoSchedule", None),))
    assert nodes_lack(JOB, [NODE, node], frozenset()) == ""


def test_tolerations_and_selectors_are_those_of_the_template() -> None:
    tainted = replace(
        NODE, labels={"pool": "gpu"}, taints=(Taint("gpu", "yes", "NoSchedule", None),)
    )
    nodes = [tainted, replace(tainted, name="n2")]
    assert nodes_lack(JOB, nodes, frozenset())
    bears = ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},)
    groups = [
        each._replace(tolerations=bears, node_selector={"pool": "gpu"}) for each in JOB.groups
    ]
    assert nodes_lack(replace(JOB, groups=tuple(groups)), nodes, frozenset()) == ""
    other = [each._replace(tolerations=bears, node_selector={"pool": "x"}) for each in JOB.groups]
    assert nodes_lack(replace(JOB, groups=tuple(other)), nodes, frozenset())
