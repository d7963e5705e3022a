# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Training began from random weights although there was earlier work to resume.

Megatron prints one line and goes on; its next save then hides the older checkpoints. A first start
into an empty folder prints the same line and is normal. If the folder cannot be read, only earlier
attempts and their logs show what was there.
"""

from __future__ import annotations

from mwatch.detect.shared.evidence import of_fault
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job, KnownCheckpoint
from mwatch.model.observation import Source
from mwatch.model.settings import Settings

_PRINTED = ("checkpoint-none-found", "checkpoint-tracker-missing")


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if attempt.load == "random":
        return _judge(job, "found no checkpoint and started from random weights")
    if attempt.load == "unknown" and attempt.first_iteration == 1 and attempt.number > 1:
        return _judge(job, "started again at iteration 1")
    return []


def _judge(job: Job, did: str) -> list[Finding]:
    # It may be a new run: the last attempt had finished, or its command is still running.
    is_anew = bool(job.past) and (job.past[-1].is_done or _is_same_process(job))
    there = _newest_there(job)
    if there is not None:
        what = f"although the checkpoint of iteration {there} is there"
        return [_finding(job, did, what, Severity.WARNING if is_anew else Severity.CRITICAL)]
    resumed = [past.resumed_from for past in job.past if past.resumed_from]
    if resumed and not is_anew:
        what = f"although an earlier attempt resumed from iteration {max(resumed)}"
        return [_finding(job, did, what, Severity.CRITICAL)]
    lost = 0 if is_anew else max((past.iteration or 0 for past in job.past), default=0)
    if lost:
        what = f"and {lost} iterations of earlier attempts are lost: no checkpoint is known"
        return [_finding(job, did, what, Severity.WARNING)]
    load, save = job.layout.load_folder, job.layout.save_folder
    if job.attempt.load == "random" and load is not None and save is not None and load != save:
        what = "although --load names another folder than --save"
        return [_finding(job, did, what, Severity.WARNING)]
    return []


def _is_same_process(job: Job) -> bool:
    """Whether the same process goes on: the wrapper observed no new one and nothing failed.

    The command itself counts from 1 again, in each epoch or for the next training of a script.
    """
    attempt, before = job.attempt, job.past[-1]
    is_watched = bool(attempt.streams) and all(map(job.has_wrapper, attempt.streams))
    has_failed = before.errors or any(seen.is_root for seen in before.faults)
    return is_watched and not attempt.is_numbered and not has_failed and not before.gone


def _newest_there(job: Job) -> int | None:
    if not job.past and not job.sees(Source.CHECKPOINTS):
        return None  # every known checkpoint was saved by this attempt
    there = (known.iteration for known in job.checkpoints.values() if _was_there(job, known))
    return max(there, default=None)


def _was_there(job: Job, known: KnownCheckpoint) -> bool:
    """Whether it is complete as far as known, not abandoned, and older than this attempt."""
    if known.is_abandoned or known.load_failed:
        return False
    if known.stored is not None and known.stored != "complete":
        return False
    attempt = job.attempt
    if known.written_at is not None:  # more reliable than the attempt number
        return known.written_at < attempt.began_at
    if known.attempt is not None:
        return known.attempt < attempt.number
    return known.iteration > (attempt.iteration or 0)


def _finding(job: Job, did: str, what: str, severity: Severity) -> Finding:
    attempt = job.attempt
    printed = [of_fault(seen) for seen in attempt.faults if seen.fault.id in _PRINTED]
    return Finding(
        detector="started_from_random",
        cause=Cause.STARTED_FROM_RANDOM,
        severity=severity,
        summary=f"Attempt {attempt.number} {did} {what}.",
        since_time=attempt.started_at,
        since_iteration=1,
        confidence=0.9 if severity is Severity.CRITICAL else 0.6,
        evidence=tuple(printed[:2]),
        fingerprint="started_from_random",
    )


DETECTOR = Detector("started_from_random", frozenset({Source.LOG}), detect, runbook="checkpoint")
