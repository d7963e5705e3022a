# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch restart JOB`: a person restarts a gang, through the leading controller if there is one.

A leading controller gets the request through the ledger: only it saves evidence, restarts in place
and gives the pods their checkpoint. Without one the command takes the Lease itself, so that no
controller acts meanwhile, and replaces the pods. A leader is alive if its Lease changes: that takes
seconds to see, or half a minute if it is dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import AlreadyUnderWay, GangProgress, GangRestart, ledger_key
from mwatch.kube.errors import NoPermission, Unavailable
from mwatch.kube.jobs import pods_of, quotas, workload_for
from mwatch.kube.lease import Lease, LeaseLoop, LeaseTimes
from mwatch.kube.resources import NODES
from mwatch.model.incident import bundle_id
from mwatch.model.kube.gang import GangPlan, GangRefusal
from mwatch.model.kube.job import ATTEMPT, KubeJob
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.model.kube.next_start import RestartRequest
from mwatch.model.kube.node import KubeNode, node_of
from mwatch.operate.overrides import CommandResult, JobOverrides, clean

WORD = "asked"
TAKEN_SECONDS = 20.0
"""How long to wait until the controller starts the restart."""
_GONE_SECONDS = 900.0
_LOOK_SECONDS = 1.0


class RestartTimes(NamedTuple):
    lease: LeaseTimes = LeaseTimes()
    taken_seconds: float = TAKEN_SECONDS
    look_seconds: float = _LOOK_SECONDS
    wait: Callable[[float], object] = time.sleep


