# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One thing that is to be done to one job, from the moment that it is due until it is done.

Only the controller's loop touches a case; what workers need of it they are given as values.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mwatch.app.hand_task import Done
from mwatch.decide.resume import choose
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause
from mwatch.model.incident import IncidentRecord, describe, incident_id
from mwatch.model.kube_ledger import JobEntry
from mwatch.model.next_start import NextStart, Wish
from mwatch.model.timeline import Rollback

if TYPE_CHECKING:
    from mwatch.app.job_watch import JobWatch

PERSON = "person"


class Stage(StrEnum):
    HELD = "held"
    PREPARING = "preparing"
    """Fresh facts, a plan, evidence: nothing has been changed."""
    CARRYING = "carrying"
    """Written down, and being done."""


@dataclass(slots=True)
class Case:
    key: str
    uid: str
    id: str
    decision: Decision
    due_at: float
    since: float
    wish: Wish | None = None
    stage: Stage = Stage.HELD
    held_by: str = ""
    text: str = ""
    is_gated: bool = False
    """As of this look; a plan's refusal and a cluster that is away are tried again later."""
    retry_at: float = 0.0
    future: Future[Any] | None = None
    again: Callable[[], Done] | None = None
    """Goes on with it, after a failure of the cluster."""
    way: str = ""
    tried: str = ""
    """Why it cannot be ended in place, of one that was begun so and is kept back now."""
    told: set[str] = field(default_factory=set)
    """What people were told about it, so that it is told once."""

    @property
    def is_restart(self) -> bool:
        return self.decision.action is Action.RESTART

    @property
    def is_busy(self) -> bool:
        """It counts among the restarts that are under way."""
        return self.is_restart and self.stage is not Stage.HELD


def due(job: JobWatch, now: float) -> Decision | None:
    """What is to be done about it now; None: nothing, or not yet, or it was done."""
    decision = None if job.assessment is None else job.assessment.decision
    if decision is None or decision.action is Action.NONE or job.is_half_told(now):
        return None
    if job.engine.record.of_attempt(decision.attempt) is not None:
        return None
    return decision if decision.act_at is None or decision.act_at <= now else None


def take_done(case: Case, job: JobWatch | None, now: float) -> Future[Any] | None:
    """What its worker has brought, once; None: not yet. One pod tells what is wrong and another
    what was saved: who chooses a checkpoint before it has heard both goes back too far."""
    future = case.future
    if future is None or not future.done():
        return None
    if case.stage is Stage.PREPARING and job is not None and not job.is_told_since(case.since, now):
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


def wished(job: JobWatch, wish: Wish) -> Decision:
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


def record_of(case_id: str, job: JobWatch, decision: Decision, *, is_act: bool, now: float) -> (
    IncidentRecord
):  # fmt: skip
    run, attempt = job.kube.name, decision.attempt
    known = next((each for each in job.engine.incidents
                  if each.attempt == attempt and each.cause is decision.cause), None)  # fmt: skip
    if decision.finding is not None:
        record = describe(case_id, run, decision.finding, decision, attempt=attempt, is_act=is_act)
    else:
        record = IncidentRecord(
            case_id, run, attempt, decision.cause, decision.reason, 1.0, PERSON,
            action=decision.action, is_carried_out=is_act, reason=decision.reason,
            resume_from=decision.resume_from, resume_reason=decision.resume_reason,
        )  # fmt: skip
    detected = None if known is None else known.detected_at
    decided = now if known is None else known.decided_at
    times = replace(record.times, detected=detected, decided=decided, acted=now)
    return replace(record, times=times)


def next_start(job: JobWatch, decision: Decision, entry: JobEntry, told: int = 0) -> NextStart:
    """After the decision was enacted: its rollback is in the timeline then. `told`: the highest
    attempt that a wrapper has told of. They see the volume, which remembers what a new ledger, or
    a new job of the same name, does not; an order with an old number is one that node 0 cannot
    follow and the others must not."""
    timeline = job.engine.job.timeline
    number = max(job.attempt, timeline.attempt, entry.attempt, decision.attempt, told) + 1
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


def _new(job: JobWatch) -> tuple[Rollback, ...]:
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
