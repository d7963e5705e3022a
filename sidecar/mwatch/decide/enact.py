# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes down that a decision was carried out, so that it is never taken twice.

Who carries it out, and who quarantines checkpoints, is elsewhere.
"""

from __future__ import annotations

from mwatch.decide import fingerprint, progress, rollback
from mwatch.decide.policy import RULES, Resume
from mwatch.model.decision import Act, Action, Decision, Record
from mwatch.model.job import Job


def enact(record: Record, decision: Decision, job: Job, at: float) -> Act:
    """Appends to `record`; at most once per attempt, whoever asks again gets the first one."""
    before = record.of_attempt(decision.attempt)
    if before is not None:
        return before
    finding = decision.finding
    goes_back = (
        decision.action is Action.RESTART
        and finding is not None
        and RULES[decision.cause].resume is Resume.BEFORE_BAD
    )
    act = Act(
        at=at,
        attempt=decision.attempt,
        action=decision.action,
        cause=decision.cause,
        fingerprint=decision.cause.value if finding is None else fingerprint.of(finding),
        resume_from=decision.resume_from,
        iteration=progress.reached(job, record),
        spends_budget=decision.spends_budget,
        first_bad=rollback.first_bad(job, finding) if finding and goes_back else None,
        quarantine_from=decision.quarantine_from,
    )
    record.acts.append(act)
    return act
