# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch stop JOB`: end a job with a last save, until a person starts it again.

Suspending a job, or scaling it to zero, sends SIGTERM to its pods. That is the request for a save:
Megatron honours it with `--exit-signal-handler`, within the grace period of the pods. Nothing
restarts a job that is suspended, and its annotation names this stop. A controller that began a
restart at the same moment may resume the job, so the stop is checked at the end and repeated if
needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.gang.plan import GangFacts, may_stop
from mwatch.gang.suspend import CannotStop, stop_job
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import find_job, find_whole, no_such_job, parse_job_name, pods_of
from mwatch.kube.jobs import workload_for as workload_of_job
from mwatch.manifests.facts import workload_of
from mwatch.model.incident import bundle_id
from mwatch.model.kube.facts import KubeWorkload
from mwatch.model.kube.fields import items, number
from mwatch.model.kube.gang import GangRefusal
from mwatch.model.kube.job import ATTEMPT, JobKind, KubeJob
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.model.kube.pod import KubePod
from mwatch.operate.overrides import CommandResult, JobOverrides, clean

_WORD = "stopped"
_SAVES = "--exit-signal-handler"
_TORCHRUN = ("torchrun", "torch.distributed.run")
_TORCHRUN_SECONDS = 30
"""Time from SIGTERM until torchrun kills its ranks."""
_USUAL_GRACE = 30
_MARGIN_SECONDS = 60.0
"""Wait after the grace period, for the kubelet and the job's own controller."""
_LOOK_SECONDS = 2.0
_REPEATS = 3

Newest = Callable[[KubeJob], int | None]
"""The iteration of the newest complete checkpoint; None: not known."""


class StopTimes(NamedTuple):
    look_seconds: float = _LOOK_SECONDS
    margin_seconds: float = _MARGIN_SECONDS
    wait: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class StopPlan:
    job: KubeJob
    pods: tuple[KubePod, ...]
    workload: KubeWorkload | None
    saves: bool
    """Whether a flag in its command makes it save on SIGTERM."""
    grace_seconds: int
    """Termination grace period of its pods."""
    save_seconds: int
    """Time for the save: torchrun may kill its ranks before the grace period ends."""
    checkpoint: int | None
    refusal: GangRefusal | None

    @property
    def way(self) -> str:
        if self.job.queue:
            return "deactivated in its queue"
        return "scaled to 0" if self.job.kind is JobKind.STATEFUL_SET else "suspended"

    @property
    def lines(self) -> list[str]:
        """What a person should know before the stop."""
        job = self.job
        known = "not known" if self.checkpoint is None else str(self.checkpoint)
        found = [
            f"{job.kind.value} {job.name} in namespace {job.namespace}: {len(self.pods)} pods, "
            f"newest checkpoint: {known}; it will be {self.way}"
        ]
        if self.saves:
            found.append(f"it saves on SIGTERM ({_SAVES}) and has {self.save_seconds} s for that")
        else:
            found.append(
                f"no {_SAVES} in its command: it ends without a save, and the steps since the "
                "newest checkpoint are lost"
            )
        return found


