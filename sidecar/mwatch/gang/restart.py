# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""End all pods of a job so that its controller creates a new gang, as one bounded step.

The record of the step is in the ledger before the first delete. Each delete names a UID of that
record, so neither a retry nor another controller can touch the new gang. `advance` continues from
the state of the cluster and deletes no pod twice. Pods on a node that has been lost for some time
are deleted without waiting for the node. That does not end processes that may still run there; the
attempt number on the checkpoint volume fences them off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from mwatch.gang.suspend import resume, suspend
from mwatch.kube.access import ACTING, Access, CallOutcome
from mwatch.kube.errors import Unavailable
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import PODS
from mwatch.model.kube.gang import GangPlan, GangStep, Method, step_of
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.ledger import JobEntry, LedgerData
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod
from mwatch.model.kube.restart_state import RULES, RestartEvent, RestartState, can


@dataclass(frozen=True, slots=True)
class GangLimits:
    deletes_at_once: int = 16
    lost_node_seconds: float = 300.0  # after this time a NotReady node counts as lost
    fail_one_seconds: float = 60.0
    """FAIL_ONE: after this time all old pods are deleted, since the JobSet will not remove them."""
    look_seconds: float = 1.0  # between two polls of the remaining pods; increases
    longest_look_seconds: float = 5.0


class GangProgress(StrEnum):
    DONE = "done"
    WAITING = "waiting"  # old pods still exist; call again
    NOT_LEADER = "not-leader"  # another controller continues


class Advance(NamedTuple):
    progress: GangProgress
    left: int  # old pods that still exist
    deleted: int  # by this call
    text: str = ""


class AlreadyUnderWay(Exception):
    """This job's gang is already being restarted: advance that step instead of beginning one."""

    def __init__(self, step: GangStep) -> None:
        super().__init__(f"{step.key} is being restarted: {step.id}")
        self.step = step


def ledger_key(kind: str, name: str) -> str:
    return f"{kind}.{name}"


