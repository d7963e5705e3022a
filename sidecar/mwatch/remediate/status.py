# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the remediation of each job stands: for `/v1/jobs` and the metrics, and for its wrappers.

Both come from one state: the ledger's where a restart has to be finished, else the one of the case
that this controller works on, else that of the last restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mwatch.config.fleet import FleetSettings
from mwatch.kube.ledger import Ledger, same_job
from mwatch.model.decision import Action
from mwatch.model.finding import Cause
from mwatch.model.kube.gang import Reason
from mwatch.model.kube.job import pause_of
from mwatch.model.kube.ledger import Halt, JobEntry, LedgerData
from mwatch.model.kube.restart_state import RULES, RestartState, WrapperAnswer, doing
from mwatch.remediate.attempt_server import AttemptServer, JobStanding
from mwatch.remediate.case import RestartCase, due
from mwatch.remediate.gates import CommonCauses, HeldBy
from mwatch.remediate.restart_order import is_fulfilled, is_recovering

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


@dataclass(frozen=True, slots=True)
class RemediationStatus:
    state: RestartState = RestartState.NONE
    text: str = ""
    """One line for people."""
    since: float | None = None
    action: str = ""
    """`restart` or `stop`: under way, or kept back."""
    held_by: str = ""
    """A word of HeldBy, or of a plan's refusal."""
    incident: str = ""
    way: str = ""
    """How: in-place, delete-pods, suspend-resume, fail-one."""
    queue_place: int | None = None
    """From 1 on, where the breaker keeps it back."""
    shared: str = ""
    """What the jobs of a common cause have in common."""
    paused_until: float | None = None
    is_paused: bool = False
    pause_text: str = ""
    """Who and why."""
    next_attempt: int | None = None
    """The number that wrappers are given."""
    resume_from: int | None = None
    not_before: float | None = None
    last: str = ""
    """What was done last, or would have been."""

    @property
    def doing(self) -> str:
        """One of `restart_state.DOING`."""
        return doing(self.state, is_stop=self.action == Action.STOP)

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["state"]
        return {"doing": self.doing, **found}


_OF_KUBERNETES = frozenset(
    {
        Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER,
    }
)  # fmt: skip

_FOR_GOOD = frozenset(
    {
        Reason.MANAGED_ELSEWHERE, Reason.SECOND_ACTOR, Reason.RESTART_POLICY, Reason.BACKOFF_LIMIT,
        Reason.WRAPPERS_OBSERVE,
    }
)  # fmt: skip
"""Refusals that do not pass by themselves: a trainer does not wait for such a restart."""


class TickState(NamedTuple):
    now: float
    is_leader: bool
    book: LedgerData | None
    cases: Mapping[str, RestartCase]
    common: CommonCauses


def current(entry: JobEntry, case: RestartCase | None) -> RestartState:
    """What has to be finished is as far as the ledger says, whatever else is due."""
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
        # Before the first look into the ledger nobody knows what was ordered.
        self._server.post(standings if moment.book is not None else {})

    def recovering(self, jobs: Mapping[str, JobMonitor], ledger: Ledger, now: float) -> set[str]:
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
        pause, halt = pause_of(job.kube, now), (moment.book or LedgerData()).halt
        is_halted = halt is not None and halt.holds(now)
        state, text, since, held_by = current(entry, case), "", None, ""
        if case is not None:
            text, since, held_by = case.text, case.since, case.held_by
        elif not moment.is_leader and due(job, now) is not None:
            state, text, held_by = RestartState.HELD, "another controller leads", HeldBy.NOT_LEADER
        elif entry.start is not None and self._is_recovering(job, entry, now):
            since = entry.start.not_before
        elif state is RestartState.RELEASED:  # it takes too long, and holds up no other restart
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
            is_paused=pause is not None or is_halted,
            paused_until=pause.until if pause else (halt.until if halt and is_halted else None),
            pause_text=_paused(pause.words if pause else "", halt if is_halted else None),
            next_attempt=None if start is None else start.attempt,
            resume_from=None if start is None else start.resume_from,
            not_before=None if start is None else start.not_before,
            last="" if last is None else f"{last.who}: {last.what}: {last.why}",
        )  # fmt: skip

    def _standing(
        self, job: JobMonitor, entry: JobEntry, status: RemediationStatus, token: str | None
    ) -> JobStanding:
        decision = None if job.assessment is None else job.assessment.decision
        # A gang that somebody took pods of is restarted when its new ones are there.
        is_broken = job.is_broken and job.engine.record.of_attempt(job.attempt) is None
        wants = is_broken or (decision is not None and decision.action is not Action.NONE)
        is_alone = (
            status.is_paused
            or not self._settings.acting
            or job.kube.mode != "act"
            or status.held_by == HeldBy.MAINTENANCE
            or status.held_by in _FOR_GOOD
            or (decision is not None and decision.cause in _OF_KUBERNETES and not wants)
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
    """The newest attempt that a wrapper of these very pods has begun; 0: they are all new."""
    wrappers = (each.snapshot.wrapper for each in job.pods.values() if each.snapshot is not None)
    return max((each.attempt for each in wrappers if each is not None), default=0)


def _paused(text: str, halt: Halt | None) -> str:
    return text if halt is None else f"all jobs, by {halt.who}: {halt.why}"
