# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One sentence about a job, for people and for `--json`, of what was found and decided.

The culprit is the one of the finding that leads; where it names none, the first critical one
that does. That Megatron asks for a rerun (exit 16) is a way to end, not a cause: a person is told
what it stumbled over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from mwatch.decide import primary
from mwatch.decide.policy import RULES, Proof
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Culprit, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.verdict import Verdict

_UNEXPECTED = "rerun-unexpected-result"
_NOT_FINITE = re.compile(r"Unexpected result -?(?:nan|inf)\b", re.IGNORECASE)


def verdict(job: Job, findings: Sequence[Finding], decision: Decision) -> Verdict:
    lead = decision.finding
    if lead is None or decision.cause is Cause.FINISHED:
        confidence = 0.0 if decision.cause is Cause.UNKNOWN else 1.0
        return Verdict(decision.cause, decision.reason + _remark(findings), confidence=confidence)
    return Verdict(
        _stumbled_over(job) if decision.cause is Cause.RERUN else decision.cause,
        lead.summary,
        since_iteration=lead.since_iteration,
        since_time=lead.since_time,
        culprit=lead.culprit or _culprit(job, decision, findings),
        confidence=lead.confidence,
    )


def _remark(findings: Sequence[Finding]) -> str:
    """Nobody is woken for what only informs; who looks shall know all the same."""
    told = (each.summary for each in findings if each.severity is Severity.INFO)
    return "".join(f". {summary.rstrip('. ')}" for summary in islice(told, 1))


def _culprit(job: Job, decision: Decision, findings: Sequence[Finding]) -> Culprit | None:
    if RULES[decision.cause].proof is Proof.OWN:
        return None  # who was killed later did not spoil the numbers
    named = (
        each.culprit
        for each in primary.ranked(job, findings)
        if each.severity is Severity.CRITICAL and each.culprit is not None
    )
    return next(named, None)


def _stumbled_over(job: Job) -> Cause:
    """Only the attempt that found the result prints it, not the one that was to check it."""
    for attempt in (job.attempt, *reversed(job.past)):
        for seen in attempt.faults:
            if seen.fault.id == _UNEXPECTED:
                is_finite = not _NOT_FINITE.search(seen.fault.text)
                return Cause.HARDWARE if is_finite else Cause.NAN
    return Cause.HARDWARE
