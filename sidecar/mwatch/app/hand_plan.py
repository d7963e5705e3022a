# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The plan for one job from facts that were read just now, not from what was seen before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mwatch.act.gang_plan import GangFacts, may_stop, plan
from mwatch.app.fleet_settings import FleetSettings
from mwatch.app.hand_task import Task
from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission
from mwatch.kube.jobs import find_job, pods_of, quotas, workload_for
from mwatch.model.decision import Action
from mwatch.model.gang import Plan, Refusal, Way, Why
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_pod import KubePod
from mwatch.model.kube_queue import KubeQuota


def planned(
    access: Access, task: Task, settings: FleetSettings, now: float, unused: Collection[str] = ()
) -> Plan | Refusal:
    """KubeError where the cluster cannot be seen. `unused`: pods in which nothing has run yet."""
    job = find_job(access, task.job.namespace, task.job.name, task.job.kind)
    if job is None or job.uid != task.job.uid:
        return Refusal(Why.DELETING, "the job is gone, or is another one by now")
    pods = pods_of(access, job)
    facts = replace(_facts(access, task, settings, job, pods, now), unused=frozenset(unused))
    if task.action is Action.STOP:
        refusal = may_stop(job, facts)
        if refusal is not None:
            return refusal
        return Plan(Way.STOP, job.kind, job.namespace, job.name, job.uid, ())
    return plan(job, facts)


def _facts(
    access: Access,
    task: Task,
    settings: FleetSettings,
    job: KubeJob,
    pods: tuple[KubePod, ...],
    now: float,
) -> GangFacts:
    is_kept_out = bool(task.avoid) and settings.keep_node_out != "off"
    known = {each.uid for each in task.pods}
    return GangFacts(
        pods,
        0.0,
        nodes=task.nodes,
        quotas=_quotas(access, job),
        workload=workload_for(access, job),
        can_in_place=task.can_in_place and known >= {pod.uid for pod in pods},
        avoid=frozenset({task.avoid}) if is_kept_out else frozenset(),
        is_asked=task.is_asked,
        blamed=task.blamed,
        now=now,
    )


def _quotas(access: Access, job: KubeJob) -> tuple[KubeQuota, ...] | None:
    try:
        return quotas(access, job.namespace)
    except NoPermission:
        return None
