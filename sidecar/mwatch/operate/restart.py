# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch restart JOB`: a person restarts a gang, by the controller where one leads, else here.

A controller that leads is given the wish in the ledger: it alone saves evidence, restarts in place
and tells the pods which checkpoint to take. Without one the command takes the Lease itself, so
that nobody else acts meanwhile, and replaces the pods in the way that the job survives. Whether a
leader lives is seen by its Lease changing: that takes seconds, or half a minute where it is dead.
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
"""So long it is waited for the controller to take it up."""
_GONE_SECONDS = 900.0
_LOOK_SECONDS = 1.0


class RestartTimes(NamedTuple):
    lease: LeaseTimes = LeaseTimes()
    taken_seconds: float = TAKEN_SECONDS
    look_seconds: float = _LOOK_SECONDS
    wait: Callable[[float], object] = time.sleep


class ManualRestart:
    def __init__(self, people: JobOverrides, times: RestartTimes | None = None) -> None:
        self._people = people
        self._times = times or RestartTimes()

    def run(
        self, name: str, why: str, *, resume_from: int | None, is_dry_run: bool
    ) -> CommandResult:
        people = self._people
        job = people.find(name)
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
        id = bundle_id(people.wall(), max(1, number), WORD)
        request = RestartRequest(id, people.wall(), people.who, clean(why), resume_from)
        lease = Lease(people.access, people.namespace, f"restart-{os.getpid()}-{people.who}",
                      times=self._times.lease)  # fmt: skip
        # What nobody watches no controller acts on.
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
        access = self._people.access
        nodes, limits = None, None
        with suppress(NoPermission):
            limits = quotas(access, job.namespace)
        with suppress(NoPermission):
            nodes = tuple(map(node_of, access.list(NODES, None).objects))
        work = workload_for(access, job)
        facts = GangFacts(
            pods_of(access, job), 0.0, nodes=nodes, quotas=limits, workload=work, is_asked=True,
            now=self._people.wall(),
        )  # fmt: skip
        return facts, nodes

    def _leader(self, lease: Lease) -> str:
        """Who leads; empty: the Lease is ours now. KubeError where it cannot be told."""
        until = time.monotonic() + 2 * self._times.lease.length_seconds + 5
        lease.turn()
        first = lease.seen
        while not lease.may_act():
            if lease.problem:
                raise Unavailable(f"cannot read which controller leads: {lease.problem}")
            if lease.seen != first:
                return lease.holder or "somebody"
            if time.monotonic() > until:
                raise Unavailable(f"the Lease of {lease.holder} does not change, nor end")
            self._times.wait(self._times.look_seconds)
            lease.turn()
        return ""

    def _hand_over(self, job: KubeJob, request: RestartRequest, leader: str) -> CommandResult:
        people = self._people

        def change(entry: JobEntry) -> JobEntry:
            if entry.request is not None:
                raise InputError(f"{entry.request.who} has asked for a restart already")
            if entry.is_under_way:
                raise InputError(f"{job.name} is being restarted: see mwatch status")
            return replace(entry, request=request)

        people.change(job, change)
        left_out = people.note(job, "MwatchAsked", "restart", request.why)
        until = time.monotonic() + self._times.taken_seconds
        entry = JobEntry(request=request)
        while entry.request == request and time.monotonic() < until:
            self._times.wait(self._times.look_seconds)
            entry = people.ledger.read().of(ledger_key(job.kind, job.name))
        words = f"{job.name}: handed to the controller ({leader}), which has not begun yet"
        if entry.request != request:
            way = entry.step.way.value if entry.step is not None else "taken"
            words = f"{job.name}: the controller ({leader}) restarts it ({way})"
        return people.result("restart", job.name, words, left_out, id=request.id, by="controller",
                           taken=entry.request != request)  # fmt: skip

    def _act(self, job: KubeJob, request: RestartRequest, wanted: GangPlan, lease: Lease,
             nodes: tuple[KubeNode, ...] | None) -> CommandResult:  # fmt: skip
        people = self._people
        may_act = lease.may_act if job.is_watched else lambda: True
        gang = GangRestart(people.access, people.ledger, may_act=may_act)
        note = LedgerNote(people.wall(), people.who, "restart", request.why)

        def also(entry: JobEntry) -> JobEntry:
            # The pods start by their own rule: nobody is there to tell them another.
            return replace(entry, notes=(*entry.notes, note), start=None, request=None)

        attempt = int(job.annotations.get(ATTEMPT, "0") or 0)
        try:
            step = gang.begin(wanted, id=request.id, attempt=attempt, at=people.wall(), also=also)
        except AlreadyUnderWay as error:
            step = error.step  # begun by a controller that is gone: it is gone on with
        people.events.emit(
            job, "MwatchRestarting", f"{people.who}: restart: {request.why} ({request.id})"
        )
        with LeaseLoop(lease) if job.is_watched else nullcontext():
            until = time.monotonic() + _GONE_SECONDS
            while True:
                found = gang.advance(step, seconds=5.0, now=people.wall(), nodes=nodes)
                if found.progress is not GangProgress.WAITING or time.monotonic() > until:
                    break
                step = people.ledger.read().of(ledger_key(job.kind, job.name)).step or step
        if found.progress is not GangProgress.DONE:
            raise Unavailable(f"not finished ({found.text or found.progress.value}); a controller "
                              "goes on with it, or this command again")  # fmt: skip
        notes = [*wanted.notes, "no evidence was saved: that is the controller's work",
                 "its pods ask for a controller for a minute before they start"]  # fmt: skip
        words = f"{job.name}: restarted ({step.way.value}): {found.text}"
        return people.result(
            "restart", job.name, words, notes, id=step.id, by="command", taken=True
        )

    def _would(self, job: KubeJob, wanted: GangPlan, resume_from: int | None) -> CommandResult:
        place = "the newest good checkpoint" if resume_from is None else f"checkpoint {resume_from}"
        words = f"{job.name}: would be restarted from {place}: {wanted.way.value}"
        more = [f"{each.name} on {each.node or 'no node'}" for each in wanted.targets[:16]]
        if len(wanted.targets) > 16:
            more.append(f"and {len(wanted.targets) - 16} more pods")
        more += wanted.notes
        more.append("with a controller that leads, in place where all its pods allow that")
        pods: list[dict[str, Any]] = [each._asdict() for each in wanted.targets]
        return self._people.result("restart", job.name, words, more, dry_run=True,
                                 way=wanted.way.value, pods=pods)  # fmt: skip

    def _refused(self, job: KubeJob, refusal: GangRefusal) -> CommandResult:
        words = f"{job.name}: not restarted: {refusal.text}"
        reported = self._people.result("restart", job.name, words, [], refused=refusal.why.value)
        return replace(reported, exit_code=1)
