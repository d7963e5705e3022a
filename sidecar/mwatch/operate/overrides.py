# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A person's overrides: pause, resume, mode and restart. Each works with and without a controller.

An override is an annotation on the job, or an entry in the ledger for all jobs; the controller
reads both before it acts. Person and reason are written to the ledger and to an Event; a failure to
write them is listed in the result.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import AlreadyUnderWay, GangProgress, GangRestart, ledger_key
from mwatch.gang.suspend import SUSPENDED_BY, start_job
from mwatch.kube.access import Access, whoami
from mwatch.kube.errors import KubeError, NoPermission, Unavailable
from mwatch.kube.events import Events
from mwatch.kube.jobs import (
    find_job,
    no_such_job,
    parse_job_name,
    pods_of,
    quotas,
    watched_jobs,
    workload_for,
)
from mwatch.kube.lease import Lease, LeaseLoop, LeaseTimes
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import NODES, OF_KIND
from mwatch.model.incident import bundle_id
from mwatch.model.kube.gang import GangPlan, GangRefusal, Method
from mwatch.model.kube.job import (
    ATTEMPT,
    MODE,
    PAUSE,
    KubeJob,
    Pause,
    pause_of,
    pause_text,
    wrappers_observe,
)
from mwatch.model.kube.ledger import Halt, JobEntry, LedgerNote
from mwatch.model.kube.next_start import RestartRequest
from mwatch.model.kube.node import KubeNode, node_of
from mwatch_trainer.scrub.scrubber import scrub_text

MAX_REASON = 300
_MAX_LISTED = 100
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, slots=True)
class CommandResult:
    lines: tuple[str, ...]
    """The first line is the outcome."""
    body: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


