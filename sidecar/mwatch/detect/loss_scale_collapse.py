# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fp16 loss scale has collapsed: at its minimum Megatron skips every step without a message.

The warm-down from 2^32 (16 to 18 skips in a row at the start of an attempt) and about 2 skips in
1000 steps after that are normal. Skips that continue at the minimum, more skips in a row than any
warm-down needs, and many halvings in few steps after the warm-down are not. The printed scale is
that of the last iteration of a line, so with a long log interval only the minimum and the skips
show the collapse. DeepSpeed and Apex print a line for each overflow, which is used where step lines
have no scale.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice, takewhile

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import is_all_skipped, slide_start
from mwatch.model.cause import Cause
from mwatch.model.event import Overflow
from mwatch.model.finding import Detector, Evidence, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step

_NEWEST = 3  # lines; a skip in any of them means that skips continue
_NEAR = 64
_MESSAGES = 2
_GIVES_UP = "loss-scale-at-minimum"
_FROM_THE_TOP = 33  # skips from 2^32 to 1; one of them only uses up hysteresis
_FLOOR_SKIPS = 8  # skips in a row at one scale, more than any usual hysteresis
_LONG_SLIDE = 10  # collapse windows over which many halvings count as one slide


def detect(job: Job, settings: Settings) -> list[Finding]:
    steps = job.attempt.steps
    newest = steps[-1] if steps else None
    if newest is None or newest.loss_scale is None:
        return _by_messages(job)
    scale = newest.loss_scale
    is_falling = newest.skipped or _is_sliding(steps, scale)
    return _collapse(job, scale, settings.numbers) if is_falling and _is_dynamic(job) else []


def _by_messages(job: Job) -> list[Finding]:
    """Judge by overflow messages: recent steps overflowed although the scale was 1 or less."""
    attempt = job.attempt
    lately = [(at, each) for at, each in attempt.overflows if each.scale_before is not None]
    if len(lately) < _MESSAGES:
        return []
    at, newest = lately[-1]
    before, after = newest.scale_before or 0.0, newest.scale_after
    lines = list(islice(reversed(attempt.steps), _NEWEST))
    goes_on = not lines or at >= lines[-1].at
    gave_up = any(seen.fault.id == _GIVES_UP for seen in attempt.faults)
    is_used_up = before <= 1.0 or (gave_up and (after is None or after <= 1.0))
    if not goes_on or not is_used_up:
        return []
    first_at, first = lately[0]
    done = attempt.iteration
    text = f"fell to {before if after is None else after:g}, and steps still overflow"
    return [
        Finding(
            detector="loss_scale_collapse",
            cause=Cause.LOSS_SCALE_COLLAPSE,
            severity=Severity.CRITICAL,
            summary=f"The loss scale {text} ({len(lately)} messages): nothing is trained.",
            since_time=first_at,
            since_iteration=None if done is None else done + 1,
            confidence=0.9,
            evidence=(_of_message(first), _of_message(newest)),
            fingerprint="loss_scale_collapse",
        )
    ]


def _of_message(overflow: Overflow) -> Evidence:
    text = f"overflow at loss scale {overflow.scale_before:g}"
    return Evidence(overflow.file or None, overflow.line or None, text)


def _is_sliding(steps: deque[Step], scale: float) -> bool:
    """Whether the scale is sliding although the newest line shows no skip: it is at the minimum, or
    the run is a fork whose counters stay 0."""
    if scale <= 1.0:
        return any(step.skipped for step in islice(reversed(steps), _NEWEST))
    return len(steps) > 1 and (steps[-2].loss_scale or 0.0) > scale


def _is_dynamic(job: Job) -> bool:
    """Whether the scale is dynamic: by the layout, or because another scale above 1 was printed.

    bf16 prints 1.0, and a constant scale never changes.
    """
    if job.layout.is_dynamic_scale is not None:
        return job.layout.is_dynamic_scale
    steps = job.attempt.steps
    near = islice(reversed(steps), _NEAR)
    known = (*near, steps[0], *islice(reversed(job.earlier_steps.values()), _NEAR))
    scales = {step.loss_scale for step in known if step.loss_scale is not None}
    return any(scale > 1.0 and scale != steps[-1].loss_scale for scale in scales)