class ManualStop:
    def __init__(
        self, overrides: JobOverrides, newest: Newest, times: StopTimes | None = None
    ) -> None:
        self._overrides = overrides
        self._newest = newest
        self._times = times or StopTimes()

    def prepare(self, name: str) -> StopPlan:
        overrides = self._overrides
        kind, short = parse_job_name(name)
        found = find_whole(overrides.access, overrides.namespace, short, kind)
        if found is None:
            raise no_such_job(overrides.access, overrides.namespace, short)
        job = found.job
        pods = _running(pods_of(overrides.access, job))
        grace = _grace(job)
        refusal = may_stop(job, GangFacts(pods, 0.0, is_asked=True, now=time.time()))
        return StopPlan(
            job, pods, workload_of_job(overrides.access, job), _saves(found.body), grace,
            min(grace, _TORCHRUN_SECONDS) if _has_torchrun(job) else grace,
            self._newest(job) if refusal is None else None, refusal,
        )  # fmt: skip

    def run(self, plan: StopPlan, why: str, progress: Callable[[str], None]) -> CommandResult:
        if plan.refusal is not None:
            return self._refused(plan, plan.refusal.text)
        job, overrides, why = plan.job, self._overrides, clean(why)
        attempt = int(job.annotations.get(ATTEMPT, "0") or 0)
        id = bundle_id(time.time(), max(1, attempt), _WORD)
        notes = self._record(job, why)
        try:
            self._stop(job, plan.workload, id, why)
        except CannotStop as error:
            return self._refused(plan, str(error))
        progress(f"{job.name}: {plan.way}; waiting for {len(plan.pods)} pods to end")
        saved, left = self._follow(plan, progress)
        self._stop_again(job, id, why, notes)
        start = f"mwatch resume {job.name} -n {job.namespace}"
        notes += [_saved_text(plan, saved), f"start it again: {start}"]
        text = f"{job.name}: stopped ({plan.way})"
        if left:
            text = f"{job.name}: {plan.way}, but {left} of {len(plan.pods)} pods still run"
        result = overrides.result(
            "stop", job.name, text, notes, id=id, pods=len(plan.pods), pods_left=left,
            checkpoint_before=plan.checkpoint, checkpoint=saved, start=start,
        )  # fmt: skip
        return replace(result, exit_code=1 if left else 0)

    def _refused(self, plan: StopPlan, text: str) -> CommandResult:
        name = plan.job.name
        reason = plan.refusal.why.value if plan.refusal is not None else "cannot-stop"
        result = self._overrides.result(
            "stop", name, f"{name}: not stopped: {text}", [], refused=reason
        )
        return replace(result, exit_code=1)

    def _record(self, job: KubeJob, why: str) -> list[str]:
        """Write to the ledger, and withdraw a restart that a person asked for before."""
        note = LedgerNote(time.time(), self._overrides.who, "stop", why)

        def change(entry: JobEntry) -> JobEntry:
            if entry.is_under_way:
                raise InputError(f"{job.name} is being restarted: stop it when that is done; see "
                                 f"mwatch status -n {job.namespace}")  # fmt: skip
            return replace(entry, request=None, notes=(*entry.notes, note))

        try:
            self._overrides.change(job, change)
        except KubeError as error:
            return [f"not in the ledger: {error}"]
        return []

    def _stop(self, job: KubeJob, workload: KubeWorkload | None, id: str, why: str) -> None:
        overrides = self._overrides
        reason = f"{overrides.who}: {why}"
        if not stop_job(overrides.access, overrides.events, job, workload, id=id, reason=reason):
            raise InputError(f"{job.name} has changed meanwhile, or is gone: try again")

    def _follow(self, plan: StopPlan, progress: Callable[[str], None]) -> tuple[int | None, int]:
        """Wait for the pods to end. Return the newest checkpoint and how many pods are left."""
        times, uids = self._times, {pod.uid for pod in plan.pods}
        patience = plan.grace_seconds + times.margin_seconds
        saved, last, since = plan.checkpoint, len(uids), times.clock()
        while True:
            left = sum(
                pod.uid in uids for pod in _running(pods_of(self._overrides.access, plan.job))
            )
            newest = self._newest(plan.job) if left else None
            if newest is not None and newest > (-1 if saved is None else saved):
                saved = newest
                progress(f"{plan.job.name}: checkpoint {saved} is complete")
            if left != last:
                progress(f"{plan.job.name}: {left} of {len(uids)} pods left")
                last, since = left, times.clock()
            # A StatefulSet ends its pods one after another.
            if not left or times.clock() - since > patience:
                return saved, left
            times.wait(times.look_seconds)

    def _stop_again(self, job: KubeJob, id: str, why: str, notes: list[str]) -> None:
        """Stop the job again if a restart that began together with the stop has resumed it."""
        access = self._overrides.access
        for _ in range(_REPEATS):
            now = find_job(access, job.namespace, job.name, job.kind)
            workload = None if now is None else workload_of_job(access, now)
            is_off = workload is not None and not workload.is_active
            if now is None or now.uid != job.uid or now.is_suspended or now.finished or is_off:
                return
            notes.append("a restart at the same moment had started it: stopped again")
            self._stop(now, workload, id, why)
        raise InputError(f"{job.name} is started again and again by something else: see its Events")


def _saved_text(plan: StopPlan, saved: int | None) -> str:
    if saved is None:
        return "no checkpoint was seen; list them: mwatch checkpoints DIR"
    if saved == plan.checkpoint:
        return f"no checkpoint after {saved} was seen"
    return f"checkpoint {saved} was saved"


def _running(pods: tuple[KubePod, ...]) -> tuple[KubePod, ...]:
    """The pods without those that have ended, which a job may keep."""
    return tuple(pod for pod in pods if not pod.is_over)


def _saves(body: Mapping[str, Any]) -> bool:
    workload = workload_of(body)
    return workload is not None and any(_SAVES in each.arguments for each in workload.replicas)


def _has_torchrun(job: KubeJob) -> bool:
    commands = json.dumps([
        [each.get("command"), each.get("args")]
        for group in job.groups
        for each in items(group.template, "spec", "containers")
    ])  # fmt: skip
    return any(word in commands for word in _TORCHRUN)


def _grace(job: KubeJob) -> int:
    given = (
        number(group.template, "spec", "terminationGracePeriodSeconds") for group in job.groups
    )
    return max((_USUAL_GRACE if each is None else each for each in given), default=_USUAL_GRACE)
