# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One restart or stop of one job while this controller works on it, and the values made from it.

Only the controller's loop uses a `RestartCase`. A worker gets values: the `RestartTask` to carry
out and the `LedgerUpdate` to write with it. The states are in `mwatch.model.kube.restart_state`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mwatch.decide.resume import choose
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision
from mwatch.model.incident import IncidentRecord, SavedEvidence, describe, incident_id
from mwatch.model.kube.gang import GangPlan, GangRefusal, GangStep, Method
from mwatch.model.kube.job import KubeJob, wrappers_observe
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import NextStart, RestartRequest
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod
from mwatch.model.kube.restart_state import RULES, RestartEvent, RestartState, after
from mwatch.remediate.pod_client import PodAddress

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


@dataclass(frozen=True, slots=True)
class RestartTask:
    id: str
    key: str
    job: KubeJob
    attempt: int
    """The attempt that ends."""
    action: Action
    reason: str
    is_asked: bool
    pods: tuple[PodAddress, ...]
    """Pods with a reachable sidecar: the blamed one first, then those of its model replica."""
    unreachable: tuple[tuple[str, str], ...]
    nodes: tuple[KubeNode, ...] | None
    can_in_place: bool
    avoid: str = ""
    """The bad node to keep out of the next gang; empty: none."""
    blamed: str = ""
    """UID of the culprit's pod."""
    token: str = ""
    seen: tuple[KubePod, ...] = ()
    """The job's pods as the controller knows them from its watch."""


class Prepared(NamedTuple):
    plan: GangPlan
    evidence: SavedEvidence | None


class LedgerUpdate(NamedTuple):
    act: Act
    record: IncidentRecord
    start: NextStart | None
    """None: no attempt follows."""


class TaskResult(NamedTuple):
    is_done: bool
    """False: another controller leads now and continues."""
    text: str


class Halted(Exception):
    """A person has paused all jobs meanwhile."""


class DoneBefore(Exception):
    """Another controller has already acted on this attempt."""


class Deferred(Exception):
    """The restart in place failed halfway, and every other method is refused for now: continue the
    restart later."""

    def __init__(self, tried: str, refusal: GangRefusal) -> None:
        super().__init__(f"not in place: {tried}; {refusal.text}")
        self.tried = tried
        self.refusal = refusal


PERSON = "person"
PREPARE_SECONDS = 5.0
"""Evidence is saved this long before an action is due, since saving changes nothing."""


@dataclass(slots=True)
class RestartCase:
    key: str
    uid: str
    id: str
    decision: Decision
    due_at: float
    since: float
    request: RestartRequest | None = None
    state: RestartState = RestartState.NONE
    """Changed only by `move`."""
    held_by: str = ""
    text: str = ""
    is_gated: bool = False
    """A gate holds the case back in this tick. After a plan's refusal, or a failure of the cluster,
    `retry_at` delays it instead."""
    retry_at: float = 0.0
    future: Future[Any] | None = None
    again: Callable[[], TaskResult] | None = None
    """Repeats the work after a failure of the cluster."""
    way: str = ""
    tried: str = ""
    """Why a deferred restart cannot finish in place."""
    reported: set[str] = field(default_factory=set)
    """Reasons of Events: each is reported once."""

    def move(self, event: RestartEvent) -> None:
        """Raises IllegalTransition if the table has no such transition."""
        self.state = after(self.state, event)

    @property
    def is_restart(self) -> bool:
        return self.decision.action is Action.RESTART

    @property
    def is_running(self) -> bool:
        return RULES[self.state].is_running

    @property
    def is_enacted(self) -> bool:
        """Whether the engine has recorded the action."""
        return self.state is RestartState.COMMITTING or RULES[self.state].is_written


def due(job: JobMonitor, now: float, lead: float = 0.0) -> Decision | None:
    """The decision to carry out now, or within `lead` seconds; None: nothing, not yet, or done."""
    decision = None if job.assessment is None else job.assessment.decision
    if decision is None or decision.action is Action.NONE or job.is_catching_up(now):
        return None
    if job.engine.record.of_attempt(decision.attempt) is not None:
        return None
    return decision if decision.act_at is None or decision.act_at <= now + lead else None