class ManualRestart:
    def __init__(self, overrides: JobOverrides, times: RestartTimes | None = None) -> None:
        self._overrides = overrides
        self._times = times or RestartTimes()

    def run(
        self, name: str, why: str, *, resume_from: int | None, is_dry_run: bool
    ) -> CommandResult:
        overrides = self._overrides
        job = overrides.find(name)
        if resume_from is not None and job.mode != "act":
            raise InputError(
                f"{job.name} is only observed: its pods choose their checkpoint themselves; "
                "'mwatch mode JOB act' first, or leave --from out"
            )
        facts, nodes = self._facts(job)
        wanted = plan(job, facts)
        if isinstance(wanted, GangRefusal):
            return self._refused(job, wanted)
        if is_dry_run:
            return self._would(job, wanted, resume_from)
        number = int(job.annotations.get(ATTEMPT, "0") or 0)
        id = bundle_id(overrides.wall(), max(1, number), WORD)
        request = RestartRequest(id, overrides.wall(), overrides.who, clean(why), resume_from)
        name = f"restart-{os.getpid()}-{overrides.who}"
        lease = Lease(overrides.access, overrides.namespace, name, times=self._times.lease)
        # A controller does not act on a job without the watch label.
        leader = self._leader(lease) if job.is_watched else ""
        if leader:
            return self._hand_over(job, request, leader)
        try:
            if resume_from is not None:
                raise InputError("--from needs a controller, which gives the pods the checkpoint; "
                                 "start it, or leave --from out")  # fmt: skip
            return self._act(job, request, wanted, lease, nodes)
        finally:
            lease.give_back()

    def _facts(self, job: KubeJob) -> tuple[GangFacts, tuple[KubeNode, ...] | None]:
        access = self._overrides.access
        nodes, limits = None, None
        with suppress(NoPermission):
            limits = quotas(access, job.namespace)
        with suppress(NoPermission):
            nodes = tuple(map(node_of, access.list(NODES, None).objects))
        work = workload_for(access, job)
        facts = GangFacts(
            pods_of(access, job), 0.0, nodes=nodes, quotas=limits, workload=work, is_asked=True,
            now=self._overrides.wall(),
        )  # fmt: skip
        return facts, nodes

    def _leader(self, lease: Lease) -> str:
        """The leader; empty: the Lease is ours now. KubeError if that is unclear."""
        until = time.monotonic() + 2 * self._times.lease.length_seconds + 5
        lease.turn()
        first = lease.seen
        while not lease.may_act():
            if lease.problem:
                raise Unavailable(f"cannot read which controller leads: {lease.problem}")
            if lease.seen != first:
                return lease.holder or "somebody"
            if time.monotonic() > until:
                raise Unavailable(f"the Lease of {lease.holder} neither changes nor ends")
            self._times.wait(self._times.look_seconds)
            lease.turn()
        return ""

    def _hand_over(self, job: KubeJob, request: RestartRequest, leader: str) -> CommandResult:
        overrides = self._overrides

        def change(entry: JobEntry) -> JobEntry:
            if entry.request is not None:
                raise InputError(f"{entry.request.who} has asked for a restart already")
            if entry.is_under_way:
                raise InputError(f"{job.name} is being restarted: see mwatch status")
            return replace(entry, request=request)

        overrides.change(job, change)
        left_out = overrides.note(job, "MwatchAsked", "restart", request.why)
        until = time.monotonic() + self._times.taken_seconds
        entry = JobEntry(request=request)
        while entry.request == request and time.monotonic() < until:
            self._times.wait(self._times.look_seconds)
            entry = overrides.ledger.read().of(ledger_key(job.kind, job.name))
        text = f"{job.name}: handed to the controller ({leader}), which has not begun yet"
        if entry.request != request:
            way = entry.step.way.value if entry.step is not None else "taken"
            text = f"{job.name}: the controller ({leader}) restarts it ({way})"
        return overrides.result("restart", job.name, text, left_out, id=request.id, by="controller",
                           taken=entry.request != request)  # fmt: skip

    def _act(self, job: KubeJob, request: RestartRequest, wanted: GangPlan, lease: Lease,
             nodes: tuple[KubeNode, ...] | None) -> CommandResult:  # fmt: skip
        overrides = self._overrides
        may_act = lease.may_act if job.is_watched else lambda: True
        gang = GangRestart(overrides.access, overrides.ledger, may_act=may_act)
        note = LedgerNote(overrides.wall(), overrides.who, "restart", request.why)

        def also(entry: JobEntry) -> JobEntry:
            # Without a controller the pods start by their own rule.
            return replace(entry, notes=(*entry.notes, note), start=None, request=None)

        attempt = int(job.annotations.get(ATTEMPT, "0") or 0)
        try:
            step = gang.begin(
                wanted, id=request.id, attempt=attempt, at=overrides.wall(), also=also
            )
        except AlreadyUnderWay as error:
            step = error.step  # of a controller that is gone: continue it
        overrides.events.emit(
            job, "MwatchRestarting", f"{overrides.who}: restart: {request.why} ({request.id})"
        )
        with LeaseLoop(lease) if job.is_watched else nullcontext():
            until = time.monotonic() + _GONE_SECONDS
            while True:
                found = gang.advance(step, seconds=5.0, now=overrides.wall(), nodes=nodes)
                if found.progress is not GangProgress.WAITING or time.monotonic() > until:
                    break
                step = overrides.ledger.read().of(ledger_key(job.kind, job.name)).step or step
        if found.progress is not GangProgress.DONE:
            raise Unavailable(f"not finished ({found.text or found.progress.value}); a controller "
                              "continues it, or this command when repeated")  # fmt: skip
        notes = [*wanted.notes, "no evidence was saved: only a controller does that",
                 "its pods look for a controller for a minute before they start"]  # fmt: skip
        text = f"{job.name}: restarted ({step.way.value}): {found.text}"
        return overrides.result("restart", job.name, text, notes, id=step.id, by="command",
                                taken=True)  # fmt: skip

    def _would(self, job: KubeJob, wanted: GangPlan, resume_from: int | None) -> CommandResult:
        place = "the newest good checkpoint" if resume_from is None else f"checkpoint {resume_from}"
        text = f"{job.name}: would be restarted from {place}: {wanted.way.value}"
        more = [f"{each.name} on {each.node or 'no node'}" for each in wanted.targets[:16]]
        if len(wanted.targets) > 16:
            more.append(f"and {len(wanted.targets) - 16} more pods")
        more += wanted.notes
        more.append("a leading controller restarts in place if all pods allow that")
        pods: list[dict[str, Any]] = [each._asdict() for each in wanted.targets]
        return self._overrides.result("restart", job.name, text, more, dry_run=True,
                                 way=wanted.way.value, pods=pods)  # fmt: skip

    def _refused(self, job: KubeJob, refusal: GangRefusal) -> CommandResult:
        text = f"{job.name}: not restarted: {refusal.text}"
        result = self._overrides.result("restart", job.name, text, [], refused=refusal.why.value)
        return replace(result, exit_code=1)
