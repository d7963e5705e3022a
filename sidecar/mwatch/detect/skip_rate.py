# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Far too many steps are skipped: the run consumes samples and learns little or nothing.

A healthy dynamic scaler skips about 2 steps in 1000, and a dozen or two in its warm-down from 2^32,
which is left out. A constant scale skips without changing, and bf16 skips only if the gradient norm
is limited; no other detector covers those two cases. Forks that print their counters as 0 cannot be
judged.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import slide_start
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step

_ENOUGH = 5  # times `skip_least`: with more skips, the rate is known without looking further back
_NEAR = 16
_CLEAN = 5  # times the mean distance of skips at `skip_rate`: a gap that long ends the run of skips


class _Window(NamedTuple):
    skipped: int
    iterations: int  # both without the warm-down
    is_scale_moving: bool
    has_nan: bool


def detect(job: Job, settings: Settings) -> list[Finding]:
    rules = settings.numbers
    attempt = job.attempt
    if attempt.skipped < rules.skip_least or not attempt.steps or _is_clean_now(job, rules):
        return []
    seen = _window(job, rules)
    rate = seen.skipped / max(seen.iterations, 1)
    if seen.skipped < rules.skip_least or rate < rules.skip_rate:
        return []
    steps = attempt.steps
    first, newest = steps[slide_start(steps, int(_CLEAN / rules.skip_rate))], steps[-1]
    since = first.iteration - first.new + 1
    is_lost = rate >= rules.skip_rate_lost
    cause = _cause(job, seen)
    return [
        Finding(
            detector="skip_rate",
            cause=cause,
            severity=Severity.CRITICAL if is_lost else Severity.WARNING,
            summary=(
                f"{seen.skipped} of the last {seen.iterations} steps were skipped "
                f"({rate:.0%}), since iteration {since}."
            ),
            since_time=first.at,
            since_iteration=since,
            confidence=0.9 if is_lost else 0.7,
            evidence=(of_step(first), of_step(newest)),
            fingerprint=f"{cause}/skips",
        )
    ]


def _is_clean_now(job: Job, rules: NumberSettings) -> bool:
    """Whether the newest steps have no skip, although a bad rate would have skipped one of them."""
    steps, span = job.attempt.steps, int(1 / rules.skip_rate)
    for step in islice(reversed(steps), span):
        if step.skipped:
            return False
        span -= step.new
        if span <= 0:
            break
    return True


def _window(job: Job, rules: NumberSettings) -> _Window:
    lines: list[Step] = []
    left, skipped = rules.skip_window_iterations, 0
    for step in reversed(job.attempt.steps):
        left -= step.new
        lines.append(step)
        skipped += step.skipped
        if left <= 0 or skipped > _ENOUGH * rules.skip_least:
            break
    lines.reverse()
    known = (*lines, *islice(reversed(job.attempt.steps), _NEAR), job.attempt.steps[0])
    scales = {step.loss_scale for step in known if step.loss_scale is not None}
    can_warm = lines[0] is job.attempt.steps[0] and job.layout.is_dynamic_scale is not False
    counted = lines[_warm_down(lines, rules) :] if can_warm else lines
    skipped, iterations = sum(step.skipped for step in counted), sum(step.new for step in counted)
    return _Window(skipped, iterations, len(scales) > 1, any(step.nan for step in lines))


def _warm_down(lines: list[Step], rules: NumberSettings) -> int:
    """Return how many of the first lines are warm-down: skips while the scale falls."""
    skipped = 0
    for index, step in enumerate(lines):
        skipped += step.skipped
        is_rising = index > 0 and (step.loss_scale or 0.0) > (lines[index - 1].loss_scale or 0.0)
        if not step.skipped or is_rising or skipped > rules.warm_down_skips:
            return index
    return len(lines)


def _cause(job: Job, seen: _Window) -> Cause:
    """A scale that moves is dynamic; otherwise the gradients or the loss are too large."""
    if seen.is_scale_moving and job.layout.is_dynamic_scale is not False:
        return Cause.LOSS_SCALE_COLLAPSE
    if job.layout.is_dynamic_scale:
        return Cause.LOSS_SCALE_COLLAPSE
    return Cause.NAN if seen.has_nan else Cause.LOSS_SPIKE


DETECTOR = Detector("skip_rate", frozenset({Source.LOG}), detect, runbook="numerics")
