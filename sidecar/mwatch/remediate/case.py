# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One restart or stop of one job while this controller works on it, and the values made from it.

Only the controller's loop touches a `RestartCase`. A worker gets values: the `RestartTask` to carry
out and the `LedgerUpdate` to write with it. How far the restart is, is its state in
`mwatch.model.kube.restart_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mwatch.decide.resume import choose
from mwatch.model.decision import Act, Action, Decision
from mwatch.model.finding import Cause
from mwatch.model.incident import IncidentRecord, SavedEvidence, describe, incident_id
from mwatch.model.kube.gang import GangPlan, GangRefusal, GangStep, Method
from mwatch.model.kube.job import KubeJob, wrappers_observe
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import NextStart, RestartRequest
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.restart_state import RULES, RestartEvent, RestartState, after
from mwatch.model.timeline import Rollback
from mwatch.remediate.pod_client import PodAddress

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


@dataclass(frozen=True, slots=True)
class RestartTask:
    id: str
    key: str
    job: KubeJob
    attempt: int
    """The one that ends."""
    action: Action
    reason: str
    is_asked: bool
    pods: tuple[PodAddress, ...]
    """Whose sidecar can be asked, the most telling first."""
    unseen: tuple[tuple[str, str], ...]
    nodes: tuple[KubeNode, ...] | None
    can_in_place: bool
    avoid: str = ""
    """The node that is sick."""
    blamed: str = ""
    """UID of the pod to blame."""
    token: str = ""


class Prepared(NamedTuple):
    plan: GangPlan
    evidence: SavedEvidence | None


class LedgerUpdate(NamedTuple):
    """What is written down with the act."""

    act: Act
    record: IncidentRecord
    start: NextStart | None
    """None: nothing starts after it."""


class TaskResult(NamedTuple):
    is_done: bool
    """False: somebody else is the leader by now, and goes on with it."""
    text: str


class Halted(Exception):
    """A person has stopped all acting meanwhile."""


class DoneBefore(Exception):
    """Somebody else has done it about this very attempt."""


class Deferred(Exception):
    """Begun in place, and neither to be ended so nor, for now, in another way. It is in the
    ledger: to be gone on with later."""

    def __init__(self, tried: str, refusal: GangRefusal) -> None:
        super().__init__(f"not in place: {tried}; {refusal.text}")
        self.tried = tried
        """Why not in place."""
        self.refusal = refusal


PERSON = "person"


@dataclass(slots=True)
class RestartCase:
    key: str
    uid: str
    id: str
    decision: Decision
    due_at: float
    since: float
    wish: RestartRequest | None = None
    state: RestartState = RestartState.NONE
    """Changed by `move` alone."""
    held_by: str = ""
    text: str = ""
    is_gated: bool = False
    """As of this look; a plan's refusal and a cluster that is away are tried again later."""
    retry_at: float = 0.0
    future: Future[Any] | None = None
    again: Callable[[], TaskResult] | None = None
    """Goes on with it, after a failure of the cluster."""
    way: str = ""
    tried: str = ""
    """Why it cannot be ended in place, of one that was begun so and is kept back now."""
    reported: set[str] = field(default_factory=set)
    """Reasons that an Event has named: each is reported once."""

    def move(self, event: RestartEvent) -> None:
        """IllegalTransition where the table has no such transition."""
        self.state = after(self.state, event)

    @property
    def is_restart(self) -> bool:
        return self.decision.action is Action.RESTART

    @property
    def is_running(self) -> bool:
        """A worker has it."""
        return RULES[self.state].is_running

    @property
    def is_enacted(self) -> bool:
        """The engine has recorded it as done."""
        return self.state is RestartState.COMMITTING or RULES[self.state].is_written


def due(job: JobMonitor, now: float) -> Decision | None:
    """What is to be done about it now; None: nothing, or not yet, or it was done."""
    decision = None if job.assessment is None else job.assessment.decision
    if decision is None or decision.action is Action.NONE or job.is_catching_up(now):
        return None
    if job.engine.record.of_attempt(decision.attempt) is not None:
        return None
    return decision if decision.act_at is None or decision.act_at <= now else None


def take_done(case: RestartCase, job: JobMonitor | None, now: float) -> Future[Any] | None:
    """The worker's result, once; None: not yet. One pod reports what is wrong and another what was
    saved: a checkpoint that is chosen before both have reported is too old."""
    future = case.future
    if future is None or not future.done():
        return None
    is_preparing = case.state is RestartState.PREPARING
    if is_preparing and job is not None and not job.has_reported_since(case.since, now):
        return None
    case.future = None
    return future


def is_same(first: Decision, second: Decision | None) -> bool:
    """Still to be done, about the same attempt and for the same reason."""
    if second is None:
        return False
    return (first.action, first.cause, first.attempt) == (
        second.action,
        second.cause,
        second.attempt,
    )


def wished(job: JobMonitor, wish: RestartRequest) -> Decision:
    """A person's restart: from where they say, else from the newest good checkpoint."""
    reason = f"asked for by {wish.who}: {wish.why}"
    chosen, words = wish.resume_from, f"checkpoint {wish.resume_from}: {reason}"
    if chosen is None:
        found = choose(job.engine.job, before=None)
        chosen, words = found.iteration, found.reason
    return Decision(
        action=Action.RESTART,
        cause=Cause.UNKNOWN,
        attempt=job.attempt,
        reason=reason,
        resume_from=chosen,
        resume_reason=words,
        quarantine_from=None if wish.resume_from is None else wish.resume_from + 1,
        spends_budget=False,
    )


def record_of(case_id: str, job: JobMonitor, decision: Decision, *, is_act: bool, now: float) -> (
    IncidentRecord
):  # fmt: skip
    run, attempt = job.kube.name, decision.attempt
    known = job.engine.incident_of(decision)
    if decision.finding is not None:
        record = describe(case_id, run, decision.finding, decision, attempt=attempt, is_act=is_act)
    else:
        record = IncidentRecord(
            case_id, run, attempt, decision.cause, decision.reason, 1.0, PERSON,
            action=decision.action, is_carried_out=is_act, reason=decision.reason,
            resume_from=decision.resume_from, resume_reason=decision.resume_reason,
        )  # fmt: skip
    times = replace(record.times, decided=now) if known is None else known.times
    return replace(record, times=replace(times, acted=now))


def next_start(
    job: JobMonitor, decision: Decision, entry: JobEntry, reported: int = 0
) -> NextStart:
    """After the decision was enacted: its rollback is in the timeline then. `reported`: the highest
    attempt that a wrapper has reported. They see the volume, which remembers what a new ledger, or
    a new job of the same name, does not; an order with an old number is one that node 0 cannot
    follow and the others must not."""
    timeline = job.engine.job.timeline
    number = max(job.attempt, timeline.attempt, entry.attempt, decision.attempt, reported) + 1
    is_forbidden = decision.quarantine_from is not None
    return NextStart(
        attempt=number,
        resume_from=decision.resume_from,
        from_beginning=decision.resume_from is None and is_forbidden,
        reason=decision.resume_reason or decision.reason,
        has_choice=decision.finding is not None or decision.resume_from is not None,
        rollbacks=_new(job),
        quarantine=timeline.quarantine,
    )


def _new(job: JobMonitor) -> tuple[Rollback, ...]:
    """Of this attempt's own decision alone: older ones lie beside the checkpoints already. Told of
    a rollback, node 0 condemns all that is newer and lies there; of an old one that would be what
    was saved in good health since."""
    since = job.engine.job.attempt.started_at
    return tuple(each for each in job.engine.job.timeline.rollbacks if each.at > since)


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
    """`in_place`: whether the fleet's settings allow it. `waiting`: pods whose wrapper waits for
    its attempt."""
    culprit = None if decision.finding is None else decision.finding.culprit
    blamed = culprit.pod if culprit is not None else None
    places, unseen = _places(job, blamed)
    can = in_place and bool(token) and not decision.avoid_node and _all_act(job, waiting)
    return RestartTask(
        id=id,
        key=job.key,
        job=job.kube,
        attempt=decision.attempt,
        action=decision.action,
        reason=decision.reason,
        is_asked=is_asked,
        pods=places,
        unseen=unseen,
        nodes=job.facts.nodes,
        can_in_place=can,
        avoid=(culprit.node or "") if culprit is not None and decision.avoid_node else "",
        blamed=next((each.uid for each in places if each.pod == blamed), ""),
        token=token,
    )


def taken_up(job: JobMonitor, entry: JobEntry, step: GangStep, token: str) -> RestartTask:
    """Of a step that somebody has begun before."""
    record = next((each for each in entry.incidents if each.id == step.id), None)
    places, unseen = _places(job, None)
    return RestartTask(
        id=step.id,
        key=job.key,
        job=job.kube,
        attempt=step.attempt,
        action=Action.STOP if step.way is Method.STOP else Action.RESTART,
        reason="taken up again" if record is None else record.reason,
        is_asked=True,  # what was begun is finished
        pods=places,
        unseen=unseen,
        nodes=job.facts.nodes,
        can_in_place=False,
        token=token,
    )


def ledger_update(
    job: JobMonitor, decision: Decision, id: str, entry: JobEntry, reported: int, now: float
) -> LedgerUpdate:
    """After it was enacted. `reported`: the highest attempt that a wrapper has reported."""
    act = job.engine.record.of_attempt(decision.attempt)
    assert act is not None
    # Wrappers that only observe ask nobody, and count for themselves.
    asks = job.kube.mode == _ACT and not wrappers_observe(job.kube)
    has_order = asks and decision.action is Action.RESTART
    start = next_start(job, decision, entry, reported) if has_order else None
    return LedgerUpdate(act, record_of(id, job, decision, is_act=True, now=now), start)


def case_again(
    job: JobMonitor, step: GangStep, reason: str, before: RestartCase | None, now: float
) -> RestartCase:
    """Of such a step. `before`: the case of it that was deferred: its reasons were reported."""
    decision = wished(job, RestartRequest(step.id, now, "mwatch", reason))
    case = RestartCase(job.key, job.kube.uid, step.id, decision, now, step.began_at)
    case.state, case.way = step.state, step.way.value
    if before is not None and before.state is RestartState.DEFERRED and before.id == step.id:
        before.move(RestartEvent.RETRIED)
        case.tried, case.reported = before.tried, before.reported
    return case


def _places(
    job: JobMonitor, blamed: str | None
) -> tuple[tuple[PodAddress, ...], tuple[tuple[str, str], ...]]:
    """Where the sidecars answer, the blamed pod's first; and who cannot be asked."""
    places, unseen = [], []
    for pod in job.facts.pods:
        sight = job.pods.get(pod.uid)
        if sight is None or not sight.address or not sight.port:
            unseen.append((pod.name, "its sidecar has no address"))
            continue
        places.append(PodAddress(pod.name, pod.uid, sight.address, sight.port))
    places.sort(key=lambda each: (each.pod != blamed, each.pod))
    return tuple(places), tuple(unseen)


def _all_act(job: JobMonitor, waiting: frozenset[str]) -> bool:
    """Every wrapper acts, and can be asked or waits already."""
    for pod in job.facts.pods:
        if pod.name in waiting:
            continue  # who asks acts
        sight = job.pods.get(pod.uid)
        wrapper = None if sight is None or sight.snapshot is None else sight.snapshot.wrapper
        if sight is None or sight.problem or wrapper is None or wrapper.mode != _ACT:
            return False
    return bool(job.facts.pods)
