# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iterations that were repeated after a resume give different numbers than before.

Only lines that cover the same iterations with the same batch size are compared. Learning rate and
consumed samples must agree; loss and gradient norm may differ by part of their noise, since kernels
do not always add in the same order. Steps skipped by a loss scaler shift the learning rate, which
is then not compared. The summary names the likely reason.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from mwatch.detect.shared.evidence import of_step
from mwatch.detect.shared.steps import printed_loss
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import NumberSettings, Settings
from mwatch.model.step import Step
from mwatch.stats import spread

_RATE_DIGITS = 2e-3  # old releases print the rate with four digits
_NORM_RATIO = 2.0
_WALK = 256
_MEAN_OF = 16  # at most this many lines whose mean difference is compared with the noise


class _Difference(NamedTuple):
    name: str
    guess: str
    old: Step
    new: Step


def detect(job: Job, settings: Settings) -> list[Finding]:
    steps = job.attempt.steps
    if not job.earlier_steps or not steps:
        return []
    if _was_reset(job):
        return [_of_reset(job)]
    last = _last_recomputed(job)
    if last is None:
        return []
    rules = settings.numbers
    difference = _exact(job, last) or _noisy(job, last, rules)
    return [] if difference is None else [_finding(difference)]


def _was_reset(job: Job) -> bool:
    """Whether a checkpoint was loaded but iterations restart at 0: `--finetune` on a resume."""
    attempt = job.attempt
    is_reset = attempt.load == "loaded" and attempt.resumed_from == 0
    return is_reset and any(past.saves_done for past in job.past)


def _of_reset(job: Job) -> Finding:
    return Finding(
        detector="resume_diverged",
        cause=Cause.RESUME_DIVERGED,
        severity=Severity.WARNING,
        summary="A checkpoint was loaded, but iterations are counted from 0 again: a flag of a "
        "first start (--finetune) was left on.",
        since_time=job.attempt.started_at,
        since_iteration=1,
        confidence=0.8,
        evidence=(of_step(job.attempt.steps[0]),),
        fingerprint="resume_diverged/reset",
    )


def _last_recomputed(job: Job) -> int | None:
    """Return the index of the newest line whose iteration an earlier attempt printed too."""
    steps, earlier = job.attempt.steps, job.earlier_steps
    if steps[-1].iteration in earlier:
        return len(steps) - 1
    furthest = next(reversed(earlier))
    if not steps[0].iteration <= furthest < steps[-1].iteration:
        return None
    index = bisect_right(steps, furthest, key=lambda step: step.iteration) - 1
    return index if steps[index].iteration in earlier else None


def _pair(job: Job, index: int) -> tuple[Step, Step] | None:
    """Return the old and the new line, if they can be compared."""
    new = job.attempt.steps[index]
    old = job.earlier_steps.get(new.iteration)
    if old is None or old.covers != new.covers or old.batch_size != new.batch_size:
        return None
    return None if _was_bad(job, old) else (old, new)


def _was_bad(job: Job, old: Step) -> bool:
    """Whether a rollback discarded the old line as bad: the new one is meant to differ."""
    return any(
        rollback.first_bad is not None and old.at <= rollback.at
        and old.iteration >= rollback.first_bad
        for rollback in job.timeline.rollbacks
    )  # fmt: skip


def _exact(job: Job, last: int) -> _Difference | None:
    pair = _pair(job, last)
    found = pair and _exact_difference(job, *pair)
    while found and last > 0:
        last -= 1
        pair = _pair(job, last)
        earlier = pair and _exact_difference(job, *pair)
        if not earlier:
            break
        found = earlier
    return found or None


