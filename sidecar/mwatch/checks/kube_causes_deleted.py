# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods of a job a person deletes, or a tool of theirs: whoever else does it leaves a trace.

mwatch knows its own; scheduler, drain, taints and a lost node leave a condition; the job's own
controller says so in an Event, ends or suspends the job, or clears away what has crashed. Where
one of these had a hand in it, all of it is theirs: a gang that is being replaced goes as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from mwatch.model.kube_event import KubeEvent
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_node import KubeNode
from mwatch.model.kube_pod import KubePod

_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_BY_CONTROLLER = frozenset({"SuccessfulDelete", "SuccessfulDeletePod"})


def leaving(facts: KubeFacts) -> list[KubePod]:
    """On their way out or gone, each as it was when that was first seen."""
    found = {pod.uid: pod for pod in facts.pods if pod.is_deleting}
    found.update({pod.uid: pod for pod in facts.left})
    return list(found.values())


def deleted_pods(facts: KubeFacts) -> list[KubePod]:
    others = [pod for pod in leaving(facts) if pod.uid not in facts.ours]
    pods = [pod for pod in others if pod.disruption is None and not pod.is_over]
    if not pods or _is_by_its_controller(others, facts):
        return []
    nodes = by_name(facts)
    return [] if any(on_lost_node(pod, nodes) for pod in pods) else pods


def _is_by_its_controller(going: list[KubePod], facts: KubeFacts) -> bool:
    if facts.wants_no_pods:
        return True
    if any(pod.phase == "Failed" for pod in going):
        return True  # it was over before it was deleted
    if any(pod.phase == "Failed" and not pod.is_deleting for pod in facts.pods):
        return True
    events = [each for each in facts.events if each.reason in _BY_CONTROLLER]
    return any(_names(each, pod) for each in events for pod in going)


def _names(event: KubeEvent, pod: KubePod) -> bool:
    """This very pod, and not one of that name before it."""
    is_later = event.at is None or pod.created_at is None or event.at >= pod.created_at
    return is_later and pod.name in event.text.replace(",", " ").split()


def by_name(facts: KubeFacts) -> Mapping[str, KubeNode] | None:
    return None if facts.nodes is None else {node.name: node for node in facts.nodes}


def on_lost_node(pod: KubePod, nodes: Mapping[str, KubeNode] | None) -> bool:
    """Without sight of the nodes a pod that a taint drives off is taken for lost."""
    if nodes is None:
        by_taint = pod.disruption is not None and pod.disruption.reason == "DeletionByTaintManager"
        return by_taint or pod.reason == "NodeLost"
    node = nodes.get(pod.node)
    if node is None:
        return bool(pod.node)
    return not node.is_ready or any(taint.key in _LOST_NODE for taint in node.taints)
