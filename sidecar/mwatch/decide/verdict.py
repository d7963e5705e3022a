# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which finding leads, and the verdict in one sentence for people and `--json`.

The root cause leads, not the most visible symptom: numbers that went bad rank before the kill that
followed, since they decide which checkpoint is good; a broken GPU, a bug or a bad file ranks before
the crash or hang it caused. A job without findings is healthy, finished or unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mwatch.decide import resume
from mwatch.decide.policy import LOOP_DETECTORS, RULES, Proof, Resume, acts, level
from mwatch.model.cause import Cause
from mwatch.model.decision import Decision
from mwatch.model.event import ASKED_EXITS
from mwatch.model.finding import LOG_END, Culprit, Finding, Severity, Verdict
from mwatch.model.job import Job
from mwatch.model.phase import JobPhase
from mwatch_trainer.contract import TRAINS_ON

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
_UNEXPECTED = "rerun-unexpected-result"
_NOT_FINITE = re.compile(r"Unexpected result -?(?:nan|inf)\b", re.IGNORECASE)


def ranked(job: Job, findings: Iterable[Finding]) -> Sequence[Finding]:
    """Sort by what to act on first, and leave out findings that only inform.

    Loss spikes are left out if the loss is higher since a resume: going back to a checkpoint would
    load the same state again.
    """
    findings = [*findings]
    is_of_resume = any(map(_shows_bad_resume, findings))
    candidates = [
        finding
        for finding in findings
        if finding.severity is not Severity.INFO or RULES[finding.cause].explains_all
        if not (is_of_resume and finding.cause is Cause.LOSS_SPIKE)
    ]
    return sorted(candidates, key=lambda finding: _key(job, finding))


def _shows_bad_resume(finding: Finding) -> bool:
    is_shown = finding.detector == LOG_END and finding.severity is Severity.CRITICAL
    return is_shown and finding.cause is Cause.RESUME_DIVERGED


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
        return _LAST  # it is about earlier attempts: another finding explains this one's death
    if finding.cause is Cause.STARTED_FROM_RANDOM:
        # The loss also jumps after a start from random weights; that jump is only a consequence.
        has_better = resume.older_than_attempt(job).iteration is not None
        return -2 if has_better else _LAST
    if RULES[finding.cause].resume is Resume.BEFORE_BAD:
        first_bad, last = finding.since_iteration, job.attempt.iteration
        # If a guard raised before that iteration was done, no checkpoint holds the bad numbers.
        if first_bad is None or (last is not None and first_bad <= last):
            return -1
    return _BY_CAUSE.get(finding.cause, _LAST)


def verdict(job: Job, findings: Sequence[Finding], decision: Decision) -> Verdict:
    lead = decision.finding
    if lead is None or decision.cause is Cause.FINISHED:
        confidence = 0.0 if decision.cause is Cause.UNKNOWN else 1.0
        informing = (each for each in findings if each.severity is Severity.INFO)
        remark = next((f". {each.summary.rstrip('. ')}" for each in informing), "")
        return Verdict(decision.cause, decision.reason + remark, confidence=confidence)
    return Verdict(
        stumbled_over(job) if decision.cause is Cause.RERUN else decision.cause,
        lead.summary,
        since_iteration=lead.since_iteration,
        since_time=lead.since_time,
        culprit=lead.culprit or _culprit(job, decision, findings),
        confidence=lead.confidence,
    )


def _culprit(job: Job, decision: Decision, findings: Sequence[Finding]) -> Culprit | None:
    is_printed = decision.finding is not None and decision.finding.detector == LOG_END
    if is_printed or RULES[decision.cause].proof is Proof.OWN:
        return None  # the line names no rank; a rank killed later did not cause the bad numbers
    critical = (each for each in ranked(job, findings) if each.severity is Severity.CRITICAL)
    return next((each.culprit for each in critical if each.culprit is not None), None)


def stumbled_over(job: Job) -> Cause:
    """Return the cause behind a rerun (exit 16): a rerun is a way to end, not a cause.

    Only the attempt that found the unexpected result prints it, not the rerun that checks it.
    """
    for attempt in (job.attempt, *reversed(job.past)):
        for seen in attempt.faults:
            if seen.fault.id == _UNEXPECTED:
                is_finite = not _NOT_FINITE.search(seen.fault.text)
                return Cause.HARDWARE if is_finite else Cause.NAN
    return Cause.RERUN


class QuietVerdict(NamedTuple):
    cause: Cause
    reason: str


def judge_quiet(job: Job) -> QuietVerdict:
    attempt = job.attempt
    if not job.has_started:
        return QuietVerdict(Cause.UNKNOWN, "no data yet")
    if attempt.is_finished:
        return QuietVerdict(Cause.FINISHED, f"training is done{_at(job)}")
    if ended_as_asked(job):
        return QuietVerdict(Cause.FINISHED, f"training ended as it was asked to{_at(job)}")
    if attempt.phase is JobPhase.ENDED and _left_with_zero_at_the_end(job):
        return QuietVerdict(Cause.FINISHED, f"its processes ended with exit code 0{_at(job)}")
    if attempt.phase is JobPhase.ENDED and job.ended_itself_twice:
        total = job.layout.total_iterations
        where = f"iteration {job.end_of(attempt)}{f' of {total}' if total else ''}"
        return QuietVerdict(Cause.FINISHED, f"training ended at {where} by itself, twice")
    if any(gone.exit.reason == TRAINS_ON for gone in attempt.gone.values()):
        return QuietVerdict(Cause.UNKNOWN, f"{TRAINS_ON}{_at(job)}")
    if attempt.phase is JobPhase.ENDED:
        return QuietVerdict(Cause.UNKNOWN, "the attempt ended for an unknown reason")
    if not any(view.is_up for view in job.sources.values()):
        return QuietVerdict(Cause.UNKNOWN, "nothing of the job can be read")
    return QuietVerdict(Cause.HEALTHY, f"nothing is wrong ({attempt.phase}{_at(job)})")


def _left_with_zero_at_the_end(job: Job) -> bool:
    """Whether all processes exited with 0 less than one log interval before the last iteration.

    So few iterations are not printed on a line of their own.
    """
    done, total = job.attempt.iteration, job.layout.total_iterations
    if done is None or total is None or total - done >= (job.layout.log_interval or 1):
        return False
    ends = [gone.exit for gone in job.attempt.gone.values()]
    return bool(ends) and all(end.exit_code == 0 and not end.signal for end in ends)


def ended_as_asked(job: Job) -> bool:
    reported = job.attempt.exit
    return reported is not None and reported.exit.reason in ASKED_EXITS


def is_finished(job: Job) -> bool:
    """Whether training is done and its result is saved; later failures need no fix."""
    attempt = job.attempt
    if attempt.save is not None or not (attempt.is_finished or ended_as_asked(job)):
        return False
    return not job.checkpoints or resume.choose(job, before=None).iteration == attempt.iteration


def _at(job: Job) -> str:
    iteration = job.attempt.iteration
    return "" if iteration is None else f", iteration {iteration}"
