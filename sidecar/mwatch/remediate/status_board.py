# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What others see of the hands: one state for each job, and one ticket at the desk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mwatch.config.fleet import FleetSettings
from mwatch.kube.ledger import LedgerClient, same_job
from mwatch.model.decision import Action
from mwatch.model.finding import Cause
from mwatch.model.kube.gang import Why
from mwatch.model.kube.ledger import Book, Halt, JobEntry
from mwatch.model.kube.pause import pause_of
from mwatch.remediate.attempt_server import AttemptServer, JobStanding
from mwatch.remediate.case import RestartCase, RestartStage, due
from mwatch.remediate.gates import CommonCauses
from mwatch.remediate.restart_order import is_fulfilled, is_recovering
from mwatch.remediate.status import Doing, HeldBy, RemediationStatus

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor

_OF_KUBERNETES = frozenset(
    {
        Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER,
    }
)  # fmt: skip

_FOR_GOOD = frozenset(
    {
        Why.MANAGED_ELSEWHERE, Why.SECOND_ACTOR, Why.RESTART_POLICY, Why.BACKOFF_LIMIT,
        Why.WRAPPERS_OBSERVE,
    }
)  # fmt: skip
"""Refusals that do not pass by themselves: a trainer does not wait for such a restart."""


class TickState(NamedTuple):
    now: float
    is_leader: bool
    book: Book | None
    cases: Mapping[str, RestartCase]
    common: CommonCauses


class StatusBoard:
    def __init__(self, settings: FleetSettings, desk: AttemptServer) -> None:
        self._settings = settings
        self._desk = desk
        self.states: Mapping[str, RemediationStatus] = {}
        self.line: tuple[str, ...] = ()

    def look(
        self, jobs: Sequence[JobMonitor], moment: TickState, tokens: Mapping[str, str]
    ) -> None:
        book = moment.book or Book()
        states, tickets = {}, {}
        for job in jobs:
            entry = same_job(book.of(job.key), job.kube.uid)
            state = self._state(job, entry, moment)
            states[job.key] = state
            tickets[job.key] = self._ticket(job, entry, state, moment, tokens.get(job.key))
        self.states = states
        # Before the first look into the ledger nobody knows what was ordered.
        self._desk.post(tickets if moment.book is not None else {})

    def recovering(
        self, jobs: Mapping[str, JobMonitor], ledger: LedgerClient, now: float
    ) -> set[str]:
        """Restarted, and not training again yet."""
        found = set()
        for key, job in jobs.items():
            entry = ledger.entry(key, job.kube.uid)
            if self._is_recovering(job, entry, now) and not job.kube.finished:
                found.add(key)
        return found

    def _is_recovering(self, job: JobMonitor, entry: JobEntry, now: float) -> bool:
        is_on = is_recovering(entry, now, self._settings.recovery_seconds)
        return is_on and not is_fulfilled(job, entry)

    def _state(self, job: JobMonitor, entry: JobEntry, moment: TickState) -> RemediationStatus:
        now, case = moment.now, moment.cases.get(job.key)
        pause, halt = pause_of(job.kube, now), (moment.book or Book()).halt
        is_halted = halt is not None and halt.holds(now)
        doing, text, since = Doing.NOTHING, "", None
        held_by = case.held_by if case is not None else ""
        if case is not None:
            doing, text, since = _doing(case), case.text, case.since
        elif not moment.is_leader and due(job, now) is not None:
            doing, text = Doing.HELD, "another controller leads"
            held_by = HeldBy.NOT_LEADER
        elif entry.start is not None and self._is_recovering(job, entry, now):
            doing, since = Doing.RECOVERING, entry.start.not_before
        episode = moment.common.holding(job.key, now)
        last = entry.notes[-1] if entry.notes else None
        start = entry.start
        return RemediationStatus(
            doing=doing, text=text, since=since, held_by=held_by,
            action=case.decision.action.value if case is not None else "",
            incident=case.id if case is not None else "",
            way=case.way if case is not None else "",
            queue_place=self.line.index(job.key) + 1 if job.key in self.line else None,
            shared="" if episode is None else episode.cause.shared,
            is_paused=pause is not None or is_halted,
            paused_until=pause.until if pause else (halt.until if halt and is_halted else None),
            pause_text=_paused(pause.words if pause else "", halt if is_halted else None),
            next_attempt=None if start is None else start.attempt,
            resume_from=None if start is None else start.resume_from,
            not_before=None if start is None else start.not_before,
            last="" if last is None else f"{last.who}: {last.what}: {last.why}",
        )  # fmt: skip

    def _ticket(
        self,
        job: JobMonitor,
        entry: JobEntry,
        state: RemediationStatus,
        moment: TickState,
        token: str | None,
    ) -> JobStanding:
        decision = None if job.assessment is None else job.assessment.decision
        # A gang that somebody took pods of is restarted when its new ones are there.
        is_broken = job.is_broken and job.engine.record.of_attempt(job.attempt) is None
        wants = is_broken or (decision is not None and decision.action is not Action.NONE)
        is_alone = (
            state.is_paused
            or not self._settings.acting
            or job.kube.mode != "act"
            or state.held_by == HeldBy.MAINTENANCE
            or (decision is not None and decision.cause in _OF_KUBERNETES and not wants)
        )
        case = moment.cases.get(job.key)
        is_going = case is not None and case.stage is not RestartStage.HELD
        return JobStanding(
            job.kube.namespace,
            job.kube.name,
            token,
            start=None if is_fulfilled(job, entry) else entry.start,
            begun=_begun(job),
            pods=job.kube.pods_wanted,
            is_pending=wants,
            is_going=is_going or entry.is_under_way,
            is_left_alone=is_alone or state.held_by in _FOR_GOOD,
        )


def _begun(job: JobMonitor) -> int:
    """The newest attempt that a wrapper of these very pods has begun; 0: they are all new."""
    wrappers = (each.snapshot.wrapper for each in job.pods.values() if each.snapshot is not None)
    return max((each.attempt for each in wrappers if each is not None), default=0)


def _doing(case: RestartCase) -> Doing:
    if case.stage is RestartStage.HELD:
        return Doing.HELD
    if case.stage is RestartStage.PREPARING:
        return Doing.EVIDENCE
    return Doing.RESTARTING if case.is_restart else Doing.STOPPING


def _paused(words: str, halt: Halt | None) -> str:
    return words if halt is None else f"all jobs, by {halt.who}: {halt.why}"
