# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sick nodes stay out of the next gang, where the fleet's settings ask for it, and for a while.

What cannot be done is said and no reason not to restart. A StatefulSet replaces its pods when
its template changes, so of it ended names are only dropped together with the next restart.

Keep a sick node out of the next gang: by the job's own affinity, or by a cordon.

Both are off unless asked for, capped, and end by themselves: until when is written beside them.
Only a PyTorchJob outside of Kueue and a StatefulSet may have their template changed; Kueue,
JobSet, Job and TrainJob do not take that, so there only a cordon helps, which needs rights to
nodes. Neither moves a pod that is already there.
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
    """Nodes that the job keeps away from, each with the moment that this ends."""
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
    """The patch that adds `node` (None: only drops what has ended); None: nothing to change."""
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
    words = json.dumps(wanted, sort_keys=True) if wanted else None
    if words == before:
        return None
    about = {"uid": job.uid, "resourceVersion": job.resource_version, "annotations": {AVOID: words}}
    return {"metadata": about, "spec": _spec(job, _ours(job), sorted(wanted))}


def keep_off(access: Access, job: KubeJob, patch: Mapping[str, Any]) -> bool:
    """False: the job has changed since it was read."""
    return access.patch(OF_KIND[job.kind], job.namespace, job.name, patch).is_ok


def cordon(
    access: Access, nodes: Iterable[KubeNode], name: str, *, until: float, why: str, most: int
) -> AvoidanceRefused | None:
    """None: done. `most`: of all nodes that mwatch holds back at the same time."""
    known = {node.name: node for node in nodes}
    node = known.get(name)
    if node is None:
        return AvoidanceRefused(f"there is no node {name}")
    if node.is_cordoned:
        return AvoidanceRefused(f"{name} is cordoned already")
    held = sum(CORDONED_UNTIL in each.annotations for each in known.values())
    if held >= most:
        return AvoidanceRefused(f"mwatch holds {held} nodes back already, which is the limit")
    words = {CORDONED_UNTIL: f"{until:.0f}", CORDONED_FOR: why[:200]}
    return _node_patch(access, node, {"unschedulable": True}, words)


def expired(nodes: Iterable[KubeNode], now: float) -> list[KubeNode]:
    """Nodes that mwatch has cordoned, and that may be used again."""
    found = []
    for node in nodes:
        until = node.annotations.get(CORDONED_UNTIL)
        if until is not None and (not until.isdigit() or float(until) <= now):
            found.append(node)
    return found


def uncordon(access: Access, node: KubeNode) -> AvoidanceRefused | None:
    """Only what mwatch has cordoned."""
    if CORDONED_UNTIL not in node.annotations:
        return AvoidanceRefused(f"{node.name} was not cordoned by mwatch")
    return _node_patch(
        access, node, {"unschedulable": None}, {CORDONED_UNTIL: None, CORDONED_FOR: None}
    )


def _node_patch(
    access: Access, node: KubeNode, spec: Mapping[str, Any], words: Mapping[str, str | None]
) -> AvoidanceRefused | None:
    about = {"resourceVersion": node.resource_version, "annotations": dict(words)}
    answer = access.patch(NODES, None, node.name, {"metadata": about, "spec": dict(spec)})
    return (
        None
        if answer.is_ok
        else AvoidanceRefused(f"{node.name} has changed meanwhile: {answer.text}")
    )


def _ours(job: KubeJob) -> set[str]:
    """What an earlier patch has put there, ended or not."""
    return set(avoided(job, float("-inf")))


def _spec(job: KubeJob, before: set[str], wanted: list[str]) -> dict[str, Any]:
    templates = {
        group.name: {"template": {"spec": {"affinity": _affinity(group.template, before, wanted)}}}
        for group in job.groups
    }
    if job.kind is JobKind.STATEFUL_SET:
        return templates[""]
    return {"pytorchReplicaSpecs": templates}


def _affinity(template: Object, before: set[str], wanted: list[str]) -> dict[str, Any]:
    """Each term of the node affinity is one way to be placed: none of them may lead there."""
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = mapping(template, "spec", "affinity", "nodeAffinity", key)
    terms = [_term(each, before, wanted) for each in items(required, "nodeSelectorTerms") or [{}]]
    terms = [term for term in terms if term]
    # A merge patch leaves the rest of the affinity as it is.
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
    """What was done, or why not, in words."""
    if not task.avoid or settings.keep_node_out == "off":
        return []
    until = now + settings.avoid_hours * _HOUR
    try:
        if settings.keep_node_out == "cordon":
            said = cordon(
                access, task.nodes or (), task.avoid, until=until,
                why=task.reason, most=settings.max_avoided,
            )  # fmt: skip
        else:
            said = _avoid(access, task, settings, now, until)
    except KubeError as error:
        said = AvoidanceRefused(str(error))
    if said is not None:
        return [f"{task.avoid} is not kept out: {said.text}"]
    return [f"{task.avoid} is kept out for {settings.avoid_hours:g} h"]


def _avoid(
    access: Access, task: RestartTask, settings: FleetSettings, now: float, until: float
) -> AvoidanceRefused | None:
    for _ in range(_TRIES):  # its operator writes into it whenever a pod changes
        job = find_job(access, task.job.namespace, task.job.name, task.job.kind)
        if job is None or job.uid != task.job.uid:
            return AvoidanceRefused("the job is gone")
        patch = avoid_patch(job, task.avoid, now=now, until=until, most=settings.max_avoided)
        if patch is None or isinstance(patch, AvoidanceRefused):
            return patch
        if keep_off(access, job, patch):
            return None
    return AvoidanceRefused("others change the job all the time")


def let_in(
    access: Access, jobs: Iterable[KubeJob], nodes: Iterable[KubeNode] | None, now: float
) -> list[str]:
    """What has ended is taken away: affinities of PyTorchJobs, and our cordons."""
    done = []
    for job in jobs:
        if job.kind is JobKind.PYTORCH_JOB and AVOID in job.annotations:
            patch = avoid_patch(job, None, now=now, until=now)
            if isinstance(patch, dict) and keep_off(access, job, patch):
                done.append(f"{job.name} keeps away from fewer nodes")
    held = [each for each in nodes or () if CORDONED_UNTIL in each.annotations]
    for node in expired(held, now):
        if uncordon(access, node) is None:
            done.append(f"{node.name} is no longer cordoned")
    return done
