# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a bad node out of the next gang for some hours: by the job's affinity, or by a cordon.

Both are off by default, limited in number, and expire at a time that is kept in an annotation. Only
the template of a StatefulSet or of a PyTorchJob outside Kueue can be changed; other jobs need a
cordon, which requires permission to change nodes. A StatefulSet replaces its pods when its template
changes, so expired nodes are removed from it only with the next restart. A failure here never
prevents a restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mwatch.config.fleet import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import find_job
from mwatch.kube.resources import NODES, OF_KIND
from mwatch.model.kube.fields import Object, items, mapping
from mwatch.model.kube.job import AVOID, JobKind, KubeJob
from mwatch.model.kube.node import CORDONED_FOR, CORDONED_UNTIL, KubeNode
from mwatch.remediate.case import RestartTask

MAX_AVOIDED = 4
_NAME = "metadata.name"


class AvoidanceRefused(NamedTuple):
    text: str


def avoided(job: KubeJob, now: float) -> dict[str, float]:
    """Nodes that the job avoids, each with its expiry time."""
    try:
        kept = json.loads(job.annotations.get(AVOID, "{}"))
    except ValueError:
        return {}
    if not isinstance(kept, dict):
        return {}
    return {
        str(name): float(until)
        for name, until in kept.items()
        if isinstance(until, int | float) and until > now
    }


def can_avoid(job: KubeJob) -> bool:
    is_free = job.kind is JobKind.PYTORCH_JOB and not job.queue
    return is_free or job.kind is JobKind.STATEFUL_SET


def avoid_patch(
    job: KubeJob, node: str | None, *, now: float, until: float, most: int = MAX_AVOIDED
) -> dict[str, Any] | AvoidanceRefused | None:
    """The patch that adds `node` and drops expired nodes; None: nothing to change."""
    if not can_avoid(job):
        return AvoidanceRefused(
            f"the template of this {job.kind.value} may not be changed: cordon the node"
        )
    wanted = avoided(job, now)
    if node is not None and node not in wanted:
        if len(wanted) >= most:
            return AvoidanceRefused(f"{len(wanted)} nodes are kept out already, which is the limit")
        wanted[node] = until
    before = job.annotations.get(AVOID)
    if not wanted and before is None:
        return None
    text = json.dumps(wanted, sort_keys=True) if wanted else None
    if text == before:
        return None
    about = {"uid": job.uid, "resourceVersion": job.resource_version, "annotations": {AVOID: text}}
    ours = set(avoided(job, float("-inf")))  # nodes of earlier patches, expired or not
    return {"metadata": about, "spec": _spec(job, ours, sorted(wanted))}


def keep_off(access: Access, job: KubeJob, patch: Mapping[str, Any]) -> bool:
    """False: the job has changed since it was read."""
    return access.patch(OF_KIND[job.kind], job.namespace, job.name, patch).is_ok


def cordon(
    access: Access, nodes: Iterable[KubeNode], name: str, *, until: float, why: str, most: int
) -> AvoidanceRefused | None:
    """None: cordoned. `most`: how many nodes mwatch may keep cordoned at the same time."""
    known = {node.name: node for node in nodes}
    node = known.get(name)
    if node is None:
        return AvoidanceRefused(f"there is no node {name}")
    if node.is_cordoned:
        return AvoidanceRefused(f"{name} is cordoned already")
    held = sum(CORDONED_UNTIL in each.annotations for each in known.values())
    if held >= most:
        return AvoidanceRefused(f"mwatch holds {held} nodes back already, which is the limit")
    annotations = {CORDONED_UNTIL: f"{until:.0f}", CORDONED_FOR: why[:200]}
    return _node_patch(access, node, {"unschedulable": True}, annotations)


def expired(nodes: Iterable[KubeNode], now: float) -> list[KubeNode]:
    cordoned = [(node, node.annotations.get(CORDONED_UNTIL)) for node in nodes]
    return [
        node for node, until in cordoned
        if until is not None and (not until.isdigit() or float(until) <= now)
    ]  # fmt: skip


def uncordon(access: Access, node: KubeNode) -> AvoidanceRefused | None:
    if CORDONED_UNTIL not in node.annotations:
        return AvoidanceRefused(f"{node.name} was not cordoned by mwatch")
    return _node_patch(
        access, node, {"unschedulable": None}, {CORDONED_UNTIL: None, CORDONED_FOR: None}
    )


