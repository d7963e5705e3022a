# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient norm is NaN or infinite, or far above what is usual in this run.

Megatron prints the norm of the last iteration, and omits it if that was skipped for an overflow.
Other trainers print a non-finite norm for a step that their loss scaler skipped, without a counter
of skipped steps: with a finite loss beside it, such a norm proves nothing until it occurs in more
consecutive steps than any scaler skips. Hugging Face's Trainer prints a NaN loss as 0. Some fp16
pipelines always print a norm of 0.000, which is not a measurement.
"""

from __future__ import annotations

import math
from itertools import islice

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import (
    first_iteration,
    is_all_skipped,
    main_loss,
    may_stand_out,
    printed_loss,
    streak_start,
    window,
)
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step
from mwatch.stats import median

_COUNTS_SKIPS = frozenset({"megatron", "bridge"})
_NEVER_SCALES = "torchtitan"
_BEFORE = 16  # lines that show whether a loss of 0 is usual in this run


def detect(job: Job, settings: Settings) -> list[Finding]:
    steps = job.attempt.steps
    newest = steps[-1] if steps else None
    if newest is None or newest.grad_norm is None:
        return []
    norm = newest.grad_norm
    rules = settings.numbers
    if math.isfinite(norm):
        far = norm > rules.grad_norm_floor and may_stand_out(
            steps, norm, rules.grad_norm_factor, rules.grad_norm_lines, _usable
        )
        return _runaway(job, rules) if far else []
    return [] if is_all_skipped(newest) else [_not_finite(job, rules)]


def _not_finite(job: Job, rules: NumberSettings) -> Finding:
    steps = job.attempt.steps
    start = streak_start(steps, lambda step: not math.isfinite(step.grad_norm or 0.0))
    first, newest = steps[start], steps[-1]
    may_be_skipped = _may_be_skipped(job, newest)
    is_proven = (
        _outlasts_a_scaler(job, rules)
        if may_be_skipped
        else math.isnan(first.grad_norm or 0.0) or len(steps) - start >= rules.grad_norm_inf_lines
    )
    is_lost = is_proven or printed_loss(newest) is None or _hides_nan(job, start, rules)
    is_repeated = len(steps) - start >= rules.loss_missing_unsure_lines
    since = first_iteration(steps, start)
    doubt = "; the loss is finite, so a loss scaler may have skipped these steps"
    return Finding(
        detector="grad_norm_bad",
        cause=Cause.NAN,
        severity=Severity.CRITICAL if is_lost else Severity.WARNING,
        summary=f"The gradient norm is {first.grad_norm} since iteration {since}"
        f"{doubt if may_be_skipped and not is_lost else ''}.",
        since_time=first.at,
        since_iteration=since,
        confidence=1.0 if is_lost else 0.7 if is_repeated else 0.6,
        evidence=tuple(of_step(steps[index]) for index in sorted({start, len(steps) - 1})),
        fingerprint="nan/gradients",
    )


def _may_be_skipped(job: Job, step: Step) -> bool:
    if step.flavour in _COUNTS_SKIPS or step.flavour == _NEVER_SCALES:
        return False
    if job.layout.precision not in (None, "fp16"):
        return False
    return step.loss_scale is None or step.loss_scale > 1.0


def _outlasts_a_scaler(job: Job, rules: NumberSettings) -> bool:
    """Whether the norm stays bad for more steps than a loss scaler skips in a row.

    With a long log interval a few lines cover that many steps, but each line may show only one
    skipped step, so a minimum number of lines is required too.
    """
    steps = job.attempt.steps
    newest = steps[-1]
    for count, step in enumerate(reversed(steps), 1):
        if step.grad_norm is None or math.isfinite(step.grad_norm):
            return False
        is_long = newest.iteration - step.iteration >= rules.warm_down_skips
        if is_long and count >= rules.loss_missing_unsure_lines:
            return True
    return False


def _hides_nan(job: Job, start: int, rules: NumberSettings) -> bool:
    """Whether a printed loss of 0 stands for NaN.

    Either the loss fell to exactly 0 together with these norms, or it was always 0 while the
    learning rate changes: its schedule does not advance for a skipped step, so steps are made.
    """
    steps = job.attempt.steps
    if printed_loss(steps[-1]) != 0.0:
        return False
    before = [printed_loss(steps[index]) for index in range(max(0, start - _BEFORE), start)]
    if 0.0 in before:
        return False  # an objective that begins at 0
    bad = list(islice(reversed(steps), min(len(steps) - start, _BEFORE)))
    others = [loss for loss in (*before, *map(main_loss, bad)) if loss]
    if not others:
        return len({step.learning_rate for step in bad} - {None}) > 1
    return not all(abs(loss) < rules.loss_near_zero for loss in others)


def _usable(step: Step) -> float | None:
    """Return a norm to compare with; 0 is not a measurement."""
    norm = step.grad_norm
    return norm if norm is not None and 0.0 < norm < math.inf else None


def _runaway(job: Job, rules: NumberSettings) -> list[Finding]:
    steps = window(job.attempt.steps)
    norms = [(step, norm) for step in steps if (norm := _usable(step)) is not None]
    low = sorted(norm for _, norm in norms)[len(norms) // 5]
    cut = max(rules.grad_norm_floor, math.sqrt(rules.grad_norm_factor) * low)
    start = next((i + 1 for i in range(len(norms) - 1, -1, -1) if norms[i][1] <= cut), 0)
    before = [norm for _, norm in norms[max(0, start - rules.baseline_lines) : start]]
    if len(before) < rules.baseline_lines // 2 or len(norms) - start < rules.grad_norm_lines:
        return []
    usual = median(before)
    limit = max(rules.grad_norm_floor, rules.grad_norm_factor * usual)
    if any(norm <= limit for _, norm in norms[-rules.grad_norm_lines :]):
        return []
    first, newest = norms[start][0], steps[-1]
    return [
        Finding(
            detector="grad_norm_bad",
            cause=Cause.LOSS_SPIKE,
            severity=Severity.WARNING,
            summary=(
                f"The gradient norm is {newest.grad_norm:.3g}, usual is {usual:.3g}, "
                f"since iteration {first.iteration}."
            ),
            since_time=first.at,
            since_iteration=first.first_covered,
            confidence=0.7,
            evidence=(of_step(first), of_step(newest)),
            fingerprint="loss_spike/gradients",
        )
    ]


DETECTOR = Detector("grad_norm_bad", frozenset({Source.LOG}), detect, runbook="numerics")
