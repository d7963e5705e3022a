# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A node as the API server reports it: whether pods may run there, and its resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mwatch.model.kube.fields import (
    Object,
    condition,
    flag,
    items,
    moment,
    quantities,
    text,
    text_map,
)

HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"
CORDONED_UNTIL = "mwatch.dev/cordoned-until"
CORDONED_FOR = "mwatch.dev/cordoned-for"
ZONE = "topology.kubernetes.io/zone"


class Taint(NamedTuple):
    key: str
    value: str
    effect: str
    since: float | None


@dataclass(frozen=True, slots=True)
class KubeNode:
    name: str
    resource_version: str = field(default="", compare=False)
    """Not compared: it changes with each status of the kubelet, every few minutes, although the
    node is the same."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_ready: bool = True  # False: its kubelet reports so, or is silent
    unready_since: float | None = None
    unready_text: str = ""
    is_cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_replaced(self) -> bool:
        """Whether HyperPod is about to reboot or replace it."""
        return self.labels.get(HYPERPOD_HEALTH, "Schedulable") != "Schedulable"

    def takes(self, selector: Mapping[str, str], tolerations: Iterable[Object]) -> bool:
        """Whether such a pod may be scheduled here, regardless of free resources."""
        if not self.is_ready or self.is_cordoned or self.is_replaced:
            return False
        if any(self.labels.get(key) != value for key, value in selector.items()):
            return False
        borne = list(tolerations)
        hard = [each for each in self.taints if each.effect in ("NoSchedule", "NoExecute")]
        return all(any(_tolerates(one, taint) for one in borne) for taint in hard)


def node_of(body: Object) -> KubeNode:
    ready = condition(body, "Ready")
    is_ready = text(ready, "status") == "True"
    return KubeNode(
        name=text(body, "metadata", "name"),
        resource_version=text(body, "metadata", "resourceVersion"),
        labels=text_map(body, "metadata", "labels"),
        annotations=text_map(body, "metadata", "annotations"),
        is_ready=is_ready,
        unready_since=None if is_ready else moment(ready, "lastTransitionTime"),
        unready_text="" if is_ready else text(ready, "message"),
        is_cordoned=flag(body, "spec", "unschedulable"),
        taints=tuple(
            Taint(text(each, "key"), text(each, "value"), text(each, "effect"),
                  moment(each, "timeAdded"))
            for each in items(body, "spec", "taints")
        ),
        allocatable=quantities(body, "status", "allocatable"),
    )  # fmt: skip


def _tolerates(toleration: Object, taint: Taint) -> bool:
    effect, key = text(toleration, "effect"), text(toleration, "key")
    if effect and effect != taint.effect:
        return False
    if text(toleration, "operator") == "Exists":
        return key in ("", taint.key)
    return key == taint.key and text(toleration, "value") == taint.value
