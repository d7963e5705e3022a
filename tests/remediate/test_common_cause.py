# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that stall together: what they share, and when that is no chance."""

from __future__ import annotations

from collections.abc import Mapping

from mwatch.config.fleet import FleetSettings
from mwatch.model.kube.job import KubeJob, job_of
from mwatch.model.kube.node import ZONE, KubeNode
from mwatch.remediate.gates import SharedPart, Stalled, common, parts_of
from support.builders.kube import body, pod, template

RULE = FleetSettings(common_cause_seconds=120.0, common_cause_least=2, common_cause_share=0.3)
STORE = SharedPart("volume", "shared")
NODE = SharedPart("node", "n1")
LABELS = FleetSettings().switch_labels


def job_with(*volumes: Mapping[str, object]) -> KubeJob:
    spec = {"parallelism": 2, "template": template(volumes=list(volumes))}
    found = job_of(body("Job", spec))
    assert found is not None
    return found


def test_what_a_job_stands_on_is_read_from_its_pods_nodes_and_volumes() -> None:
    claim = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    nfs = {"name": "n", "nfs": {"server": "filer", "path": "/x"}}
    labels = {ZONE: "eu-1", "topology.kubernetes.io/rack": "r7"}
    nodes = (KubeNode("n1", labels=labels), KubeNode("elsewhere", labels={ZONE: "eu-2"}))
    found = parts_of(
        job_with(claim, nfs), [pod()], nodes, switch_labels=LABELS, classes={"data": "lustre"}
    )
    assert {str(each) for each in found} == {
        "node n1", "zone eu-1", "switch topology.kubernetes.io/rack=r7", "volume data",
        "storage class lustre", "volume filer:/x",
    }  # fmt: skip


def test_two_of_three_that_share_a_volume_have_one_cause() -> None:
    things = {"a": frozenset({STORE}), "b": frozenset({STORE}), "c": frozenset({STORE})}
    (group,) = common([Stalled("a", 100.0), Stalled("b", 190.0)], things, RULE)
    assert (group.part, group.keys, group.since) == (STORE, ("a", "b"), 100.0)


def test_two_of_fifty_on_one_volume_are_chance() -> None:
    things = {str(number): frozenset({STORE}) for number in range(50)}
    assert common([Stalled("1", 0.0), Stalled("2", 1.0)], things, RULE) == []
    many = [Stalled(str(number), float(number)) for number in range(15)]
    (group,) = common(many, things, RULE)
    assert len(group.keys) == 15


def test_what_is_far_apart_in_time_or_alone_is_not_common() -> None:
    things = {"a": frozenset({STORE}), "b": frozenset({STORE}), "c": frozenset({NODE})}
    assert common([Stalled("a", 0.0), Stalled("b", 121.0)], things, RULE) == []
    assert common([Stalled("a", 0.0), Stalled("c", 1.0)], things, RULE) == []
    assert common([Stalled("a", 0.0), Stalled("unknown", 1.0)], things, RULE) == []


def test_the_narrowest_thing_is_named_and_each_job_is_in_one_group() -> None:
    zone = SharedPart("zone", "eu-1")
    things = {
        "a": frozenset({NODE, STORE, zone}),
        "b": frozenset({NODE, STORE, zone}),
        "c": frozenset({zone}),
    }
    (group,) = common([Stalled(key, 5.0) for key in "ab"], things, RULE)
    assert group.part == NODE
    groups = common([Stalled(key, 5.0) for key in "abc"], things, RULE)
    assert [(each.part, each.keys) for each in groups] == [(zone, ("a", "b", "c"))]


def test_the_most_that_fit_into_the_window_count() -> None:
    things = {key: frozenset({STORE}) for key in "abcd"}
    stalled = [Stalled("a", 0.0), Stalled("b", 300.0), Stalled("c", 350.0), Stalled("d", 420.0)]
    (group,) = common(stalled, things, RULE)
    assert group.keys == ("b", "c", "d") and group.since == 300.0
