# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps have taken longer than is usual for this job for a while.

Time is counted per sample, so a batch size that ramps up is not slow. A sequence length that grows
by plan looks slow. A job that was slow from its first line on is noticed only if an earlier attempt
was faster.
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

_USUAL = 0.25  # the faster quarter: a slow decay must not shift its own baseline
_SAMPLE = 32
_WARM_UP = 2  # first lines of a process: the first holds compilation, the next may repeat it


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
    newest = takewhile(lambda step: not _is_printed(step) or _cost(step) > limit, reversed(steps))
    slow = list(filter(_is_printed, newest))
    if (
        len(slow) < rule.lines
        or sum(step.new * (step.seconds or 0.0) for step in slow) < rule.seconds
    ):
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


def _cost(step: Step) -> float:
    """Return seconds per sample; per step if no batch size is printed."""
    return (step.seconds or 0.0) / (step.batch_size or 1)


def _baseline(
    job: Job, before: Sequence[Step], tail: Sequence[Step], settings: Settings
) -> float | None:
    """Return the usual cost in this attempt or earlier ones; None if too little is known."""
    rule, size = settings.slow, tail[-1].batch_size
    sampled = before[:: max(1, len(before) // _SAMPLE)]
    usual = [step for step in sampled if _is_printed(step)]
    if any((step.batch_size or 0) > (size or 0) for step in usual):  # small ones cost more each
        usual = [step for step in before if step.batch_size == size and _is_printed(step)]
    own = quantile(map(_cost, usual), _USUAL) if len(usual) >= rule.baseline_lines else None
    earlier = _earlier(job, size, rule.baseline_lines)
    if earlier is None or (own is not None and own <= earlier):
        return own
    is_new = min(map(_cost, tail)) > rule.ratio * earlier
    # Calibration knows steps, not samples, so it cannot judge a ramp.
    is_same_size = all(step.batch_size == size for step in job.earlier_steps.values())
    return earlier if is_new and is_same_size else own


def _earlier(job: Job, size: int | None, least: int) -> float | None:
    learnt = len(job.calibration.steps) - len(job.attempt.steps)
    if not job.past or learnt < least:
        return None
    return quantile(islice(job.calibration.steps, learnt), _USUAL) / (size or 1)


DETECTOR = Detector("slow", frozenset({Source.LOG}), detect, runbook="gpu-hardware")
