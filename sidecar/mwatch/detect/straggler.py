# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One rank is slower than the others, and all of them wait for it in each step.

Megatron's `--log-straggler` report shows it, or a rank that stays iterations behind while the job
progresses. Pipeline stages differ by design, so their tolerance is larger.
"""

from __future__ import annotations

import math

from mwatch.detect.shared import evidence
from mwatch.detect.shared.culprit import Suspect, culprit
from mwatch.detect.shared.probe import probed_ranks
from mwatch.detect.shared.progress import step_limit
from mwatch.model.cause import Cause
from mwatch.model.event import Straggler
from mwatch.model.finding import CulpritState, Detector, Evidence, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.stats import median

_LAG_STEPS = 3.0
_MIN_RANKS = 3


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if attempt.phase is JobPhase.ENDED or attempt.is_done:
        return []
    if attempt.straggler is not None and len(attempt.steps) != 1:  # one line: compilation
        found = _reported(job, attempt.straggler, settings) or _late(job, settings)
    else:
        found = _late(job, settings)
    return [] if found is None else [found]


def _reported(job: Job, report: Straggler, settings: Settings) -> Finding | None:
    slow = settings.slow
    room = slow.ratio if (job.layout.pipeline or 1) > 1 else slow.straggler_ratio
    measures = report.measures
    if "MnRtt" in measures and "MxRtt" in measures:
        apart = (measures["MxRtt"][0] - measures["MnRtt"][0]) / 1000.0
        if apart < slow.straggler_seconds:
            return None
    for worst, best, is_time in (("MnEtpt", "MxEtpt", False), ("MxRtt", "MnRtt", True)):
        if worst not in measures or best not in measures:
            continue
        (bad, rank), (good, _) = measures[worst], measures[best]
        ratio = _ratio(bad, good) if is_time else _ratio(good, bad)
        if ratio >= room:
            what = "time of its part" if is_time else "throughput"
            text = f"rank {rank} is {ratio:.2f} times slower than the best by the {what}"
            return _finding(job, rank, text, evidence.of_straggler(report), 0.7)
    return None


def _ratio(large: float, small: float) -> float:
    if not (math.isfinite(large) and math.isfinite(small)) or small <= 0:
        return 0.0
    return large / small


def _late(job: Job, settings: Settings) -> Finding | None:
    """Find a rank that is iterations behind while the job as a whole progresses."""
    step = job.calibration.step_median()
    limit = step_limit(job, settings)
    if step is None or limit is None or job.now - job.attempt.last_progress >= limit:
        return None
    probe = probed_ranks(job, settings)
    moving = [rank for rank in probe.beating if rank.iteration is not None]
    if len(moving) < _MIN_RANKS:
        return None
    last = min(moving, key=lambda rank: (rank.iteration or 0, rank.rank))
    lag = (median(rank.iteration or 0 for rank in moving) - (last.iteration or 0)) * step
    beat_age = settings.hang.beat_silence_seconds  # the age of its last beat
    if lag < _LAG_STEPS * step + beat_age:
        return None
    text = f"rank {last.rank} is {lag:.0f} s behind the others, though all of them move"
    return _finding(job, last.rank, text, evidence.of_text(f"probe: {text}"), 0.5)


def _finding(job: Job, rank: int, text: str, seen: Evidence, confidence: float) -> Finding:
    attempt = job.attempt
    return Finding(
        detector="straggler",
        cause=Cause.SLOW,
        severity=Severity.WARNING,
        summary=text,
        since_time=attempt.line_at or attempt.progress_at,
        since_iteration=attempt.iteration,
        confidence=confidence,
        culprit=culprit(job, Suspect(rank, CulpritState.BEHIND, text)),
        evidence=(seen,),
        fingerprint="slow/straggler",
    )


DETECTOR = Detector(
    "straggler", frozenset({Source.LOG, Source.PROBE}), detect, runbook="gpu-hardware"
)
