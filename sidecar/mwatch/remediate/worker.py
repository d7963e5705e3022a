# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The slow parts of a restart, in worker threads: fresh facts, evidence, then the action.

The ledger holds the plan and the order for the wrappers before the first pod changes, so another
controller can continue from any point without repeating a step. Every change requires the Lease.

A restart in place replaces no pod: every wrapper ends its trainer and requests its next attempt.
Once all wrappers wait, no process of the old attempt is left. If a pod refuses, or does not request
its attempt in time, the pods are replaced instead. This is safe to repeat, because a wrapper ends
only the named attempt, and only once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from mwatch.config.fleet import FleetSettings
from mwatch.gang.plan import GangFacts, may_stop, plan
from mwatch.gang.restart import GangProgress, GangRestart
from mwatch.gang.suspend import stop_job
from mwatch.kube.access import ACTING, Access
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of, quotas, workload_for
from mwatch.kube.ledger import Ledger, same_job
from mwatch.kube.resources import OF_KIND
from mwatch.model.decision import Action
from mwatch.model.incident import SavedEvidence
from mwatch.model.kube.facts import KubeQuota
from mwatch.model.kube.gang import GangPlan, GangRefusal, GangStep, Method, Reason
from mwatch.model.kube.job import ATTEMPT, RESUME_FROM
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod
from mwatch.model.kube.restart_state import RULES
from mwatch.remediate.attempt_server import AttemptServer
from mwatch.remediate.case import (
    Deferred,
    DoneBefore,
    Halted,
    LedgerUpdate,
    Prepared,
    RestartTask,
    TaskResult,
)
from mwatch.remediate.evidence import EvidenceStore
from mwatch.remediate.node_avoidance import keep_out
from mwatch.remediate.pod_client import NoAnswer, PodAddress, Reply, ask_all
from mwatch.remediate.status import was_done
from mwatch.runtime.clock import earlier


def planned(
    access: Access,
    task: RestartTask,
    settings: FleetSettings,
    now: float,
    unused: Collection[str] = (),
    pods: tuple[KubePod, ...] = (),
) -> GangPlan | GangRefusal:
    """Plan the action from facts read now; KubeError if they cannot be read. `unused`: pods that
    have run nothing. `pods`: those of the job, if they are already known."""
    job = find_job(access, task.job.namespace, task.job.name, task.job.kind)
    if job is None or job.uid != task.job.uid:
        return GangRefusal(Reason.DELETING, "the job is gone, or is another one by now")
    pods = pods or pods_of(access, job, task.seen)
    is_kept_out = bool(task.avoid) and settings.keep_node_out != "off"
    limits: tuple[KubeQuota, ...] | None = None
    with suppress(NoPermission):
        limits = quotas(access, job.namespace)
    facts = GangFacts(
        pods,
        0.0,
        nodes=task.nodes,
        quotas=limits,
        workload=workload_for(access, job),
        can_in_place=task.can_in_place
        and {each.uid for each in task.pods} >= {pod.uid for pod in pods},
        avoid=frozenset({task.avoid}) if is_kept_out else frozenset(),
        is_asked=task.is_asked,
        blamed=task.blamed,
        now=now,
        unused=frozenset(unused),
    )
    if task.action is not Action.STOP:
        return plan(job, facts)
    refusal = may_stop(job, facts)
    return refusal or GangPlan(Method.STOP, job.kind, job.namespace, job.name, job.uid, ())


GRACE_SECONDS = 10.0
COME_SECONDS = 45.0
"""Limit until the last wrapper requests its attempt: grace period, kill, and polling interval."""
_ASK_SECONDS = 8.0
_LOOK_SECONDS = 0.25
_FIRST_ASKED = 16


def end_all_trainers(
    pods: Sequence[PodAddress],
    token: str,
    *,
    attempt: int,
    reason: str,
    waiting: Callable[[], Collection[str]],
    may_act: Callable[[], bool],
    clock: Callable[[], float],
    wait: Callable[[float], object],
    seconds: float = COME_SECONDS,
) -> str:
    """Restart in place. Return why it failed; empty: all wrappers wait. `attempt`: the one that
    ends. `waiting`: pods whose wrapper waits for its next attempt."""
    until, there = clock() + seconds, set(waiting())
    body = {
        "attempt": attempt, "who": WHO, "reason": reason[:400], "evidence": False,
        "grace_seconds": GRACE_SECONDS,
    }  # fmt: skip

    def refusal(reply: Reply | NoAnswer) -> str:
        if isinstance(reply, NoAnswer):
            return str(reply)
        running = reply.body.get("attempt")
        is_past = isinstance(running, int) and running > attempt
        is_over = reply.body.get("outcome") == "not-running"
        return "" if reply.status == 202 or is_past or is_over else reply.error

    left = [each for each in pods if each.pod not in there]
    # If a restart in place is impossible, the first few pods refuse it: do not ask the others.
    for some in (left[:_FIRST_ASKED], left[_FIRST_ASKED:]):
        replies = ask_all(
            some, "/v1/restart", token, body=body, may_go_on=may_act,
            each_seconds=_ASK_SECONDS, seconds=_ASK_SECONDS + 2.0,
        )  # fmt: skip
        for pod, reply in replies.items():
            if problem := refusal(reply):
                return f"{pod}: {problem}"
    while away := sorted({each.pod for each in pods} - set(waiting())):
        if clock() >= until or not may_act():
            return f"{', '.join(away[:3])}: did not restart in place in time"
        wait(_LOOK_SECONDS)
    return ""


