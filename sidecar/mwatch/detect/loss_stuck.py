# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The model does not learn although it is being trained.

Late in a healthy run the loss is flat within its noise for thousands of lines, so flatness proves
nothing. Three things do: exactly the same loss line after line, a loss that never left the value of
an untrained model, and a learning rate of 0 while samples are consumed.
"""

from __future__ import annotations

from itertools import islice

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import first_iteration, printed_loss, streak_start
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step
from mwatch.stats import median

_EXACT = frozenset({"megatron", "deepspeed"})
"""Trainers that print seven digits; NeMo and Composer print four or five, which may be equal by
chance."""
_FALLEN = 0.98
_FEW = 5


def detect(job: Job, settings: Settings) -> list[Finding]:
    steps = job.attempt.steps
    rules = settings.numbers
    if len(steps) < rules.stuck_repeats:
        return []
    newest = steps[-1]
    loss = printed_loss(newest)
    if loss is None:
        return []
    if loss == printed_loss(steps[-2]) and (found := _repeated(job, loss, rules)):
        return found
    if newest.learning_rate == 0.0 and (found := _without_rate(job, rules)):
        return found
    if loss >= rules.stuck_initial_loss and len(steps) >= rules.stuck_lines:
        return _never_fell(job, loss, rules)
    return []


def _repeated(job: Job, loss: float, rules: NumberSettings) -> list[Finding]:
    steps = job.attempt.steps
    start = streak_start(steps, lambda step: printed_loss(step) == loss)
    needed = rules.stuck_repeats if steps[-1].flavour in _EXACT else rules.stuck_lines
    if len(steps) - start < needed:
        return []
    return [_finding(job, start, f"The loss has been exactly {loss:.7g} for {{}} lines.", "same")]


def _without_rate(job: Job, rules: NumberSettings) -> list[Finding]:
    steps = job.attempt.steps
    if steps[-1].flavour not in _EXACT:
        return []  # Composer prints 1e-5 as 0.0000
    start = streak_start(steps, lambda step: step.learning_rate == 0.0 and not step.skipped_printed)
    if len(steps) - start < rules.stuck_repeats:
        return []
    return [_finding(job, start, "The learning rate has been 0 for {} lines.", "rate")]


def _never_fell(job: Job, loss: float, rules: NumberSettings) -> list[Finding]:
    attempt = job.attempt
    first = attempt.steps[0]
    begun = printed_loss(first)
    if begun is None or loss < _FALLEN * begun or attempt.load == "loaded":
        return []
    if first.first_covered > 1 or begun < rules.stuck_initial_loss:
        return []  # not an untrained model: its loss may stay where it was
    begun = _level(islice(attempt.steps, _FEW))
    if _level(islice(reversed(attempt.steps), rules.stuck_repeats)) < _FALLEN * begun:
        return []
    message = f"The loss has not left its first value {begun:.4g} for {{}} lines."
    return [_finding(job, 0, message, "initial")]


def _level(lines: islice[Step]) -> float:
    return median(loss for step in lines if (loss := printed_loss(step)) is not None)


def _finding(job: Job, start: int, message: str, kind: str) -> Finding:
    steps = job.attempt.steps
    return Finding(
        detector="loss_stuck",
        cause=Cause.LOSS_STUCK,
        severity=Severity.WARNING,
        summary=message.format(len(steps) - start),
        since_time=steps[start].at,
        since_iteration=first_iteration(steps, start),
        confidence=0.8,
        evidence=(of_step(steps[start]), of_step(steps[-1])),
        fingerprint=f"loss_stuck/{kind}",
    )


DETECTOR = Detector("loss_stuck", frozenset({Source.LOG}), detect, runbook="numerics")
