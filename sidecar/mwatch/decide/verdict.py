# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One sentence about a job, for people and for `--json`, of what was found and decided.

The culprit is the one of the finding that leads; where it names none, the first critical one
that does. That Megatron asks for a rerun (exit 16) is a way to end, not a cause: a person is told
what it stumbled over.

Which of several findings is the one to act on: the root, not the loudest.

Numbers that went bad come before the kill that followed, for they decide which checkpoint is
good. A sick GPU, a bug or a bad file comes before the crash and the hang it led to. Whether two
findings have to do with each other at all is not known here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from mwatch.decide import resume
from mwatch.decide.policy import LOOP_DETECTORS, RULES, Proof, Resume, acts, level
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Culprit, Finding, Severity, Verdict
from mwatch.model.job import Job

_RANKS: tuple[frozenset[Cause], ...] = (
    frozenset({Cause.RERUN, Cause.HARDWARE}),
    frozenset({Cause.NAN, Cause.LOSS_SCALE_COLLAPSE, Cause.LOSS_SPIKE}),
    frozenset({Cause.OOM, Cause.USER_ERROR, Cause.DATA, Cause.CHECKPOINT}),
    frozenset({Cause.STORAGE, Cause.FABRIC}),
    frozenset({Cause.KILLED, Cause.LOST_POD, Cause.FINISHED_EARLY}),
    frozenset({Cause.HANG, Cause.CRASH}),
)
_BY_CAUSE = {cause: place for place, causes in enumerate(_RANKS) for cause in causes}
_LAST = len(_RANKS)


def ranked(job: Job, findings: Iterable[Finding]) -> Sequence[Finding]:
    """The one to act on first. What only informs is left out."""
    candidates = [
        finding
        for finding in findings
        if finding.severity is not Severity.INFO or RULES[finding.cause].explains_all
    ]
    return sorted(candidates, key=lambda finding: _key(job, finding))


def _key(job: Job, finding: Finding) -> tuple[bool, bool, int, int, float, float]:
    since = math.inf if finding.since_time is None else finding.since_time
    first = math.inf if finding.since_iteration is None else finding.since_iteration
    return (
        not RULES[finding.cause].explains_all,
        not acts(finding.cause, finding.severity),
        -level(finding.severity),
        _place(job, finding),
        since,
        first,
    )


def _place(job: Job, finding: Finding) -> int:
    if finding.detector in LOOP_DETECTORS:
        return _LAST  # of the attempts before: why this one died is told by another
    if finding.cause is Cause.STARTED_FROM_RANDOM:
        # The loss jumps after it, too: what follows from random weights is not to be fixed.
        has_better = resume.older_than_attempt(job).iteration is not None
        return -2 if has_better else _LAST
    if RULES[finding.cause].resume is Resume.BEFORE_BAD and _was_trained_on(job, finding):
        return -1
    return _BY_CAUSE.get(finding.cause, _LAST)


def _was_trained_on(job: Job, finding: Finding) -> bool:
    """Whether a checkpoint may hold the bad numbers. A guard that raised kept them out."""
    first_bad, last = finding.since_iteration, job.attempt.iteration
    return first_bad is None or (last is not None and first_bad <= last)


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
    reported = (each.summary for each in findings if each.severity is Severity.INFO)
    return "".join(f". {summary.rstrip('. ')}" for summary in islice(reported, 1))


def _culprit(job: Job, decision: Decision, findings: Sequence[Finding]) -> Culprit | None:
    if RULES[decision.cause].proof is Proof.OWN:
        return None  # who was killed later did not spoil the numbers
    named = (
        each.culprit
        for each in ranked(job, findings)
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
