# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loss has jumped up and stays there.

Short spikes recover by themselves and are not reported. The usual loss is learnt from this attempt
and, early in an attempt, from the lines of earlier attempts. After few lines, only a jump that
neither noise nor a change of data explains counts: the loss more than doubles and exceeds
everything before it. These cases are only warnings:

- a spike from the first line of an attempt, as it may be another data set and not bad weights;
- a jump after few lines, until it has lasted for as many iterations as other spikes must, and
  always if the log shows almost nothing of the time before it;
- a loss that rises with every line, and a rise that is small in absolute terms;
- a loss that jumps from one line to the next and rises no further while the gradient norm is
  unchanged: the data may have changed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import (
    WINDOW,
    is_all_skipped,
    main_name,
    may_stand_out,
    printed_loss,
    window,
)
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step
from mwatch.stats import median, quantile, spread

_CHEAP_SHARE = 0.85  # of the ratio: noise may lift a single older line above its neighbours
_RECENT = 5
_LATELY = 10
_FEW = 3  # lines before a great jump; with fewer it is only a warning
_FEW_AFTER = 3  # lines after a great jump
_GREAT = 2.0
_FAR = 1.0
"""Absolute rise: a cross-entropy that rises by this much in few lines means that the model lost
what it had learnt."""
_ALONE = 3.0
"""Ratio and absolute rise that prove a jump if only a single line precedes it."""
_BACK = 0.8
_RISES = 0.25  # share of the jump by which a spike must go on rising
_RISES_SIGMAS = 4.0  # the same in units of noise; the larger of both applies
_MOVED = 2.0  # factor by which the gradient norm must leave its usual value, up or down
_CLIMB = 5  # lines in a row, each above the one before
_CLIMB_RATIO = 1.5  # times the lowest loss, and above everything printed before it


class _Reported(NamedTuple):
    step: Step
    loss: float


def detect(job: Job, settings: Settings) -> list[Finding]:
    steps = job.attempt.steps
    rules = settings.numbers
    loss = printed_loss(steps[-1]) if steps else None
    if loss is None or loss <= 0.0:
        return []
    earlier = _last_of_earlier(job)
    stands_out = may_stand_out(steps, loss, _GREAT, _FEW_AFTER - 1, printed_loss)
    stands_out = stands_out or (earlier is not None and loss > _GREAT * earlier)
    if stands_out and (found := _great_jump(job, rules)):
        return found
    if found := _climb(job, loss):
        return found
    if len(steps) < rules.spike_lines:
        return []
    ratio = max(1.0, rules.spike_ratio * _CHEAP_SHARE)
    if may_stand_out(steps, loss, ratio, rules.spike_lines, printed_loss):
        return _spike(job, rules)
    return _spike(job, rules) if earlier is not None and loss > ratio * earlier else []


def _last_of_earlier(job: Job) -> float | None:
    """Return the last loss of earlier attempts while this attempt has few lines."""
    if not job.earlier_steps or len(job.attempt.steps) >= WINDOW:
        return None
    return printed_loss(next(reversed(job.earlier_steps.values())))


def _spike(job: Job, rules: NumberSettings) -> list[Finding]:
    reported = _history(job)
    recent = median(each.loss for each in reported[-_RECENT:])
    cut = (quantile((each.loss for each in reported), 0.2) + recent) / 2
    start = next((i + 1 for i in range(len(reported) - 1, -1, -1) if reported[i].loss <= cut), 0)
    before = reported[max(0, start - rules.baseline_lines) : start]
    spike = reported[start:]
    if len(spike) < rules.spike_lines or len(before) < rules.baseline_lines // 2:
        return []
    usual = median(each.loss for each in before[-_LATELY:])  # it may have been falling fast
    # Measured from line to line, so that a falling loss does not count as noisy.
    noise = float(spread([later.loss - each.loss for each, later in pairwise(before)]) / 2**0.5)
    limit = max(rules.spike_ratio * usual, usual + rules.spike_sigmas * noise)
    peak = quantile((each.loss for each in spike), 0.9)
    if any(each.loss <= limit for each in spike[-rules.spike_lines :]):
        return []
    if recent < (usual + peak) / 2:
        return []  # it is recovering
    rise = recent - usual
    is_objective = usual < rules.loss_near_zero or min(each.loss for each in before) <= 0.0
    if is_objective and rise < rules.loss_near_zero:
        return []
    finding = _finding(job, spike, usual, recent)
    if rise < (rules.spike_rise_near_zero if is_objective else rules.spike_rise):
        return [replace(finding, severity=Severity.WARNING, confidence=0.6)]
    return [_or_new_data(finding, before, spike, rules)]


def _great_jump(job: Job, rules: NumberSettings) -> list[Finding]:
    """Find a jump so great that few lines prove it, and that shows no sign of recovery."""
    reported = _history(job)
    newest = [each.loss for each in reported[-_FEW_AFTER:]]
    low = (i for i in range(len(reported) - 1, -1, -1) if reported[i].loss * _GREAT < min(newest))
    start = next(low, -1) + 1
    spike = reported[start:]
    before = reported[max(0, start - rules.baseline_lines) : start]
    if len(spike) < _FEW_AFTER or not before or len(before) >= rules.baseline_lines // 2:
        return []
    usual = median(each.loss for each in before[-_LATELY:])
    changes = [later.loss - each.loss for each, later in pairwise(before)]
    noise = float(spread(changes) / 2**0.5) if changes else 0.0
    ratio, rise = (_GREAT, _FAR) if changes else (_ALONE, _ALONE)
    limit = max(ratio * usual, usual + rise, usual + rules.spike_sigmas * noise)
    highest = max(each.loss for each in before)
    if usual <= 0.0 or min(newest) <= max(limit, highest):
        return []
    peak = max(each.loss for each in spike)
    if newest[-1] < (usual + peak) / 2:
        return []
    finding = _finding(job, spike, usual, median(newest))
    is_falling = newest[-1] < _BACK * peak
    is_young = sum(each.step.new for each in spike) < rules.spike_lines
    if len(before) < _FEW or is_young or is_falling:
        return [replace(finding, severity=Severity.WARNING, confidence=0.6)]
    return [_or_new_data(finding, before, spike, rules)]