class GangRestart:
    def __init__(
        self,
        access: Access,
        ledger: Ledger,
        *,
        may_act: Callable[[], bool],
        limits: GangLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`may_act` is called before each change of the cluster (the Lease)."""
        self._access = access
        self._ledger = ledger
        self._may_act = may_act
        self._limits = limits or GangLimits()
        self._clock = clock
        self._wait = wait

    def begin(
        self,
        plan: GangPlan,
        *,
        id: str,
        attempt: int,
        at: float,
        also: Callable[[JobEntry], JobEntry] = lambda entry: entry,
    ) -> GangStep:
        """Write the step to the ledger; nothing is deleted yet. A step of the same id is returned
        unchanged. `also` changes the job's entry in the same write. Raises AlreadyUnderWay."""
        step = step_of(plan, id=id, attempt=attempt, at=at)
        key = ledger_key(plan.kind, plan.name)

        def change(book: LedgerData) -> LedgerData:
            entry = book.of(key)
            if entry.uid not in ("", plan.uid):
                entry = JobEntry()
            before = entry.step
            if before is not None and before.id == id:
                return book
            is_same = before is not None and before.job_uid == plan.uid
            if before is not None and is_same and not can(before.state, RestartEvent.SUPERSEDED):
                raise AlreadyUnderWay(before)
            entry = replace(entry, step=step, uid=plan.uid, updated_at=at)
            return book.with_job(key, also(entry))

        return self._ledger.change(change).of(key).step or step

    def instead(self, step: GangStep, plan: GangPlan) -> GangStep:
        """Continue the step by another method."""
        return self._moved(
            step,
            RestartEvent.REPLANNED,
            way=plan.way,
            uids=tuple(each.uid for each in plan.targets),
            first=plan.first,
        )

    def done(self, step: GangStep, outcome: str) -> GangStep:
        """Record that the old gang is gone, or that nothing is left to do."""
        return self._recorded(step, lambda entry: entry.cleared(outcome))

    def advance(
        self,
        step: GangStep,
        *,
        seconds: float,
        now: float,
        nodes: Iterable[KubeNode] | None = None,
        known: Collection[KubePod] = (),
        listed: Collection[KubePod] = (),
    ) -> Advance:
        """Work for at most about `seconds`. `now` is seconds since 1970, to judge the age of nodes.
        `known`: the pods as they were before the step, if nothing was deleted yet; `listed`: as
        they were read a moment ago. KubeError: call again."""
        if not RULES[step.state].may_delete:
            return Advance(GangProgress.DONE, 0, 0, step.outcome)
        began, deleted = self._clock(), 0
        lost = self._lost_nodes(nodes or (), now)
        if step.way is Method.SUSPEND_RESUME and step.state is RestartState.PLANNED:
            if not self._may_act():
                return Advance(GangProgress.NOT_LEADER, len(step.uids), 0)
            if not suspend(self._access, step):
                return self._close(step, deleted, "the job is gone, or is another one by now")
            step = self._moved(step, RestartEvent.JOB_SUSPENDED)
        pause, uids = self._limits.look_seconds, frozenset(step.uids)
        while True:
            job = find_job(self._access, step.namespace, step.name, step.kind)
            if job is None or job.uid != step.job_uid:
                return self._close(step, deleted, "the job is gone, or is another one by now")
            found = listed or pods_of(self._access, job, known)
            left = [pod for pod in found if pod.uid in uids]
            known = listed = ()
            age = now + self._clock() - began - step.began_at
            is_late = step.way is Method.FAIL_ONE and age > self._limits.fail_one_seconds
            deleted += self._delete(_due(step, left, lost, is_late), lost)
            if not self._may_act():
                return Advance(GangProgress.NOT_LEADER, len(left), deleted)
            if not left and (outcome := self._outcome(step, job)) is not None:
                return self._close(step, deleted, outcome)
            if self._clock() >= began + seconds:
                return Advance(GangProgress.WAITING, len(left), deleted, _names(left))
            self._wait(pause)
            pause = min(1.5 * pause, self._limits.longest_look_seconds)

    def _delete(self, pods: Collection[KubePod], lost: frozenset[str]) -> int:
        if not pods:
            return 0
        workers = min(self._limits.deletes_at_once, len(pods))
        with ThreadPoolExecutor(workers, "mwatch-delete") as pool:
            return sum(pool.map(lambda pod: self._delete_one(pod, lost), pods))

    def _delete_one(self, pod: KubePod, lost: frozenset[str]) -> bool:
        """False: not deleted; the next poll finds it again."""
        if not self._may_act():
            return False
        grace = 0 if pod.node in lost else None
        try:
            answer = self._access.delete(
                PODS, pod.namespace, pod.name, uid=pod.uid, grace_seconds=grace, limits=ACTING
            )
        except Unavailable:
            return False
        return answer.outcome is CallOutcome.OK

    def _outcome(self, step: GangStep, job: KubeJob) -> str | None:
        """Finish a step whose pods are gone; None: the job changed, try again."""
        if step.way is Method.SUSPEND_RESUME:
            return resume(self._access, step, job)
        return f"all {len(step.uids)} pods are gone"

    def _close(self, step: GangStep, deleted: int, outcome: str) -> Advance:
        self.done(step, outcome)
        return Advance(GangProgress.DONE, 0, deleted, outcome)

    def _moved(self, step: GangStep, event: RestartEvent, **facts: Any) -> GangStep:
        def change(entry: JobEntry) -> JobEntry:
            return entry.moved(event, **facts) if can(entry.state, event) else entry

        return self._recorded(step, change)

    def _recorded(self, step: GangStep, change: Callable[[JobEntry], JobEntry]) -> GangStep:
        """Return the step as written. A later step of the job is not touched. If the ledger was
        lost, return the step as it would have been written."""
        key = ledger_key(step.kind, step.name)

        def changed(book: LedgerData) -> LedgerData:
            entry = book.of(key)
            if entry.step is None or entry.step.id != step.id:
                return book
            return book.with_job(key, change(entry))

        kept = self._ledger.change(changed).of(key).step
        if kept is not None and kept.id == step.id:
            return kept
        return change(JobEntry(step=step)).step or step

    def _lost_nodes(self, nodes: Iterable[KubeNode], now: float) -> frozenset[str]:
        return frozenset(
            node.name
            for node in nodes
            if not node.is_ready
            and node.unready_since is not None
            and now - node.unready_since >= self._limits.lost_node_seconds
        )


def _due(
    step: GangStep, left: Iterable[KubePod], lost: frozenset[str], is_late: bool
) -> list[KubePod]:
    """The old pods that this call must delete."""
    if step.way is Method.SUSPEND_RESUME:
        # The job's own controller removes them; a lost node never confirms the deletion.
        return [pod for pod in left if pod.node in lost and pod.is_deleting]
    if step.way is Method.FAIL_ONE and not is_late:
        wanted = [pod for pod in left if pod.uid == step.first or pod.node in lost]
    else:
        wanted = list(left)
    return [pod for pod in wanted if not pod.is_deleting or pod.node in lost]


def _names(pods: list[KubePod]) -> str:
    more = f" and {len(pods) - 3} more" if len(pods) > 3 else ""
    return "waiting for " + ", ".join(pod.name for pod in pods[:3]) + more
