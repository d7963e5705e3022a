# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Training goes on, but no checkpoint was completed for far too long.

The expected distance is the save interval or, if that is unknown, the distance between earlier
saves. A run is ignored if it does not save, or if its checkpoint lines and folder cannot be read.
"""

from __future__ import annotations

from itertools import islice, pairwise

from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Evidence, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from mwatch.stats import median

_LEARNT_FROM = 16
_LEAST_SECONDS = 60.0
"""Minimum seconds since the last checkpoint: the folder is read every ten seconds, so a test run
that saves more often must not count as late.
"""


def detect(job: Job, settings: Settings) -> list[Finding]:
    done = job.attempt.iteration
    if done is None or job.attempt.exit is not None or job.attempt.is_done:
        return []
    distance = _distance(job)
    if distance is None or distance <= 0:
        return []
    allowed = settings.checkpoints.overdue_factor * distance
    if done - _newest_known(job) <= allowed:
        return []
    last = _last_saved(job)
    if done - last <= allowed or _is_recent(job, last) or not _is_visible(job):
        return []
    return [_finding(job, done, last, distance)]


def _distance(job: Job) -> float | None:
    layout = job.layout
    if layout.save_interval is not None:
        return layout.save_interval if layout.save_folder is not None else None
    if len(job.checkpoints) < 3:
        return None
    newest = sorted(islice(reversed(job.checkpoints), _LEARNT_FROM))
    return median(later - each for each, later in pairwise(newest))


def _newest_known(job: Job) -> int:
    """Estimate the newest checkpoint quickly; sufficient while saves are on time."""
    if not job.checkpoints:
        return _base(job)
    known = next(reversed(job.checkpoints.values()))
    done = job.attempt.iteration or 0
    counts = known.is_written and known.iteration <= done and not known.is_abandoned
    return known.iteration if counts else _base(job)


def _base(job: Job) -> int:
    """Return the iteration at which the attempt began: earlier work cannot be lost."""
    attempt = job.attempt
    return attempt.resumed_from or max(0, (attempt.first_iteration or 1) - 1)


def _last_saved(job: Job) -> int:
    done = job.attempt.iteration or 0
    saved = (
        known.iteration
        for known in job.checkpoints.values()
        if (known.is_saved or known.stored in ("complete", "unverified"))
        and known.iteration <= done
        and not known.is_abandoned
    )
    return max([_base(job), *saved])


def _is_recent(job: Job, last: int) -> bool:
    """Whether it was saved recently, in either direction: the storage's clock may be ahead."""
    known = job.checkpoints.get(last)
    made_at = None if known is None else known.made_at
    since = job.attempt.began_at if made_at is None else made_at
    return abs(job.now - since) < _LEAST_SECONDS


def _is_visible(job: Job) -> bool:
    """Whether saves can be observed: only rank 0 prints them, and its log may be unavailable."""
    prints = any(stream.prints_checkpoints for stream in job.streams.values())
    return prints or job.sees(Source.CHECKPOINTS)


def _finding(job: Job, done: int, last: int, distance: float) -> Finding:
    save = job.attempt.save
    begun = f"; a save of iteration {save.iteration} was begun and not ended" if save else ""
    return Finding(
        detector="checkpoint_overdue",
        cause=Cause.CHECKPOINT_OVERDUE,
        severity=Severity.WARNING,
        summary=(
            f"The last finished checkpoint is of iteration {last}, now is {done}; "
            f"usual is one every {distance:g}{begun}."
        ),
        since_time=job.attempt.last_save_at,
        since_iteration=last + round(distance),
        confidence=0.8,
        evidence=(Evidence(save.file, save.line, "save begun"),) if save else (),
        fingerprint="checkpoint_overdue",
    )


DETECTOR = Detector(
    "checkpoint_overdue", frozenset({Source.LOG, Source.CHECKPOINTS}), detect, runbook="checkpoint"
)