def _or_new_data(
    finding: Finding, before: list[_Reported], spike: list[_Reported], rules: NumberSettings
) -> Finding:
    """Reduce the finding to a warning if a change of data explains the jump."""
    if _goes_on_rising(before, spike) or not _keeps_its_norm(before, spike, rules):
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        summary=f"{finding.summary.rstrip('.')}; the gradient norm is as before, so it may be the "
        "data.",
        confidence=0.6,
    )


def _goes_on_rising(before: list[_Reported], spike: list[_Reported]) -> bool:
    few = max(1, min(_RECENT, len(spike) // 2))
    usual = median(each.loss for each in before[-_LATELY:])
    first = median(each.loss for each in spike[:few])
    last = median(each.loss for each in spike[-few:])
    changes = [later.loss - each.loss for each, later in pairwise(spike[few:])]
    noise = spread(changes) / 2**0.5 if len(changes) >= _RECENT else 0.0
    return last - first > max(_RISES * (first - usual), _RISES_SIGMAS * noise)


def _keeps_its_norm(before: list[_Reported], spike: list[_Reported], rules: NumberSettings) -> bool:
    """Whether the norm was always printed, is a measurement, and kept its level without a jump."""
    old, new = _norms(before), _norms(spike)
    if len(old) < max(_FEW, len(before) // 2) or len(new) < len(spike):
        return False
    if max(Counter(old).values()) * 2 > len(old):
        return False  # clipped, or a constant
    ratio = median(new[-rules.spike_lines :]) / median(old)
    return 1.0 / _MOVED < ratio < _MOVED and max(new[:_RECENT]) < _MOVED * max(old)


def _norms(lines: list[_Reported]) -> list[float]:
    norms = (each.step.grad_norm for each in lines)
    return [norm for norm in norms if norm is not None and 0.0 < norm < math.inf]


def _climb(job: Job, loss: float) -> list[Finding]:
    """Warn if the loss fell and then rises with every line, beyond everything printed before."""
    steps = job.attempt.steps
    if len(steps) < _FEW + _CLIMB:
        return []
    newest = [printed_loss(steps[i]) or 0.0 for i in range(-_CLIMB, 0)]
    if any(later <= each for each, later in pairwise(newest)) or newest[0] <= 0.0:
        return []
    reported = _history(job)
    lowest = min(range(len(reported)), key=lambda i: reported[i].loss)
    usual = reported[lowest].loss
    rising = pairwise(each.loss for each in reported[lowest:])
    if lowest < _FEW or loss < max(_CLIMB_RATIO * usual, usual + 2 * _FAR):
        return []
    if any(later <= each for each, later in rising):
        return []
    if loss <= max(each.loss for each in reported[:lowest]):
        return []
    found = _finding(job, reported[lowest + 1 :], usual, loss)
    return [replace(found, severity=Severity.WARNING, confidence=0.6)]


def _history(job: Job) -> list[_Reported]:
    """Return the newest lines with a loss, oldest first; if few, with earlier attempts."""
    lines = window(job.attempt.steps)
    if len(lines) < WINDOW:
        first = lines[0].iteration
        older = sorted(number for number in job.earlier_steps if number < first)
        lines = [job.earlier_steps[number] for number in older[len(lines) - WINDOW :]] + lines
    name = main_name(lines[-1])
    return [_Reported(step, loss) for step in lines if (loss := _of_name(step, name)) is not None]


def _of_name(step: Step, name: str | None) -> float | None:
    """Read the loss by name: where it is NaN, `printed_loss` may choose another loss."""
    loss = step.losses.get(name or "")
    if loss is None:
        return printed_loss(step)
    return loss if math.isfinite(loss) and not is_all_skipped(step) else None


def _finding(job: Job, spike: list[_Reported], usual: float, recent: float) -> Finding:
    first, newest = spike[0].step, spike[-1].step
    is_from_the_start = first.iteration <= job.attempt.steps[0].iteration
    has_resumed = job.attempt.load in ("begun", "loaded")
    return Finding(
        detector="loss_spike",
        cause=Cause.RESUME_DIVERGED if is_from_the_start and has_resumed else Cause.LOSS_SPIKE,
        severity=Severity.WARNING if is_from_the_start else Severity.CRITICAL,
        summary=(
            f"The loss jumped from {usual:.4g} to {recent:.4g} at iteration {first.iteration} "
            f"and stays there ({len(spike)} lines)."
        ),
        since_time=first.at,
        since_iteration=first.first_covered,
        confidence=0.6 if is_from_the_start else 0.9,
        evidence=(of_step(first), of_step(newest)),
        fingerprint="loss_spike/loss",
    )


DETECTOR = Detector("loss_spike", frozenset({Source.LOG}), detect, runbook="numerics")