def take_done(case: RestartCase, job: JobMonitor | None, now: float) -> Future[Any] | None:
    """Return the worker's result once; None: not yet. A result that was prepared early is held
    until the action is due, and until all pods have reported since the preparation began: one pod
    may report the fault and another the saved checkpoint, and a choice before both have reported
    would be stale."""
    future = case.future
    if future is None or not future.done():
        return None
    if case.state is RestartState.PREPARING and job is not None:
        is_early = due(job, now) is None and due(job, now, PREPARE_SECONDS) is not None
        is_asked = case.request is not None
        if (is_early and not is_asked) or job.unreported_since(case.since, now):
            return None
    case.future = None
    return future


def is_same(first: Decision, second: Decision) -> bool:
    """Whether both ask for the same action, for the same cause and attempt."""
    keys = [(each.action, each.cause, each.attempt) for each in (first, second)]
    return keys[0] == keys[1]


def requested_decision(job: JobMonitor, request: RestartRequest) -> Decision:
    """A person's restart: from their checkpoint, else from the newest good one."""
    reason = f"asked for by {request.who}: {request.why}"
    chosen, why = request.resume_from, f"checkpoint {request.resume_from}: {reason}"
    if chosen is None:
        found = choose(job.engine.job, before=None)
        chosen, why = found.iteration, found.reason
    return Decision(
        action=Action.RESTART,
        cause=Cause.UNKNOWN,
        attempt=job.attempt,
        reason=reason,
        resume_from=chosen,
        resume_reason=why,
        quarantine_from=None if request.resume_from is None else request.resume_from + 1,
        spends_budget=False,
    )


def record_of(
    id: str, job: JobMonitor, decision: Decision, *, is_act: bool, now: float
) -> IncidentRecord:
    run, attempt = job.kube.name, decision.attempt
    known = job.engine.incident_of(decision)
    if decision.finding is not None:
        record = describe(id, run, decision.finding, decision, attempt=attempt, is_act=is_act)
    else:
        record = IncidentRecord(
            id, run, attempt, decision.cause, decision.reason, 1.0, PERSON,
            action=decision.action, is_carried_out=is_act, reason=decision.reason,
            resume_from=decision.resume_from, resume_reason=decision.resume_reason,
        )  # fmt: skip
    times = replace(record.times, decided=now) if known is None else known.times
    return replace(record, times=replace(times, acted=now))


def next_start(
    job: JobMonitor, decision: Decision, entry: JobEntry, reported: int = 0
) -> NextStart:
    """The order for the next attempt. Call it after the decision is recorded, when its rollback is
    in the timeline. `reported`: the highest attempt that a wrapper has reported. Wrappers read the
    attempt from the volume, which outlives ledger and job; they cannot follow an order whose number
    is used."""
    timeline = job.engine.job.timeline
    number = max(job.attempt, timeline.attempt, entry.attempt, decision.attempt, reported) + 1
    is_forbidden = decision.quarantine_from is not None
    # Older rollbacks are stored with the checkpoints already. Node 0 condemns all checkpoints newer
    # than a rollback, so repeating an old rollback would condemn good ones.
    since = job.engine.job.attempt.started_at
    return NextStart(
        attempt=number,
        resume_from=decision.resume_from,
        from_beginning=decision.resume_from is None and is_forbidden,
        reason=decision.resume_reason or decision.reason,
        has_choice=decision.finding is not None or decision.resume_from is not None,
        rollbacks=tuple(each for each in timeline.rollbacks if each.at > since),
        quarantine=timeline.quarantine,
    )


def name_of(decision: Decision, entry: JobEntry, now: float) -> str:
    taken = {each.id for each in entry.incidents}
    if entry.step is not None:
        taken.add(entry.step.id)
    return incident_id(now, decision.attempt, decision.cause, taken)


_ACT = "act"


def task_of(
    job: JobMonitor,
    decision: Decision,
    id: str,
    *,
    is_asked: bool,
    token: str,
    in_place: bool,
    waiting: frozenset[str],
) -> RestartTask:
    """`in_place`: allowed by the fleet's settings. `waiting`: pods whose wrapper waits."""
    culprit = None if decision.finding is None else decision.finding.culprit
    blamed = culprit.pod if culprit is not None else None
    can = in_place and bool(token) and not decision.avoid_node and _all_act(job, waiting)
    return _task(
        job, id, token, blamed, attempt=decision.attempt, action=decision.action,
        reason=decision.reason, is_asked=is_asked, can_in_place=can,
        avoid=(culprit.node or "") if culprit is not None and decision.avoid_node else "",
    )  # fmt: skip