def seconds_of(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d`, `1w`; InputError for anything else."""
    amount, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        value = float(amount) * _UNITS[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value <= 366 * 86400:
        raise InputError(f"--for {text}: give a time such as 30m, 2h or 1d")
    return value


class JobOverrides:
    def __init__(self, access: Access, namespace: str | None) -> None:
        self.access = access
        self.namespace = namespace or access.namespace
        self.who = whoami(access)
        self.events = Events(access, self.who)
        self.ledger = Ledger(access, self.namespace)

    def find(self, name: str) -> KubeJob:
        kind, short = parse_job_name(name)
        job = find_job(self.access, self.namespace, short, kind)
        if job is None:
            raise no_such_job(self.access, self.namespace, short)
        return job

    def pause(self, name: str, seconds: float | None, why: str) -> CommandResult:
        job, now = self.find(name), time.time()
        until = None if seconds is None else now + seconds
        self._annotate(job, {PAUSE: pause_text(Pause(until, self.who, clean(why)))})
        text = f"{job.name}: mwatch does nothing to it {_until(seconds)}"
        notes = self.note(job, "MwatchPaused", "pause", clean(why))
        return self.result("pause", job.name, text, notes, until=until)

    def pause_all(self, seconds: float | None, why: str) -> CommandResult:
        now = time.time()
        halt = Halt(now, None if seconds is None else now + seconds, self.who, clean(why))
        self.ledger.change(lambda book: replace(book, halt=halt))
        notes = self._announce_all("MwatchPaused", f"{self.who} paused all jobs: {halt.why}")
        text = f"namespace {self.namespace}: mwatch does nothing to any job {_until(seconds)}"
        return self.result("pause", None, text, notes, until=halt.until)

    def resume(self, name: str, why: str) -> CommandResult:
        """End a pause, and start a job that mwatch has stopped."""
        job, done = self.find(name), []
        if PAUSE in job.annotations:
            self._annotate(job, {PAUSE: None})
            done.append("no longer paused")
        work = workload_for(self.access, job)
        is_inactive = work is not None and not work.is_active
        if is_inactive or (SUSPENDED_BY in job.annotations and job.is_suspended):
            with suppress(KubeError):  # starting a job needs no right to the ledger
                self.change(job, _started)
            start_job(self.access, self.events, job, work, who=self.who, why=clean(why))
            done.append("started again")
        notes = self.note(job, "MwatchResumed", "resume", clean(why)) if done else []
        halt = self._halt()
        if halt is not None:
            notes.append(f"all jobs are paused by {halt.who}: mwatch resume --all")
        text = " and ".join(done) or "was neither paused nor stopped by mwatch"
        return self.result("resume", job.name, f"{job.name}: {text}", notes)

    def resume_all(self, why: str) -> CommandResult:
        if self._halt() is None:
            return self.result("resume", None, f"namespace {self.namespace}: not paused", [])
        self.ledger.change(lambda book: replace(book, halt=None))
        notes = self._announce_all("MwatchResumed", f"{self.who} ended the pause of all: {why}")
        paused = [job.name for job in watched_jobs(self.access, self.namespace).jobs
                  if pause_of(job, time.time()) is not None]  # fmt: skip
        if paused:
            notes.append(f"still paused by themselves: {', '.join(paused[:8])}")
        return self.result("resume", None, f"namespace {self.namespace}: no longer paused", notes)

    def mode(self, name: str, mode: str, why: str) -> CommandResult:
        job = self.find(name)
        self._annotate(job, {MODE: mode})
        notes = self.note(job, "MwatchMode", f"mode {mode}", clean(why))
        if mode == "act" and wrappers_observe(job):
            notes.append("its pods were created to observe (MWATCH_MODE in their template): mwatch "
                         "will not restart them; recreate the job with "
                         "mwatch inject --mode act")  # fmt: skip
        if not job.is_watched:
            notes.append('mwatch does not watch it: it has no label mwatch.dev/watch: "true"')
        return self.result("mode", job.name, f"{job.name}: {mode}", notes, mode=mode)

    def note(self, job: KubeJob, reason: str, what: str, why: str) -> list[str]:
        """Write to the ledger and as an Event; return what could not be written."""
        left_out = []
        note = LedgerNote(time.time(), self.who, what, why)
        try:
            self.change(job, lambda entry: replace(entry, notes=(*entry.notes, note)))
        except KubeError as error:
            left_out.append(f"not in the ledger: {error}")
        if not self.events.emit(job, reason, f"{self.who}: {what}: {why}"):
            left_out.append("no Event could be written")
        return left_out

    def change(self, job: KubeJob, change: Callable[[JobEntry], JobEntry]) -> JobEntry:
        return self.ledger.change_entry(ledger_key(job.kind, job.name), job.uid, change)

    def result(
        self, command: str, job: str | None, text: str, notes: list[str], **facts: Any
    ) -> CommandResult:
        body = {
            "version": 1, "command": command, "namespace": self.namespace, "job": job,
            "who": self.who, "text": text, "notes": notes, **facts,
        }  # fmt: skip
        return CommandResult((text, *(f"  {each}" for each in notes)), body)

    def _halt(self) -> Halt | None:
        halt = self.ledger.read().halt
        return halt if halt is not None and halt.holds(time.time()) else None

    def _announce_all(self, reason: str, text: str) -> list[str]:
        jobs = watched_jobs(self.access, self.namespace).jobs[:_MAX_LISTED]
        written = [self.events.emit(job, reason, text) for job in jobs]
        return [] if all(written) else ["some jobs got no Event"]

    def _annotate(self, job: KubeJob, annotations: dict[str, str | None]) -> None:
        body = {"metadata": {"uid": job.uid, "annotations": annotations}}
        answer = self.access.patch(OF_KIND[job.kind], job.namespace, job.name, body)
        if not answer.is_ok:
            raise InputError(f"{job.name} has changed meanwhile: try again ({answer.text})")


def clean(why: str) -> str:
    return scrub_text(" ".join(why.split()))[:MAX_REASON] or "no reason was given"


def _started(entry: JobEntry) -> JobEntry:
    """A stop that a controller did not record as done before it died must not be repeated."""
    step = entry.step
    if step is None or step.way is not Method.STOP or not entry.is_under_way:
        return entry
    return entry.cleared("a person started it")


def _until(seconds: float | None) -> str:
    if seconds is None:
        return "until 'mwatch resume'"
    return f"for {seconds / 3600:g} h" if seconds >= 3600 else f"for {seconds / 60:g} min"


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
    """`mwatch restart JOB`: through the leading controller if there is one.

    The controller gets the request through the ledger: only a controller saves evidence, restarts
    in place and gives the pods their checkpoint. Without a controller the command takes the Lease
    itself, so that no controller acts meanwhile, and replaces the pods. A leader is alive if its
    Lease changes: this takes seconds to observe, or half a minute if the leader is dead.
    """

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
        facts = self._facts(job)
        wanted = plan(job, facts)
        if isinstance(wanted, GangRefusal):
            text = f"{job.name}: not restarted: {wanted.text}"
            result = overrides.result("restart", job.name, text, [], refused=wanted.why.value)
            return replace(result, exit_code=1)
        if is_dry_run:
            return self._would(job, wanted, resume_from)
        number = int(job.annotations.get(ATTEMPT, "0") or 0)
        id = bundle_id(time.time(), max(1, number), WORD)
        request = RestartRequest(id, time.time(), overrides.who, clean(why), resume_from)
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
            return self._act(job, request, wanted, lease, facts.nodes)
        finally:
            lease.give_back()

    def _facts(self, job: KubeJob) -> GangFacts:
        access = self._overrides.access
        nodes, limits = None, None
        with suppress(NoPermission):
            limits = quotas(access, job.namespace)
        with suppress(NoPermission):
            nodes = tuple(map(node_of, access.list(NODES, None).objects))
        work = workload_for(access, job)
        return GangFacts(
            pods_of(access, job), 0.0, nodes=nodes, quotas=limits, workload=work, is_asked=True,
            now=time.time(),
        )  # fmt: skip

    def _leader(self, lease: Lease) -> str:
        """The leader; empty: this command holds the Lease now. KubeError if neither is certain."""
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
        note = LedgerNote(time.time(), overrides.who, "restart", request.why)

        def also(entry: JobEntry) -> JobEntry:
            # Without a controller the pods start by their own rule.
            return replace(entry, notes=(*entry.notes, note), start=None, request=None)

        attempt = int(job.annotations.get(ATTEMPT, "0") or 0)
        try:
            step = gang.begin(wanted, id=request.id, attempt=attempt, at=time.time(), also=also)
        except AlreadyUnderWay as error:
            step = error.step  # of a controller that is gone: continue it
        overrides.events.emit(
            job, "MwatchRestarting", f"{overrides.who}: restart: {request.why} ({request.id})"
        )
        with LeaseLoop(lease) if job.is_watched else nullcontext():
            until = time.monotonic() + _GONE_SECONDS
            while True:
                found = gang.advance(step, seconds=5.0, now=time.time(), nodes=nodes)
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
