# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The status of remediation of each job, for `/v1/jobs`, the metrics and the wrappers.

A job has one state: the ledger's while a restart must be finished, else that of the current case,
else that of the last restart. The state of an order is derived from job and ledger alone, so it
survives a restart of the controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from mwatch.config.fleet import FleetSettings
from mwatch.fleet.kube_findings import KUBERNETES_CAUSES
from mwatch.kube.ledger import Ledger, same_job
from mwatch.model.decision import Act, Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.gang import Reason
from mwatch.model.kube.job import pause_of
from mwatch.model.kube.ledger import JobEntry, LedgerData
from mwatch.model.kube.restart_state import (
    RULES,
    RestartEvent,
    RestartState,
    WrapperAnswer,
    can,
    doing,
)
from mwatch.remediate.attempt_server import AttemptServer, Highest, JobStanding
from mwatch.remediate.case import RestartCase, due
from mwatch.remediate.gates import CommonCauses, HeldBy

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


_LATER_SECONDS = 3.0
"""The greatest age of a sidecar's report, which it makes once a second, plus a margin."""


@dataclass(frozen=True, slots=True)
class RemediationStatus:
    state: RestartState = RestartState.NONE
    text: str = ""
    since: float | None = None
    action: str = ""
    """`restart` or `stop`: under way, or held back."""
    held_by: str = ""
    """A HeldBy, or the Reason of a plan's refusal."""
    incident: str = ""
    way: str = ""
    """The method: in-place, delete-pods, suspend-resume, fail-one or stop."""
    queue_place: int | None = None
    """Place in the breaker's queue, from 1; None: not in the queue."""
    shared: str = ""
    """The shared part of the common cause that holds it back."""
    paused_until: float | None = None
    is_paused: bool = False
    pause_text: str = ""
    next_attempt: int | None = None
    """The number in the order for the wrappers."""
    resume_from: int | None = None
    not_before: float | None = None
    last: str = ""

    @property
    def doing(self) -> str:
        """One of `restart_state.DOING`."""
        return doing(self.state, is_stop=self.action == Action.STOP)

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["state"]
        return {"doing": self.doing, **found}


_FOR_GOOD = (
    Reason.MANAGED_ELSEWHERE, Reason.SECOND_ACTOR, Reason.RESTART_POLICY, Reason.BACKOFF_LIMIT,
    Reason.WRAPPERS_OBSERVE,
)  # fmt: skip
"""Refusals that do not clear by themselves: wrappers do not wait for such a restart."""


class TickState(NamedTuple):
    now: float
    is_leader: bool
    book: LedgerData | None
    cases: Mapping[str, RestartCase]
    common: CommonCauses


def current(entry: JobEntry, case: RestartCase | None) -> RestartState:
    """The ledger's state if there is no case, or for a restart that must be finished and is not
    deferred; else the state of the case."""
    is_deferred = case is not None and case.state is RestartState.DEFERRED
    if entry.must_finish and not is_deferred:
        return entry.state
    return entry.state if case is None else case.state


