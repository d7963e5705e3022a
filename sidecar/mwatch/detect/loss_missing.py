# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loss is NaN: printed as such, or missing from the line, as Megatron hides it.

Megatron prints a mean loss only if it is not below zero, and comparisons with NaN are false, so the
field vanishes while both counters stay 0. A line with only skipped steps proves nothing. A run that
never printed a loss is ignored, as its format may be unknown, unless its gradients are NaN too or
its lines have every other field of Megatron's. A mean that turned negative without having been near
zero is distinguished by its gradients: a NaN loss has NaN gradients, so the first lines whose
gradient norm is finite and changes give a warning, and more such lines show a sound run.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice, pairwise

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import (
    finite_names,
    first_iteration,
    is_all_skipped,
    main_loss,
    printed_loss,
    streak_start,
)
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step
from mwatch.stats import median, spread

_HIDES_NAN = frozenset({"megatron", "bridge", "deepspeed"})
_BEFORE = 16  # lines before the gap that show whether this run prints its loss each time
_FEW = 5
_MOST = 0.75
_RECENT = 32
_REACH = 2.0  # lines over which the recent fall is extrapolated, as it may speed up
_SOUND = 3


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    steps = attempt.steps
    if steps and printed_loss(steps[-1]) is None:
        return _missing(job, settings.numbers)
    bad = finite_names(steps[-1], is_finite=False) if steps else []
    found = [_side_loss(steps, bad[0])] if bad else []
    if attempt.bad_validation_at is None:
        return found
    return [_bad_validation(attempt.bad_validation_at, steps[-1] if steps else None), *found]


def _missing(job: Job, rules: NumberSettings) -> list[Finding]:
    steps = job.attempt.steps
    if not any(map(_is_bad, islice(reversed(steps), _RECENT))):
        return []  # nothing but skipped steps lately: see loss_scale_collapse
    start = streak_start(steps, lambda step: printed_loss(step) is None)
    first = next((index for index in range(start, len(steps)) if _is_bad(steps[index])), None)
    if first is None or not _is_enough(job, start, rules):
        return []
    bad, newest = steps[first], steps[-1]
    since = _since(job, start, first)
    is_sure = main_loss(bad) is not None or not _has_finite_gradients(newest)
    doubt = _doubt(job, start, bad)
    how = "is not printed any more" if main_loss(bad) is None else f"is {main_loss(bad)}"
    shown = sorted({*([start - 1] if start else []), first, len(steps) - 1})
    return [
        Finding(
            detector="loss_missing",
            cause=Cause.NAN,
            severity=Severity.WARNING if doubt else Severity.CRITICAL,
            summary=f"The loss {how} since iteration {since}: it is NaN or infinite{doubt}.",
            since_time=bad.at,
            since_iteration=since,
            confidence=0.6 if doubt else 1.0 if is_sure else 0.9,
            evidence=tuple(of_step(steps[index]) for index in shown),
            fingerprint="nan/loss",
        )
    ]


def _since(job: Job, start: int, first: int) -> int:
    """Return the first bad iteration, of a line or of a validation after the last good line."""
    steps = job.attempt.steps
    validated = job.attempt.bad_validation_at
    since = first_iteration(steps, first)
    if validated is None or validated < (steps[start - 1].iteration if start else 1):
        return since
    return min(since, validated)


def _is_bad(step: Step) -> bool:
    """Whether the line shows that the loss is not finite."""
    loss = main_loss(step)
    if loss is not None:
        return not math.isfinite(loss)
    return step.flavour in _HIDES_NAN and not is_all_skipped(step)


def _is_enough(job: Job, start: int, rules: NumberSettings) -> bool:
    steps = job.attempt.steps
    trailing = (step for step in islice(reversed(steps), len(steps) - start) if _is_bad(step))
    bad = list(islice(trailing, rules.loss_missing_unsure_lines))
    needed = rules.loss_missing_lines
    if _is_unsure(job, bad[0]):
        needed = max(needed, rules.loss_missing_unsure_lines)
    if len(bad) < needed:
        return False
    if main_loss(bad[0]) is not None:
        return True
    if _has_finite_gradients(bad[0]) and _may_be_negative(job, start, rules):
        return False
    if len(bad) >= rules.loss_missing_unsure_lines and _has_sound_gradients(job, start):
        return False
    if _used_to_print(job, start) or not math.isfinite(bad[0].grad_norm or 0.0):
        return True
    return len(bad) >= rules.loss_missing_unsure_lines and _never_printed(job, start)


def _never_printed(job: Job, start: int) -> bool:
    """Whether all lines are Megatron's own and complete except for the loss, from the first one on:
    a mean over batches is not negative every time."""
    steps = job.attempt.steps
    is_first = start == 0 and steps[0].first_covered <= (job.attempt.first_iteration or 0)
    if not is_first or any(step.losses for step in job.earlier_steps.values()):
        return False
    return all(_is_complete(step) and not step.losses for step in (steps[0], steps[-1]))


