# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stop a job, and say on the job why: it costs nothing until a person has looked."""

from __future__ import annotations

from mwatch.act.gang_suspend import start, stop
from mwatch.kube.access import Access
from mwatch.kube.events import Events
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_queue import KubeWorkload

STOPPED = "MwatchStopped"
STARTED = "MwatchStarted"


def stop_job(
    access: Access,
    events: Events,
    job: KubeJob,
    workload: KubeWorkload | None,
    *,
    id: str,
    reason: str,
) -> bool:
    """False: the job is gone. `id`: of the incident."""
    if not stop(access, job, workload, id=id):
        return False
    events.tell(
        job, STOPPED, f"{reason} ({id}); `mwatch resume {job.name}` starts it", is_warning=True
    )
    return True


def start_job(
    access: Access,
    events: Events,
    job: KubeJob,
    workload: KubeWorkload | None,
    *,
    who: str,
    why: str,
) -> bool:
    if not start(access, job, workload):
        return False
    events.tell(job, STARTED, f"{who}: {why}")
    return True
