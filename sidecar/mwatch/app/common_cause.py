# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that stall together and share a node, a switch, a volume or a zone: one cause, not many.

Pure. Restarting them all would cost each of them its way back, and the storage or the switch that
is ill would be ill still. What they share is read from the cluster; that they stalled *because*
of it is a guess, so it needs several of them, close in time, and a good part of all that share
the thing: two of fifty jobs on one volume are chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mwatch.model.finding import Cause
from mwatch.model.kube_fields import items, text
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_node import ZONE, KubeNode
from mwatch.model.kube_pod import KubePod

STALLS = frozenset({Cause.HANG, Cause.FABRIC, Cause.STORAGE, Cause.LOST_POD, Cause.KILLED})
_RANK = ("node", "switch", "volume", "storage class", "zone")
"""From the narrowest: where several things are shared, that one is named."""


class Thing(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Stalled(NamedTuple):
    key: str
    since: float


class Group(NamedTuple):
    thing: Thing
    keys: tuple[str, ...]
    since: float


class Rule(NamedTuple):
    seconds: float
    least: int
    share: float


def things_of(
    job: KubeJob,
    pods: Iterable[KubePod],
    nodes: Iterable[KubeNode],
    *,
    switch_labels: Sequence[str],
    classes: Mapping[str, str],
) -> frozenset[Thing]:
    """What the job stands on. `classes`: the storage class of each claim, where that is known."""
    on = {pod.node for pod in pods if pod.node}
    found = {Thing("node", name) for name in on}
    for node in nodes:
        if node.name in on:
            found |= {
                Thing("switch", f"{label}={node.labels[label]}")
                for label in switch_labels
                if label in node.labels
            }
            found |= {Thing("zone", node.labels[ZONE])} if ZONE in node.labels else set()
    for volume in _volumes(job):
        found.add(volume)
        if volume.name in classes:
            found.add(Thing("storage class", classes[volume.name]))
    return frozenset(found)


def _volumes(job: KubeJob) -> set[Thing]:
    found = set()
    for group in job.groups:
        for each in items(group.template, "spec", "volumes"):
            claim = text(each, "persistentVolumeClaim", "claimName")
            server = text(each, "nfs", "server")
            if claim:
                found.add(Thing("volume", claim))
            if server:
                found.add(Thing("volume", f"{server}:{text(each, 'nfs', 'path')}"))
    return found


def common(
    stalled: Iterable[Stalled], things: Mapping[str, frozenset[Thing]], rule: Rule
) -> list[Group]:
    """`things`: of all watched jobs, by key, healthy ones too. A job is in one group at most."""
    sharing = Counter(thing for each in things.values() for thing in each)
    on: dict[Thing, list[Stalled]] = defaultdict(list)
    for each in stalled:
        for thing in things.get(each.key, ()):
            on[thing].append(each)
    found = []
    for thing, jobs in on.items():
        together = _together(jobs, rule.seconds)
        if len(together) >= max(rule.least, rule.share * sharing[thing]):
            keys = tuple(sorted(each.key for each in together))
            found.append(Group(thing, keys, min(each.since for each in together)))
    found.sort(key=lambda each: (-len(each.keys), _RANK.index(each.thing.kind), each.thing.name))
    return _apart(found, rule.least)


def _together(jobs: list[Stalled], seconds: float) -> list[Stalled]:
    """The most that stalled within the window."""
    order = sorted(jobs, key=lambda each: each.since)
    best: list[Stalled] = []
    for index, first in enumerate(order):
        inside = [each for each in order[index:] if each.since - first.since <= seconds]
        best = max(best, inside, key=len)
    return best


def _apart(groups: list[Group], least: int) -> list[Group]:
    taken: set[str] = set()
    kept = []
    for group in groups:
        left = tuple(key for key in group.keys if key not in taken)
        if len(left) >= least:
            kept.append(group._replace(keys=left))
            taken.update(left)
    return kept