class StatusBoard:
    def __init__(self, settings: FleetSettings, server: AttemptServer) -> None:
        self._settings = settings
        self._server = server
        self.states: Mapping[str, RemediationStatus] = {}
        self.line: tuple[str, ...] = ()

    def look(
        self, jobs: Sequence[JobMonitor], moment: TickState, tokens: Mapping[str, str]
    ) -> None:
        book = moment.book or LedgerData()
        states, standings = {}, {}
        for job in jobs:
            entry = same_job(book.of(job.key), job.kube.uid)
            state = self._state(job, entry, moment)
            states[job.key] = state
            standings[job.key] = self._standing(job, entry, state, tokens.get(job.key))
        self.states = states
        # Before the first read of the ledger the orders are not known.
        self._server.post(standings if moment.book is not None else {})

    def recovering(self, jobs: Mapping[str, JobMonitor], ledger: Ledger, now: float) -> set[str]:
        """Jobs that were restarted and do not train yet."""
        entries = {key: ledger.entry(key, job.kube.uid) for key, job in jobs.items()}
        open = (key for key, job in jobs.items() if not job.kube.finished)
        return {key for key in open if self._is_recovering(jobs[key], entries[key], now)}

    def _is_recovering(self, job: JobMonitor, entry: JobEntry, now: float) -> bool:
        is_on = is_recovering(entry, now, self._settings.recovery_seconds)
        return is_on and not is_fulfilled(job, entry)

    def _state(self, job: JobMonitor, entry: JobEntry, moment: TickState) -> RemediationStatus:
        now, case = moment.now, moment.cases.get(job.key)
        pause, halt = pause_of(job.kube, now), (moment.book or LedgerData()).halt
        halt = halt if halt is not None and halt.holds(now) else None
        pause_text = pause.words if pause else ""
        if halt is not None:
            pause_text = f"all jobs, by {halt.who}: {halt.why}"
        state, text, since, held_by = current(entry, case), "", None, ""
        if case is not None:
            text, since, held_by = case.text, case.since, case.held_by
        elif not moment.is_leader and due(job, now) is not None:
            state, text, held_by = RestartState.HELD, "another controller leads", HeldBy.NOT_LEADER
        elif entry.start is not None and self._is_recovering(job, entry, now):
            since = entry.start.not_before
        elif state is RestartState.RELEASED:  # too long ago to hold up other restarts
            state = RestartState.NONE
        episode = moment.common.holding(job.key, now)
        last = entry.notes[-1] if entry.notes else None
        start = entry.start
        return RemediationStatus(
            state=state, text=text, since=since, held_by=held_by,
            action=case.decision.action.value if case is not None else "",
            incident=case.id if case is not None else "",
            way=case.way if case is not None else "",
            queue_place=self.line.index(job.key) + 1 if job.key in self.line else None,
            shared="" if episode is None else episode.cause.shared,
            is_paused=pause is not None or halt is not None,
            paused_until=pause.until if pause else (halt.until if halt else None),
            pause_text=pause_text,
            next_attempt=None if start is None else start.attempt,
            resume_from=None if start is None else start.resume_from,
            not_before=None if start is None else start.not_before,
            last="" if last is None else f"{last.who}: {last.what}: {last.why}",
        )  # fmt: skip

    def _standing(
        self, job: JobMonitor, entry: JobEntry, status: RemediationStatus, token: str | None
    ) -> JobStanding:
        decision = None if job.assessment is None else job.assessment.decision
        # A gang that lost pods is restarted once its new pods are there.
        is_broken = job.is_broken and job.engine.record.of_attempt(job.attempt) is None
        wants = is_broken or (decision is not None and decision.action is not Action.NONE)
        is_alone = (
            status.is_paused
            or not self._settings.acting
            or job.kube.mode != "act"
            or status.held_by == HeldBy.MAINTENANCE
            or status.held_by in _FOR_GOOD
            or (decision is not None and decision.cause in KUBERNETES_CAUSES and not wants)
        )
        answer = RULES[status.state].wrappers
        if answer is not WrapperAnswer.WAIT and is_alone:
            answer = WrapperAnswer.OWN_RULE
        elif answer is not WrapperAnswer.WAIT and wants:
            answer = WrapperAnswer.WAIT_PENDING
        is_open = entry.state is RestartState.RELEASED and not is_fulfilled(job, entry)
        return JobStanding(
            job.kube.namespace,
            job.kube.name,
            token,
            start=entry.start if is_open else None,
            begun=_begun(job),
            pods=job.kube.pods_wanted,
            answer=answer,
        )


def _begun(job: JobMonitor) -> int:
    """The newest attempt that a wrapper of the current pods has begun; 0: all are new."""
    wrappers = (each.snapshot.wrapper for each in job.pods.values() if each.snapshot is not None)
    return max((each.attempt for each in wrappers if each is not None), default=0)


