# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps take longer than this job's own usual, and have for a while.

Time is counted by the sample, so a batch that ramps is not slow. A sequence length that grows
by plan looks slow here; and a job that was slow from its first line on is only seen where an
earlier attempt was faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile

from mwatch.detect.shared import evidence
from mwatch.detect.shared.progress import is_warm
from mwatch.model.finding import Cause, Detector, Finding, Severity
from mwatch.model.job import Job, Step
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from mwatch.stats import median, quantile

_USUAL = 0.25
"""The faster quarter: a slow decay must not drag its own baseline along."""
_SAMPLE = 32
"""A baseline needs no more lines, however long the run."""
_WARM_UP = 2
"""Lines of a process that say little: the first holds compilation, the next may repeat it."""


def detect(job: Job, settings: Settings) -> list[Finding]:
    rule = settings.slow
    steps = list(job.attempt.steps)
    if job.attempt.is_done or len(steps) < rule.lines or not all(map(_is_printed, steps[-2:])):
        return []
    tail = [step for step in steps[-rule.lines :] if _is_printed(step)]
    if len(tail) < rule.lines:
        return []
    baseline = _baseline(job, steps[_WARM_UP : -rule.lines], tail, settings)
    if baseline is None:
        return []
    limit = rule.ratio * baseline
    slow = list(
        takewhile(lambda step: not _is_printed(step) or _cost(step) > limit, reversed(steps))
    )
    slow = [step for step in slow if _is_printed(step)]
    if len(slow) < rule.lines or sum(map(_seconds, slow)) < rule.seconds:
        return []
    first, last = slow[-1], slow[0]
    ratio = median(map(_cost, slow)) / baseline
    return [
        Finding(
            detector="slow",
            cause=Cause.SLOW,
            severity=Severity.WARNING,
            summary=f"steps take {ratio:.2f} times this job's usual time, for {len(slow)} lines",
            since_time=first.at,
            since_iteration=first.first_covered,
            confidence=0.8,
            evidence=(evidence.of_step(first), evidence.of_step(last)),
            fingerprint="slow",
        )
    ]


def _is_printed(step: Step) -> bool:
    return bool(step.seconds) and is_warm(step)


def _seconds(step: Step) -> float:
    return step.new * (step.seconds or 0.0)


def _cost(step: Step) -> float:
    """Seconds by the sample; by the step where no batch size is printed."""
    return (step.seconds or 0.0) / (step.batch_size or 1)


def _baseline(
    job: Job, before: Sequence[Step], tail: Sequence[Step], settings: Settings
) -> float | None:
    """What this attempt, or earlier ones, were used to; None: too little is known."""
    rule, size = settings.slow, tail[-1].batch_size
    usual = [step for step in _spread(before) if _is_printed(step)]
    if any((step.batch_size or 0) > (size or 0) for step in usual):  # small ones cost more each
        usual = [step for step in before if step.batch_size == size and _is_printed(step)]
    own = quantile(map(_cost, usual), _USUAL) if len(usual) >= rule.baseline_lines else None
    earlier = _earlier(job, size, rule.baseline_lines)
    if earlier is None or (own is not None and own <= earlier):
        return own
    is_new = min(map(_cost, tail)) > rule.ratio * earlier
    return earlier if is_new and _was_same_size(job, size) else own


def _spread(steps: Sequence[Step]) -> Sequence[Step]:
    return steps[:: max(1, len(steps) // _SAMPLE)]


def _earlier(job: Job, size: int | None, least: int) -> float | None:
    """By what calibration learnt before this attempt; it is kept by the layout of the job."""
    learnt = len(job.calibration.steps) - len(job.attempt.steps)
    if not job.past or learnt < least:
        return None
    return quantile(islice(job.calibration.steps, learnt), _USUAL) / (size or 1)


def _was_same_size(job: Job, size: int | None) -> bool:
    """Calibration knows steps, not samples: of a ramp it cannot speak."""
    return all(step.batch_size == size for step in job.earlier_steps.values())


DETECTOR = Detector("slow", frozenset({Source.LOG}), detect, runbook="gpu-hardware")