def _collapse(job: Job, scale: float, rules: NumberSettings) -> list[Finding]:
    steps = job.attempt.steps
    if _is_at_minimum(steps, scale):
        return [_finding(job, rules, f"is at its minimum {scale:g}, and steps are still skipped")]
    if _skips_in_a_row(steps, rules) > rules.warm_down_skips:
        return [_finding(job, rules, f"is {scale:g}, and every step is skipped")]
    warm = _warm_down(job, rules)
    span = rules.collapse_window_iterations
    long = _halvings(steps, _LONG_SLIDE * span, warm)
    if long >= rules.slide_halvings:
        return [_finding(job, rules, f"was halved {long} times in one slide")]
    short = _halvings(steps, span, warm)
    if short >= rules.collapse_halvings:
        message = f"was halved {short} times in {span} steps"
        return [_finding(job, rules, message, Severity.WARNING)]
    return []


def _is_at_minimum(steps: deque[Step], lowest: float) -> bool:
    """Whether skips continue at the lowest scale, not counting the skips that led to it."""
    near = islice(reversed(steps), _NEAR)
    if lowest > 1.0:  # `--min-loss-scale` is not always 1
        stuck = list(takewhile(lambda s: s.loss_scale == lowest and is_all_skipped(s), near))
        return sum(step.skipped for step in stuck[:-1]) >= _FLOOR_SKIPS
    here = list(takewhile(lambda step: step.loss_scale == lowest, near))
    before = steps[-1 - len(here)].loss_scale if len(here) < len(steps) else None
    spent = _log2(before, lowest) if before is not None else 0
    if before is None and here[-1].first_covered <= 1:
        spent = _FROM_THE_TOP
    return sum(step.skipped for step in here) - spent >= 2


def _skips_in_a_row(steps: deque[Step], rules: NumberSettings) -> int:
    skipped = 0
    for step in takewhile(is_all_skipped, reversed(steps)):
        skipped += step.skipped
        if skipped > rules.warm_down_skips:
            break
    return skipped


def _warm_down(job: Job, rules: NumberSettings) -> int:
    """Return how many of the first lines are warm-down, which ends with a stretch without skips."""
    steps = job.attempt.steps
    first = job.attempt.first_iteration
    if first is not None and steps[0].first_covered > first + rules.warm_down_skips:
        return 0  # the warm-down lines are no longer kept
    clean, before = 0, None
    for index, step in enumerate(steps):
        is_fall = before is not None and (step.loss_scale or 0.0) < before
        clean = 0 if step.skipped or is_fall else clean + step.new
        if clean >= rules.collapse_window_iterations:
            return index
        before = step.loss_scale
    return len(steps)


def _halvings(steps: deque[Step], span: int, warm: int) -> int:
    """Count the halvings within the newest `span` iterations, after the warm-down and since the
    scale last grew."""
    lowest = highest = steps[-1].loss_scale or 0.0
    for index in range(len(steps) - 1, max(warm, len(steps) - span) - 1, -1):
        span -= steps[index].new
        before = steps[index - 1].loss_scale if index else None
        if span < 0 or before is None or before < highest:
            break
        highest = before
    return _log2(highest, lowest)


def _log2(high: float, low: float) -> int:
    is_fall = 0.0 < low < high < math.inf
    return round(math.log2(high / low)) if is_fall else 0


def _finding(
    job: Job, rules: NumberSettings, message: str, severity: Severity = Severity.CRITICAL
) -> Finding:
    steps = job.attempt.steps
    first = steps[slide_start(steps, rules.collapse_window_iterations)]
    newest = steps[-1]
    since = first.iteration - first.new + 1
    return Finding(
        detector="loss_scale_collapse",
        cause=Cause.LOSS_SCALE_COLLAPSE,
        severity=severity,
        summary=f"The loss scale {message}; the slide began in iteration {since}.",
        since_time=first.at,
        since_iteration=since,
        confidence=1.0 if severity is Severity.CRITICAL else 0.6,
        evidence=(of_step(first), of_step(newest)),
        fingerprint="loss_scale_collapse",
    )


DETECTOR = Detector("loss_scale_collapse", frozenset({Source.LOG}), detect, runbook="numerics")
