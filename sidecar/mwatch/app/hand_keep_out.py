# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sick nodes stay out of the next gang, where the fleet's settings ask for it, and for a while.

What cannot be done is said and no reason not to restart. A StatefulSet replaces its pods when
its template changes, so of it ended names are only dropped together with the next restart.
"""

from __future__ import annotations

from collections.abc import Iterable

from mwatch.act.keep_out import Refused, avoid_patch, cordon, expired, keep_off, uncordon
from mwatch.app.fleet_settings import FleetSettings
from mwatch.app.hand_task import Task
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import find_job
from mwatch.model.kube_job import AVOID, JobKind, KubeJob
from mwatch.model.kube_node import CORDONED_UNTIL, KubeNode

_HOUR = 3600.0
_TRIES = 5


def keep_out(access: Access, task: Task, settings: FleetSettings, now: float) -> list[str]:
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
        said = Refused(str(error))
    if said is not None:
        return [f"{task.avoid} is not kept out: {said.text}"]
    return [f"{task.avoid} is kept out for {settings.avoid_hours:g} h"]


def _avoid(
    access: Access, task: Task, settings: FleetSettings, now: float, until: float
) -> Refused | None:
    for _ in range(_TRIES):  # its operator writes into it whenever a pod changes
        job = find_job(access, task.job.namespace, task.job.name, task.job.kind)
        if job is None or job.uid != task.job.uid:
            return Refused("the job is gone")
        patch = avoid_patch(job, task.avoid, now=now, until=until, most=settings.max_avoided)
        if patch is None or isinstance(patch, Refused):
            return patch
        if keep_off(access, job, patch):
            return None
    return Refused("others change the job all the time")


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