def _node_patch(
    access: Access, node: KubeNode, spec: Mapping[str, Any], annotations: Mapping[str, str | None]
) -> AvoidanceRefused | None:
    about = {"resourceVersion": node.resource_version, "annotations": annotations}
    answer = access.patch(NODES, None, node.name, {"metadata": about, "spec": spec})
    if answer.is_ok:
        return None
    return AvoidanceRefused(f"{node.name} has changed meanwhile: {answer.text}")


def _spec(job: KubeJob, before: set[str], wanted: list[str]) -> dict[str, Any]:
    templates = {
        group.name: {"template": {"spec": {"affinity": _affinity(group.template, before, wanted)}}}
        for group in job.groups
    }
    if job.kind is JobKind.STATEFUL_SET:
        return templates[""]
    return {"pytorchReplicaSpecs": templates}


def _affinity(template: Object, before: set[str], wanted: list[str]) -> dict[str, Any]:
    """A pod is placed by any term of the node affinity, so each term must exclude the nodes."""
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = mapping(template, "spec", "affinity", "nodeAffinity", key)
    terms = [_term(each, before, wanted) for each in items(required, "nodeSelectorTerms") or [{}]]
    terms = [term for term in terms if term]
    # A merge patch keeps the rest of the affinity.
    return {"nodeAffinity": {key: {"nodeSelectorTerms": terms} if terms else None}}


def _term(term: Object, before: set[str], wanted: list[str]) -> dict[str, Any]:
    kept = [each for each in items(term, "matchFields") if not _is_ours(each, before)]
    kept += [{"key": _NAME, "operator": "NotIn", "values": [name]} for name in wanted]
    rest = {key: value for key, value in term.items() if key != "matchFields"}
    return {**rest, "matchFields": kept} if kept else rest


def _is_ours(rule: Object, before: set[str]) -> bool:
    if rule.get("key") != _NAME or rule.get("operator") != "NotIn":
        return False
    return all(name in before for name in rule.get("values") or ())


_HOUR = 3600.0
_TRIES = 5


def keep_out(access: Access, task: RestartTask, settings: FleetSettings, now: float) -> list[str]:
    """Return what was done, or why not, for the Event."""
    if not task.avoid or settings.keep_node_out == "off":
        return []
    until = now + settings.avoid_hours * _HOUR
    try:
        if settings.keep_node_out == "cordon":
            refused = cordon(
                access, task.nodes or (), task.avoid, until=until,
                why=task.reason, most=settings.max_avoided,
            )  # fmt: skip
        else:
            refused = _avoid(access, task, settings, now, until)
    except KubeError as error:
        refused = AvoidanceRefused(str(error))
    if refused is not None:
        return [f"{task.avoid} is not kept out: {refused.text}"]
    return [f"{task.avoid} is kept out for {settings.avoid_hours:g} h"]


def _avoid(
    access: Access, task: RestartTask, settings: FleetSettings, now: float, until: float
) -> AvoidanceRefused | None:
    for _ in range(_TRIES):  # conflicts: the operator updates the job when a pod changes
        job = find_job(access, task.job.namespace, task.job.name, task.job.kind)
        if job is None or job.uid != task.job.uid:
            return AvoidanceRefused("the job is gone")
        patch = avoid_patch(job, task.avoid, now=now, until=until, most=settings.max_avoided)
        if patch is None or isinstance(patch, AvoidanceRefused):
            return patch
        if keep_off(access, job, patch):
            return None
    return AvoidanceRefused("the job changes all the time")


def let_in(
    access: Access, jobs: Iterable[KubeJob], nodes: Iterable[KubeNode] | None, now: float
) -> list[str]:
    """Remove expired affinities of PyTorchJobs and expired cordons; return the changed objects."""
    done = []
    for job in jobs:
        if job.kind is JobKind.PYTORCH_JOB and AVOID in job.annotations:
            patch = avoid_patch(job, None, now=now, until=now)
            if isinstance(patch, dict) and keep_off(access, job, patch):
                done.append(job.name)
    return done + [each.name for each in expired(nodes or (), now) if not uncordon(access, each)]