RESTARTING = "MwatchRestarting"
RESTARTED = "MwatchRestarted"
WHO = "mwatch"
_SLICE_SECONDS = 5.0
_OLD_STOP_SECONDS = 600.0
_OVER = frozenset({Reason.DELETING, Reason.FINISHED, Reason.SUSPENDED})


class RestartWorker:
    def __init__(
        self,
        access: Access,
        ledger: Ledger,
        events: Events,
        settings: FleetSettings,
        server: AttemptServer,
        *,
        may_act: Callable[[], bool],
        clock: Callable[[], float],
        evidence: EvidenceStore,
    ) -> None:
        self._access = access
        self._ledger = ledger
        self._events = events
        self._settings = settings
        self._server = server
        self._may_act = may_act
        self._clock = clock
        self._evidence = evidence
        self._gang = GangRestart(access, ledger, may_act=self._may, clock=clock, wait=self._wait)
        self.nodes: tuple[KubeNode, ...] | None = None
        self.closing = threading.Event()

    def prepare(self, task: RestartTask) -> Prepared | GangRefusal:
        """Collect evidence and plan; changes nothing. KubeError if the cluster cannot be read.

        Collection begins with the controller's own view of the pods: listing thousands of them
        takes seconds.
        """
        kept = SavedEvidence("", (), ("no evidence: the job has no token",))
        if task.token:
            if isinstance(self._plan(task, task.seen), GangRefusal):
                wanted = self._plan(task)  # from a fresh list of the pods
                if isinstance(wanted, GangRefusal):
                    return wanted
            kept = self._evidence.save(task)
        wanted = self._plan(task)  # pods may have come and gone meanwhile
        return wanted if isinstance(wanted, GangRefusal) else Prepared(wanted, kept)

    def carry_out(self, task: RestartTask, ready: Prepared, update: LedgerUpdate) -> TaskResult:
        """Write the update to the ledger, then act. After a KubeError, call this again with the
        same update; that is safe."""
        book = self._ledger.read()
        if book.halt is not None and book.halt.holds(earlier(self._clock())) and not task.is_asked:
            raise Halted(book.halt.why)
        if not self._may():
            return TaskResult(False, "not the leader")
        self._check(same_job(book.of(task.key), task.job.uid), task)
        notes = keep_out(self._access, task, self._settings, self._clock())
        record = replace(update.record, evidence=ready.evidence)

        def also(entry: JobEntry) -> JobEntry:
            self._check(replace(entry, step=None), task)
            return _written(entry, update._replace(record=record), task, self._clock())

        step = self._gang.begin(
            ready.plan, id=task.id, attempt=task.attempt, at=earlier(self._clock()), also=also
        )
        how = f"{ready.plan.way.value}, {len(ready.plan.targets)} pods"
        self._events.emit(
            task.job, RESTARTING,
            f"attempt {task.attempt}: {task.action.value} ({how}): {task.reason} ({task.id})"
            + "".join(f"; {each}" for each in (*ready.plan.notes, *notes)), is_warning=True,
        )  # fmt: skip
        return self.go_on(task, step)

    def later(self, seconds: float, work: Callable[[], TaskResult]) -> TaskResult:
        self._wait(seconds)
        return work()

    def go_on(self, task: RestartTask, step: GangStep, tried: str = "") -> TaskResult:
        """Continue from the ledger's state, also for a step that another controller began. Raises
        Deferred if the step cannot be finished now: call this again later with its `tried`."""
        known = self._ledger.read().of(task.key).step
        if known is not None and known.id != step.id:
            return TaskResult(True, f"{known.id} has taken its place")
        step = known or step
        if step.way is Method.STOP:
            return self._stop(task, step)
        listed: tuple[KubePod, ...] = ()
        if step.way is Method.IN_PLACE and RULES[step.state].may_delete:
            step, listed = self._in_place(task, step, tried)
            if step.way is Method.IN_PLACE and RULES[step.state].may_delete:
                return TaskResult(False, "not the leader")
        outcome, seen = step.outcome, task.seen
        while RULES[step.state].may_delete:
            if self.closing.is_set() or not self._may():
                return TaskResult(False, "not the leader, or ending")
            entry = self._ledger.read().of(task.key)
            if entry.step is not None and entry.step.id == step.id:
                step = entry.step
            found = self._gang.advance(
                step, seconds=_SLICE_SECONDS, now=earlier(self._clock()), nodes=self.nodes,
                known=seen, listed=listed,
            )  # fmt: skip
            seen = listed = ()
            if found.progress is GangProgress.DONE:
                outcome = found.text
                break
        return self._let_go(task, outcome)

    def _in_place(
        self, task: RestartTask, step: GangStep, tried: str
    ) -> tuple[GangStep, tuple[KubePod, ...]]:
        """Restart in place. Return the updated step, and the pods if they must be replaced."""
        why = self._away(task, step, tried)
        if not self._may():
            return step, ()
        if not why:
            return self._gang.done(step, f"all {len(task.pods)} pods restarted in place"), ()
        pods = pods_of(self._access, task.job, task.seen)
        wanted = self._plan(replace(task, can_in_place=False), pods)
        if isinstance(wanted, GangRefusal):
            if wanted.why in _OVER:
                return self._gang.done(step, wanted.text), ()
            # Some trainers have ended already, so the restart must be finished later.
            raise Deferred(why, wanted)
        self._events.emit(task.job, RESTARTING, f"not in place: {why}; {wanted.way.value} instead")
        return self._gang.instead(step, wanted), pods

    def _away(self, task: RestartTask, step: GangStep, tried: str) -> str:
        lost = len(set(step.uids) - {each.uid for each in task.pods})
        if lost:
            return f"{lost} of its pods are unreachable"
        if tried:
            waiting = self._server.waiting(task.key, step.attempt)
            return "" if waiting >= {each.pod for each in task.pods} else tried
        return end_all_trainers(
            task.pods, task.token, attempt=step.attempt, reason=task.reason,
            waiting=lambda: self._server.waiting(task.key, step.attempt), may_act=self._may,
            clock=self._clock, wait=self._wait,
        )  # fmt: skip

    def _check(self, entry: JobEntry, task: RestartTask) -> None:
        """Raise DoneBefore if the attempt was already acted on; a person may restart it twice."""
        if not task.is_asked and was_done(entry, task.attempt, task.id):
            raise DoneBefore

    def _stop(self, task: RestartTask, step: GangStep) -> TaskResult:
        if not RULES[step.state].may_delete:
            return TaskResult(True, step.outcome)
        if earlier(self._clock()) - step.began_at > _OLD_STOP_SECONDS:
            self._gang.done(step, "too old: a person may have started it meanwhile")
            return TaskResult(True, "not stopped: too long ago")
        job = find_job(self._access, task.job.namespace, task.job.name, task.job.kind)
        if job is None or job.uid != step.job_uid:
            return TaskResult(True, self._gang.done(step, "the job is gone").outcome)
        if not self._may():
            return TaskResult(False, "not the leader")
        work = workload_for(self._access, job)
        stop_job(self._access, self._events, job, work, id=step.id, reason=task.reason)
        return TaskResult(True, self._gang.done(step, "suspended").outcome)

    def _let_go(self, task: RestartTask, outcome: str) -> TaskResult:
        """Let the wrappers start, but only after the rendezvous has forgotten the old gang."""
        count = max(task.job.pods_wanted, len(task.pods))
        wait = self._settings.rendezvous_wait_seconds if count > 1 else 0.0
        moment = self._clock() + wait

        def change(entry: JobEntry) -> JobEntry:
            is_ours = entry.step is not None and entry.step.id == task.id
            return entry.released(moment) if is_ours else entry

        entry = self._ledger.change_entry(task.key, task.job.uid, change)
        if entry.start is None:
            return TaskResult(True, outcome)
        self._annotate(task, entry.start)
        self._events.emit(
            task.job, RESTARTED,
            f"attempt {entry.start.attempt} may start ({outcome}): {entry.start.reason}",
        )  # fmt: skip
        return TaskResult(True, outcome)

    def _annotate(self, task: RestartTask, start: NextStart) -> None:
        """Show the order on the job, for people only: wrappers ask the attempt server. Failures are
        ignored."""
        chosen = None if start.resume_from is None else str(start.resume_from)
        annotations = {ATTEMPT: str(start.attempt), RESUME_FROM: chosen}
        body = {"metadata": {"uid": task.job.uid, "annotations": annotations}}
        if self._may():
            job, resource = task.job, OF_KIND[task.job.kind]
            with suppress(KubeError):
                self._access.patch(resource, job.namespace, job.name, body, limits=ACTING)

    def _plan(self, task: RestartTask, pods: tuple[KubePod, ...] = ()) -> GangPlan | GangRefusal:
        unused = () if task.is_asked else self._server.unused(task.key, task.attempt)
        return planned(self._access, task, self._settings, earlier(self._clock()), unused, pods)

    def _may(self) -> bool:
        return self._may_act() and not self.closing.is_set()

    def _wait(self, seconds: float) -> None:
        self.closing.wait(seconds)


def _written(entry: JobEntry, update: LedgerUpdate, task: RestartTask, now: float) -> JobEntry:
    entry = same_job(entry, task.job.uid)
    acts = tuple(each for each in entry.acts if each.attempt != update.act.attempt)
    incidents = tuple(each for each in entry.incidents if each.id != update.record.id)
    start = update.start
    note = LedgerNote(now, WHO, task.action.value, task.reason[:300])
    return replace(
        entry,
        acts=(*acts, update.act),
        incidents=(*incidents, update.record),
        notes=(*entry.notes, note),
        attempt=entry.attempt if start is None else max(entry.attempt, start.attempt),
        start=start,
        request=None if task.is_asked else entry.request,
    )