def taken_up(job: JobMonitor, entry: JobEntry, step: GangStep, token: str) -> RestartTask:
    """The task for a step that was begun before."""
    record = next((each for each in entry.incidents if each.id == step.id), None)
    return _task(
        job, step.id, token, None, attempt=step.attempt,
        action=Action.STOP if step.way is Method.STOP else Action.RESTART,
        reason="taken up again" if record is None else record.reason,
        is_asked=True,  # a restart that was begun must be finished
        can_in_place=False,
    )  # fmt: skip


def ledger_update(
    job: JobMonitor, decision: Decision, id: str, entry: JobEntry, reported: int, now: float
) -> LedgerUpdate:
    """The update to write with the action. `reported`: see `next_start`."""
    act = job.engine.record.of_attempt(decision.attempt)
    assert act is not None
    # Wrappers that only observe count attempts themselves.
    asks = job.kube.mode == _ACT and not wrappers_observe(job.kube)
    has_order = asks and decision.action is Action.RESTART
    start = next_start(job, decision, entry, reported) if has_order else None
    return LedgerUpdate(act, record_of(id, job, decision, is_act=True, now=now), start)


def case_again(
    job: JobMonitor, step: GangStep, reason: str, before: RestartCase | None, now: float
) -> RestartCase:
    """The case for a step that was begun before. `before`: its deferred case."""
    decision = requested_decision(job, RestartRequest(step.id, now, "mwatch", reason))
    case = RestartCase(job.key, job.kube.uid, step.id, decision, now, step.began_at)
    case.state, case.way = step.state, step.way.value
    if before is not None and before.state is RestartState.DEFERRED and before.id == step.id:
        before.move(RestartEvent.RETRIED)
        case.tried, case.reported = before.tried, before.reported
    return case


_MOUNT_SECONDS = 120.0


def _task(job: JobMonitor, id: str, token: str, blamed: str | None, **facts: Any) -> RestartTask:
    """A task with the addresses of the sidecars, the most informative first."""
    places, unreachable = [], []
    for pod in job.facts.pods:
        view = job.pods.get(pod.uid)
        if view is None or not view.address or not view.port:
            unreachable.append((pod.name, "its sidecar has no address"))
            continue
        is_new = pod.created_at is not None and job.facts.now - pod.created_at < _MOUNT_SECONDS
        places.append(PodAddress(pod.name, pod.uid, view.address, view.port, is_new))
    places.sort(key=_interest(job, blamed))
    return RestartTask(
        id=id, key=job.key, job=job.kube, token=token, pods=tuple(places),
        unreachable=tuple(unreachable), nodes=job.facts.nodes, seen=job.facts.pods,
        blamed=next((each.uid for each in places if each.pod == blamed), ""), **facts,
    )  # fmt: skip


def _interest(job: JobMonitor, blamed: str | None) -> Callable[[PodAddress], tuple[int, int, str]]:
    """Order for evidence: the blamed pod, those of its model replica, then a sample of all."""
    state = job.engine.job
    replicas: dict[str, set[int]] = {}
    for rank in state.attempt.ranks.values() if state.layout.tensor is not None else ():
        if (replica := state.layout.coordinates(rank.rank).get("dp")) is not None:
            replicas.setdefault(rank.stream, set()).add(replica)
    mine = replicas.get(blamed or "", set())

    def order(each: PodAddress) -> tuple[int, int, str]:
        if each.pod == blamed:
            return 0, 0, each.pod
        if mine & replicas.get(each.pod, set()):
            return 1, 0, each.pod
        return 2, zlib.crc32(each.pod.encode()), each.pod

    return order


def _all_act(job: JobMonitor, waiting: frozenset[str]) -> bool:
    """Whether every wrapper acts, and is either reachable or already waiting."""
    for pod in job.facts.pods:
        if pod.name in waiting:
            continue  # only wrappers that act request an attempt
        view = job.pods.get(pod.uid)
        wrapper = None if view is None or view.snapshot is None else view.snapshot.wrapper
        if view is None or view.problem or wrapper is None or wrapper.mode != _ACT:
            return False
    return bool(job.facts.pods)