def _exact_difference(job: Job, old: Step, new: Step) -> _Difference | None:
    consumed = (old.consumed_samples, new.consumed_samples)
    if None not in consumed and consumed[0] != consumed[1]:
        return _Difference("consumed samples", "the data position", old, new)
    before, now = old.learning_rate, new.learning_rate
    attempts = (job.attempt, *job.past)
    has_skips = (old.loss_scale or 0.0) > 1.0 or any(each.skipped for each in attempts)
    if before is None or now is None or has_skips:
        return None
    if math.isclose(before, now, rel_tol=_RATE_DIGITS, abs_tol=1e-12):
        return None
    return _Difference("learning rate", "the optimizer or scheduler state", old, new)


def _noisy(job: Job, last: int, rules: NumberSettings) -> _Difference | None:
    loss = _Noisy(job, rules, printed_loss, rules.diverged_ratio)
    if first := loss.first(last):
        return _Difference("loss", "the weights, the data or a silent corruption", *first)
    norm = _Noisy(job, rules, _norm, _NORM_RATIO)
    if first := norm.first(last):
        return _Difference("gradient norm", "the weights or the data", *first)
    return None


def _norm(step: Step) -> float | None:
    return step.grad_norm if step.grad_norm and math.isfinite(step.grad_norm) else None


class _Noisy:
    def __init__(
        self,
        job: Job,
        rules: NumberSettings,
        read: Callable[[Step], float | None],
        least_ratio: float,
    ) -> None:
        self._job = job
        self._rules = rules
        self._read = read
        self._ratio = least_ratio
        self._sigma: float | None = None

    def first(self, last: int) -> tuple[Step, Step] | None:
        """Return the first pair that differs; None unless enough comparable lines in a row do."""
        gaps: list[float] = []
        found = None
        is_diverged = False
        for index in range(last, max(-1, last - _WALK), -1):
            pair = _pair(self._job, index)
            if pair is None:
                continue
            gap = self._gap(*pair)
            if gap is None:
                break
            gaps.append(gap)
            found = pair
            is_diverged = is_diverged or self._is_beyond_noise(gaps, pair[0])
        return found if is_diverged else None

    def _gap(self, old: Step, new: Step) -> float | None:
        """Return by how much the new value is worse; None if it is not worse, or not printed.

        A better value only shows that an earlier spike did not recur.
        """
        before, now = self._read(old), self._read(new)
        if before is None or now is None or now - before <= self._ratio * abs(before):
            return None
        return now - before

    def _is_beyond_noise(self, gaps: list[float], around: Step) -> bool:
        """Whether the mean gap exceeds the noise: the same batches differ less than other ones."""
        if not self._rules.diverged_lines <= len(gaps) <= _MEAN_OF:
            return False
        if self._sigma is None:
            self._sigma = self._noise(around)
        limit = self._rules.diverged_sigmas * self._sigma / math.sqrt(len(gaps))
        return sum(gaps) / len(gaps) > limit

    def _noise(self, around: Step) -> float:
        """Measure the line-to-line noise of the earlier lines nearest to that one."""
        nearest = sorted(self._job.earlier_steps, key=lambda n: abs(n - around.iteration))
        chosen = sorted(nearest[: self._rules.baseline_lines])
        reported = [self._read(self._job.earlier_steps[number]) for number in chosen]
        known = [value for value in reported if value is not None]
        changes = [later - value for value, later in pairwise(known)]
        return float(spread(changes) / 2**0.5) if changes else math.inf


def _finding(difference: _Difference) -> Finding:
    name, guess, old, new = difference
    since = new.first_covered
    return Finding(
        detector="resume_diverged",
        cause=Cause.RESUME_DIVERGED,
        severity=Severity.WARNING,
        summary=(
            f"After the resume the {name} differs from iteration {since} on: "
            f"{guess} may not be what it was."
        ),
        since_time=new.at,
        since_iteration=since,
        confidence=0.7,
        evidence=(of_step(old), of_step(new)),
        fingerprint=f"resume_diverged/{name}",
    )


DETECTOR = Detector("resume_diverged", frozenset({Source.LOG}), detect, runbook="checkpoint")
