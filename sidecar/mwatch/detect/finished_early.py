# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer exited in good order before its last iteration without being asked to.

Kubernetes then shows the Job as Succeeded. Exits by exit interval, exit duration or the time limit
of an evaluation count as requested; exits by SIGTERM (with its save) or by a termination request of
the cluster's autoresume do not. Exit code 0 is accepted if the last iteration is unknown, or if the
previous attempt ended at the same place (early stopping, or the data are used up).
"""

from __future__ import annotations

from mwatch.detect.shared.causes import cause_of_reason, has_trained
from mwatch.detect.shared.evidence import of_exit, of_gone
from mwatch.detect.shared.progress import cadence
from mwatch.detect.shared.root_cause import root_cause
from mwatch.model.cause import Cause
from mwatch.model.event import ASKED_EXITS
from mwatch.model.finding import Detector, Evidence, Finding, Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from mwatch_trainer.contract import TRAINS_ON

_CREDIBLE = 0.7  # a root cause below it is a report about a peer, also seen in clean exits
_PRINTED = {
    "signal": "after a termination signal",
    "terminated": "as the cluster's autoresume asked",
}


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if attempt.is_done or (attempt.exit is None and not attempt.gone):
        return []
    if any(cause_of_reason(gone.exit.reason) for gone in attempt.gone.values()):
        return []  # the reason is known: see crashed
    if attempt.exit is not None:
        reason = attempt.exit.exit.reason
        if reason in ASKED_EXITS:
            return []
        how = _PRINTED.get(reason, f"({reason})")
        return [_finding(job, how, attempt.exit.at, of_exit(attempt.exit))]
    if not _all_left_with_zero(attempt) or not _is_before_the_end(job):
        return []
    if (root := root_cause(job)) is not None and root.confidence >= _CREDIBLE:
        return []  # a failure that exits with 0: see crashed
    if job.ended_itself_twice or _trains_on(attempt):
        return []
    last = max(attempt.gone.values(), key=lambda gone: gone.at)
    return [_finding(job, "with exit code 0", last.at, of_gone(last))]


def _all_left_with_zero(attempt: Attempt) -> bool:
    ends = (gone.exit for gone in attempt.gone.values())
    all_good = all(end.exit_code == 0 and end.signal is None for end in ends)
    return all_good and attempt.streams <= attempt.gone.keys()


def _trains_on(attempt: Attempt) -> bool:
    """Whether the script that ended had started the training in the background."""
    return any(gone.exit.reason == TRAINS_ON for gone in attempt.gone.values())


def _is_before_the_end(job: Job) -> bool:
    total = job.layout.total_iterations
    attempt = job.attempt
    if total is None:
        return False
    done = job.end_of(attempt)
    known = cadence(job)
    apart = job.layout.log_interval or (known.iterations if known is not None else 1)
    if done >= total or (attempt.steps and total - done < apart):
        return False  # too few iterations are left for another line
    return has_trained(attempt) or not attempt.evaluations  # `--skip-train` only evaluates


def _finding(job: Job, how: str, at: float, evidence: Evidence) -> Finding:
    done, total = job.attempt.iteration or 0, job.layout.total_iterations
    of_total = f" of {total}" if total else ""
    return Finding(
        detector="finished_early",
        cause=Cause.FINISHED_EARLY,
        severity=Severity.CRITICAL,
        summary=f"Training ended after iteration {done}{of_total} {how}.",
        since_time=at,
        since_iteration=done + 1,
        confidence=0.95,
        evidence=(evidence,),
        cannot_heal=True,
        fingerprint=f"finished_early/{how}",
    )


DETECTOR = Detector(
    "finished_early", frozenset({Source.LOG, Source.PROCESS}), detect, runbook="process-crash"
)