def _is_complete(step: Step) -> bool:
    fields = (step.loss_scale, step.learning_rate, step.seconds, step.batch_size)
    return step.flavour == "megatron" and all(each is not None for each in fields)


def _is_unsure(job: Job, step: Step) -> bool:
    if main_loss(step) is None:  # a truncated line lacks more than the loss
        return step.loss_scale is None and step.grad_norm is None
    is_scaled = job.layout.precision == "fp16" or (step.loss_scale or 0.0) > 1.0
    return is_scaled and step.flavour not in ("megatron", "bridge")


def _may_be_negative(job: Job, start: int, rules: NumberSettings) -> bool:
    """Whether the loss was near zero: by value, relative to its changes from line to line, or
    because it was falling towards zero. Reinforcement learning objectives and likelihoods may have
    either sign."""
    steps = job.attempt.steps
    reported = [printed_loss(steps[index]) for index in range(max(0, start - _BEFORE), start)]
    known = [loss for loss in reported if loss is not None]
    if not known or reported[-1] is None:
        return False
    changes = [later - each for each, later in pairwise(known)]
    noise = spread(changes) / 2**0.5 if len(changes) >= _FEW else 0.0
    near = max(rules.loss_near_zero, rules.loss_zero_sigmas * noise)
    fall = min(0.0, median(changes[-_FEW:])) if changes else 0.0
    is_falling_to_it = fall < 0.0 and known[-1] + _REACH * fall < near
    return is_falling_to_it or abs(median(known[-_FEW:])) < near


def _used_to_print(job: Job, start: int) -> bool:
    """Whether most lines before the gap had a loss; in a new attempt, the last earlier lines."""
    steps = job.attempt.steps
    before = [steps[index] for index in range(max(0, start - _BEFORE), start)]
    before = before or list(islice(reversed(job.earlier_steps.values()), _BEFORE))
    counted = [step for step in before if not is_all_skipped(step)]
    reported = sum(printed_loss(step) is not None for step in counted)
    return reported > 0 and reported >= _MOST * len(counted)


def _has_finite_gradients(step: Step) -> bool:
    return step.grad_norm is not None and math.isfinite(step.grad_norm)


def _doubt(job: Job, start: int, bad: Step) -> str:
    """Return why the loss may be sound after all; empty if nothing suggests it."""
    if main_loss(bad) is None:
        is_sound = _has_sound_gradients(job, start)
        return ", or below zero, as the gradients are finite" if is_sound else ""
    newest = job.attempt.steps[-1]
    is_from_the_start = start == 0 and not job.earlier_steps
    others = finite_names(newest) if is_from_the_start and newest.grad_norm is None else []
    return f", and {others[0]} is finite" if others else ""


def _has_sound_gradients(job: Job, start: int) -> bool:
    """Whether the norms of the newest bad lines are finite and vary.

    A single bad line is compared with the line before it.
    """
    steps = job.attempt.steps
    missing = (step for step in islice(reversed(steps), len(steps) - start) if _is_bad(step))
    near = list(islice(missing, _SOUND))
    if len(near) < 2:
        before = steps[start - 1] if start else next(reversed(job.earlier_steps.values()), None)
        near += [before] if before else []
    norms = {step.grad_norm or 0.0 for step in near}
    return len(norms) > 1 and all(0.0 < norm < math.inf for norm in norms)


def _side_loss(steps: deque[Step], name: str) -> Finding:
    """Report a side loss that is not finite, for information only: the trained loss is finite."""
    newest = steps[-1]
    start = streak_start(steps, lambda step: not math.isfinite(step.losses.get(name, 0.0)))
    since = first_iteration(steps, start)
    return Finding(
        detector="loss_missing",
        cause=Cause.NAN,
        severity=Severity.INFO,
        summary=f"{name} is {newest.losses[name]} since iteration {since}; the trained loss is "
        "finite.",
        since_time=steps[start].at,
        since_iteration=since,
        confidence=0.5,
        evidence=tuple(of_step(steps[index]) for index in sorted({start, len(steps) - 1})),
        fingerprint="nan/side",
    )


def _bad_validation(iteration: int, newest: Step | None) -> Finding:
    """Report a bad validation loss, at most as a warning: an empty validation set gives NaN too. If
    the next training loss is finite, the weights are sound."""
    is_sound = newest is not None and newest.iteration > iteration
    text = f"The validation loss at iteration {iteration} is NaN or infinite"
    fix = "; the training loss stayed finite, so look at the validation data"
    return Finding(
        detector="loss_missing",
        cause=Cause.NAN,
        severity=Severity.INFO if is_sound else Severity.WARNING,
        summary=f"{text}{fix if is_sound else ''}.",
        since_time=newest.at if newest else None,
        since_iteration=iteration,
        confidence=0.5,
        evidence=(of_step(newest),) if newest else (),
        fingerprint="nan/validation",
    )


DETECTOR = Detector("loss_missing", frozenset({Source.LOG}), detect, runbook="numerics")