def is_fulfilled(job: JobMonitor, entry: JobEntry) -> bool:
    """Whether the ordered attempt trains or a later one has begun: a wrapper that asks from now on
    does not belong to the ordered attempt's gang."""
    start = entry.start
    if start is None or entry.state is not RestartState.RELEASED:
        return False
    attempt = job.engine.job.attempt
    has_trained = attempt.number == start.attempt and attempt.iteration is not None
    return has_trained or attempt.number > start.attempt


def number_is_taken(job: JobMonitor, entry: JobEntry, reported: Highest, now: float) -> bool:
    """Whether the attempt number of the order was already used, so that node 0 cannot follow it.
    `reported`: the highest attempt that a wrapper found on the volume. All pods must have reported
    since then that they began nothing: otherwise the gang may have followed the order."""
    start = entry.start
    if start is None or entry.state is not RestartState.RELEASED:
        return False
    if reported.attempt < start.attempt:
        return False
    seen = job.seen(now)
    if any((each.answered_at or 0.0) < reported.since + _LATER_SECONDS for each in seen.answering):
        return False
    wrappers = [each.snapshot.wrapper for each in seen.answering if each.snapshot is not None]
    is_all = not seen.silent and len(wrappers) >= job.kube.pods_wanted
    has_begun = any(each is not None and each.attempt >= start.attempt for each in wrappers)
    return is_all and not has_begun and job.attempt < start.attempt


def reissue(entry: JobEntry, reported: int) -> JobEntry:
    """Give the order a free attempt number. An order that forbids no checkpoint is dropped instead:
    the wrappers' own rule has the same effect."""
    start = entry.start
    if start is None or reported < start.attempt or not can(entry.state, RestartEvent.REISSUED):
        return entry
    if start.rollbacks or start.from_beginning or start.quarantine is not None:
        number, entry = reported + 1, entry.moved(RestartEvent.REISSUED)
        return replace(entry, start=structs.replace(start, attempt=number), attempt=number)
    return replace(entry.fulfilled(), attempt=max(entry.attempt, reported))


def only_observed(act: Act, entry: JobEntry) -> bool:
    """Whether the action was recorded in mode observe and never carried out."""
    about = [each for each in entry.incidents
             if each.attempt == act.attempt and each.action is act.action]  # fmt: skip
    return bool(about) and not any(each.is_carried_out for each in about)


def was_done(entry: JobEntry, attempt: int, id: str) -> bool:
    """Whether another step has acted on that attempt."""
    if entry.step is not None and entry.step.id == id:
        return False
    return any(each.attempt == attempt and not only_observed(each, entry) for each in entry.acts)


def is_recovering(entry: JobEntry, now: float, seconds: float) -> bool:
    start = entry.start
    if start is None or start.not_before is None or entry.state is not RestartState.RELEASED:
        return False
    return now - start.not_before < seconds


def first_new(job: JobMonitor, entry: JobEntry, now: float) -> IncidentRecord | None:
    """The record of the last restart, once training has passed its earlier iteration."""
    record = entry.incidents[-1] if entry.incidents else None
    if record is None or not record.is_carried_out or record.action is not Action.RESTART:
        return None
    if record.times.first_new_iteration is not None or job.attempt <= record.attempt:
        return None
    act = next((each for each in entry.acts if each.attempt == record.attempt), None)
    reached = -1 if act is None or act.iteration is None else act.iteration
    now_at = job.engine.job.attempt.iteration
    if now_at is None or now_at <= reached:
        return None
    lost = None
    if record.resume_from is not None and reached >= record.resume_from:
        lost = reached - record.resume_from
    times = replace(record.times, first_new_iteration=now, closed=now)
    world = job.engine.job.layout.world_size
    return record.with_outcome(times, world_size=world, lost_iterations=lost)
