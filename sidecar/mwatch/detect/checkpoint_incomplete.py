# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint cannot be loaded, or the newest one is incomplete.

A save in progress, or a save that a killed attempt left unfinished, leaves a half-written folder,
which is critical only if the job tries to load it. If the folder cannot be read, only the load
itself shows the damage.
"""

from __future__ import annotations

from mwatch.detect.shared.causes import has_trained
from mwatch.detect.shared.evidence import of_error, of_fault
from mwatch.detect.shared.root_cause import root_cause
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job, KnownCheckpoint
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

_BAD = ("incomplete", "missing")
_ITS_FAULT = (Cause.CHECKPOINT, Cause.CRASH, Cause.UNKNOWN)


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if not has_trained(attempt) and attempt.load in ("begun", "failed"):
        target = job.checkpoints.get(attempt.load_iteration or -1)
        if attempt.load == "failed":
            root = root_cause(job)  # the machine or the settings may be the cause
            is_its_fault = root is None or root.cause in _ITS_FAULT
            return [_not_loaded(job, "could not be loaded")] if is_its_fault else []
        if target is not None and target.stored in _BAD:
            return [_not_loaded(job, f"is {target.stored} and is being loaded")]
    if job.sees(Source.CHECKPOINTS) and job.checkpoints:
        return _newest(job, settings)
    return []


def _not_loaded(job: Job, what: str) -> Finding:
    attempt = job.attempt
    number = attempt.load_iteration
    which = "" if number is None else f" of iteration {number}"
    known = job.checkpoints.get(number) if number is not None else None
    reason = f" ({known.stored_reason})" if known and known.stored_reason else ""
    faults = [seen for seen in attempt.faults if seen.fault.id.startswith("checkpoint-")]
    evidence = [*map(of_fault, faults), *map(of_error, attempt.errors)]
    return Finding(
        detector="checkpoint_incomplete",
        cause=Cause.CHECKPOINT,
        severity=Severity.CRITICAL,
        summary=f"The checkpoint{which} {what}{reason}.",
        since_time=attempt.phase_since,
        since_iteration=number,
        confidence=0.9,
        evidence=tuple(evidence[:3]),
        cannot_heal=attempt.phase is JobPhase.ENDED,
        fault=next((seen.fault.id for seen in faults if seen.fault.role == "root"), None),
        fingerprint="checkpoint/load",
    )


def _newest(job: Job, settings: Settings) -> list[Finding]:
    newest = job.checkpoints[max(job.checkpoints)]
    if newest.stored != "incomplete" or newest.is_abandoned or _is_being_saved(job, newest):
        return []
    settled = settings.checkpoints.settle_seconds
    is_over = job.attempt.phase is JobPhase.ENDED
    if not is_over and newest.written_at is not None and job.now - newest.written_at < settled:
        return []
    why = f" ({newest.stored_reason})" if newest.stored_reason else ""
    return [
        Finding(
            detector="checkpoint_incomplete",
            cause=Cause.CHECKPOINT,
            severity=Severity.WARNING,
            summary=f"The newest checkpoint, of iteration {newest.iteration}, is incomplete{why}.",
            since_time=newest.written_at or newest.saved_at,
            since_iteration=newest.iteration,
            confidence=0.8,
            fingerprint="checkpoint/newest",
        )
    ]


def _is_being_saved(job: Job, known: KnownCheckpoint) -> bool:
    save = job.attempt.save
    if save is None or job.attempt.phase is JobPhase.ENDED:
        return False
    return save.iteration is None or save.iteration == known.iteration


DETECTOR = Detector(
    "checkpoint_incomplete",
    frozenset({Source.CHECKPOINTS, Source.LOG}),
    detect,
    runbook="checkpoint",
)
