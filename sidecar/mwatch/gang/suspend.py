# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Suspend and resume a job, to restart its gang cleanly or to stop it until a person resumes it.

Each kind of job has its own field for this. Kueue owns `suspend` of queued jobs, so their Workload
is made inactive; a StatefulSet has no such field, so it is scaled to 0 and an annotation keeps the
number of replicas. The reason for a stop is an Event on the job.
"""

from __future__ import annotations

from typing import Any

from mwatch.kube.access import ACTING, Access, Answer, CallOutcome
from mwatch.kube.errors import Rejected
from mwatch.kube.events import Events
from mwatch.kube.resources import OF_KIND, STATEFUL_SETS, WORKLOADS
from mwatch.model.kube.facts import KubeWorkload
from mwatch.model.kube.gang import GangStep
from mwatch.model.kube.job import REPLICAS, JobKind, KubeJob

SUSPENDED_BY = "mwatch.dev/suspended-by"
_RESTART = "restart/"
"""Prefix of the id if a restart suspended the job and will resume it; a stop has the id alone."""


class CannotStop(Rejected):
    """This job cannot be stopped; the text has the fix."""


def suspend(access: Access, step: GangStep) -> bool:
    """Suspend the job for a restart. False: the job is gone, or another job has its name."""
    body = _patch(step.kind, True, step.job_uid, {SUSPENDED_BY: _RESTART + step.id})
    return _patched(access, step.kind, step.namespace, step.name, body).is_ok


def resume(access: Access, step: GangStep, job: KubeJob) -> str | None:
    """Resume the job if it is still suspended by this step: a person may have suspended it in the
    meantime. Return the outcome; None: the job has changed since it was read."""
    if job.annotations.get(SUSPENDED_BY) != _RESTART + step.id:
        return "the job was suspended by someone else since; left unchanged"
    return "suspended and resumed" if resume_as_seen(access, job) else None


def restart_of(job: KubeJob) -> str:
    """The id of the restart that suspended the job; empty: none."""
    by = job.annotations.get(SUSPENDED_BY, "")
    is_ours = job.is_suspended and not job.queue and by.startswith(_RESTART)
    return by.removeprefix(_RESTART) if is_ours else ""


def resume_as_seen(access: Access, job: KubeJob) -> bool:
    """False: the job has changed since it was read."""
    body = _patch(job.kind, False, job.uid, {SUSPENDED_BY: None})
    body["metadata"]["resourceVersion"] = job.resource_version
    return _patched(access, job.kind, job.namespace, job.name, body).is_ok


def stop(access: Access, job: KubeJob, workload: KubeWorkload | None, *, id: str) -> bool:
    """Stop the job until a person starts it; `id`: of the incident. False: the job is gone."""
    if job.queue:
        if workload is None:
            raise CannotStop(f"queue {job.queue} has no Workload of {job.name}; suspend it by hand")
        body = {"metadata": {"uid": workload.uid}, "spec": {"active": False}}
        return access.patch(WORKLOADS, job.namespace, workload.name, body).is_ok
    if job.kind is JobKind.STATEFUL_SET:
        return _stop_stateful_set(access, job, id)
    body = _patch(job.kind, True, job.uid, {SUSPENDED_BY: id})
    return _patched(access, job.kind, job.namespace, job.name, body).is_ok


def start(access: Access, job: KubeJob, workload: KubeWorkload | None) -> bool:
    """Undo `stop`."""
    if job.queue and workload is not None:
        body = {"metadata": {"uid": workload.uid}, "spec": {"active": True}}
        return access.patch(WORKLOADS, job.namespace, workload.name, body).is_ok
    if job.kind is JobKind.STATEFUL_SET:
        kept = job.annotations.get(REPLICAS, "")
        if not kept.isdigit():
            raise CannotStop(f"{job.name} has no {REPLICAS}; set its replicas by hand")
        body = {"spec": {"replicas": int(kept)}}
        if not access.patch(STATEFUL_SETS, job.namespace, job.name, body, part="scale").is_ok:
            return False
        return _annotate(access, job, {REPLICAS: None, SUSPENDED_BY: None})
    body = _patch(job.kind, False, job.uid, {SUSPENDED_BY: None})
    return _patched(access, job.kind, job.namespace, job.name, body).is_ok


def _stop_stateful_set(access: Access, job: KubeJob, id: str) -> bool:
    """Store the number of replicas before scaling: a crash in between would lose it otherwise."""
    if job.is_suspended:
        return True
    if not _annotate(access, job, {REPLICAS: str(job.pods_wanted), SUSPENDED_BY: id}):
        return False
    body = {"spec": {"replicas": 0}}
    return access.patch(STATEFUL_SETS, job.namespace, job.name, body, part="scale").is_ok


def _annotate(access: Access, job: KubeJob, words: dict[str, str | None]) -> bool:
    body = {"metadata": {"uid": job.uid, "annotations": words}}
    return _patched(access, job.kind, job.namespace, job.name, body).is_ok


def _patch(
    kind: JobKind, is_suspended: bool, uid: str, words: dict[str, str | None]
) -> dict[str, Any]:
    if kind is JobKind.STATEFUL_SET:
        raise CannotStop("a StatefulSet has no field to suspend it")
    spec: dict[str, Any] = {"suspend": is_suspended}
    if kind is JobKind.PYTORCH_JOB:
        spec = {"runPolicy": spec}
    return {"metadata": {"uid": uid, "annotations": words}, "spec": spec}


def _patched(
    access: Access, kind: JobKind, namespace: str, name: str, body: dict[str, Any]
) -> Answer:
    """The UID in a patch is a precondition. API servers report a mismatch as a conflict or as a
    change of an immutable field; both are CONFLICT here."""
    try:
        return access.patch(OF_KIND[kind], namespace, name, body, limits=ACTING)
    except Rejected as error:
        if "metadata.uid" in str(error):
            return Answer(CallOutcome.CONFLICT, {}, str(error))
        raise


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
    """Stop the job and emit an Event. False: the job is gone. `id`: of the incident."""
    if not stop(access, job, workload, id=id):
        return False
    events.emit(
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
    events.emit(job, STARTED, f"{who}: {why}")
    return True
