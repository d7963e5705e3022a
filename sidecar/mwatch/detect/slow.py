# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps have taken longer than is usual for this job for a while.

Time is measured per sample, so a batch size ramp does not count as slow. A planned increase of the
sequence length does. A job that was slow from its first line on is noticed only if an earlier
attempt was faster. A step time that grows with every line, or that is several times its former
value, is reported after few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile, islice, pairwise, takewhile
from typing import NamedTuple

from mwatch.detect.shared import evidence
from mwatch.detect.shared.progress import is_warm
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from mwatch.model.step import Pace, Step, StepWindow
from mwatch.stats import median, quantile

_USUAL = 0.25  # quantile for the baseline: a gradual slowdown must not shift its own baseline
_SAMPLE = 32
_RISE = 1.15  # growth factor from each line to the next
_RISING = 4  # lines in a row that must grow
_GROWN = 2.5  # growth factor from the first of them to the last
_JUMPED = 3  # slow lines in a row after a jump
_MUCH = 2.5  # factor by which each is slower than the slowest of as many lines before the jump
_SINCE = 64  # the jump is at most so many lines back
_WARM_UP = 2  # first lines of a process: the first includes compilation, the next may repeat it


class _Slowdown(NamedTuple):
    lines: int
    """Number of lines from the first slow line to the newest."""
    text: str
    gets_worse: bool = False


def detect(job: Job, settings: Settings) -> list[Finding]:
    rule = settings.slow
    steps = job.attempt.steps
    recent = _newest(steps, max(_RISING, rule.lines))
    if job.attempt.is_done or not all(map(_is_printed, recent[-2:])):
        return []
    slowdown = (
        _grown(recent[-_RISING:], rule.seconds)
        or _jumped(steps, rule.seconds)
        or _unusual(job, recent[-rule.lines :], settings)
    )
    return [_finding(slowdown, steps[-slowdown.lines], steps[-1])] if slowdown else []


def _newest(steps: StepWindow, count: int) -> list[Pace]:
    return [steps.pace(index) for index in range(-min(count, len(steps)), 0)]


def _grown(newest: Sequence[Pace], seconds: float) -> _Slowdown | None:
    """Each of the last few lines is much slower than the one before."""
    if len(newest) < _RISING or not all(map(_is_printed, newest)):
        return None
    if any(_cost(later) < _RISE * _cost(each) for each, later in pairwise(newest)):
        return None
    last = newest[-1]
    ratio = _cost(last) / _cost(newest[0])
    if ratio < _GROWN or _seconds([last]) < seconds:
        return None
    text = f"steps take longer with every line, by now {ratio:.2f} times as long"
    return _Slowdown(_RISING, text, gets_worse=True)


def _jumped(steps: StepWindow, seconds: float) -> _Slowdown | None:
    """Each of the last few lines is much slower than all lines just before the slowdown."""
    newest = _newest(steps, _JUMPED)
    if len(steps) < 2 * _JUMPED or not all(map(_is_printed, newest)):
        return None
    least = min(map(_cost, newest))
    sampled = range(-min(_SINCE, len(steps)), -_JUMPED, _JUMPED)  # one of every few lines
    if not any(_MUCH * _cost(steps.pace(index)) < least for index in sampled):
        return None
    older = _newest(steps, _SINCE)[:-_JUMPED]
    before = list(dropwhile(lambda pace: _MUCH * _cost(pace) >= least, reversed(older)))[:_JUMPED]
    is_usual = all(_is_printed(pace) and _MUCH * _cost(pace) < least for pace in before)
    if len(before) < _JUMPED or not is_usual:
        return None
    is_same_size = all(pace.batch_size == newest[-1].batch_size for pace in before)
    if not is_same_size or _seconds(newest) < seconds:
        return None
    ratio = median(map(_cost, newest)) / median(map(_cost, before))
    text = f"steps take {ratio:.2f} times as long as before, for {_JUMPED} lines or more"
    return _Slowdown(_JUMPED, text)


def _unusual(job: Job, newest: Sequence[Pace], settings: Settings) -> _Slowdown | None:
    """Many lines in a row are all slower than usual."""
    rule, steps = settings.slow, job.attempt.steps
    tail = list(filter(_is_printed, newest))
    baseline = _baseline(job, tail, settings) if len(tail) >= rule.lines else None
    if baseline is None:
        return None
    limit = rule.ratio * baseline
    backwards = map(steps.pace, range(len(steps) - 1, -1, -1))
    streak = list(takewhile(lambda pace: not _is_printed(pace) or _cost(pace) > limit, backwards))
    slow = list(filter(_is_printed, streak))
    if len(slow) < rule.lines or _seconds(slow) < rule.seconds:
        return None
    while not _is_printed(streak[-1]):
        streak.pop()
    ratio = median(map(_cost, slow)) / baseline
    text = f"steps take {ratio:.2f} times this job's usual time, for {len(slow)} lines"
    return _Slowdown(len(streak), text)


def _finding(slowdown: _Slowdown, first: Step, last: Step) -> Finding:
    return Finding(
        detector="slow",
        cause=Cause.SLOW,
        severity=Severity.WARNING,
        summary=slowdown.text,
        since_time=first.at,
        since_iteration=first.first_covered,
        confidence=0.8,
        evidence=(evidence.of_step(first), evidence.of_step(last)),
        comes_again=slowdown.gets_worse,
        fingerprint="slow",
    )


def _is_printed(pace: Pace) -> bool:
    return bool(pace.seconds) and is_warm(pace)


def _cost(pace: Pace) -> float:
    """Return seconds per sample; per step if no batch size is printed."""
    return (pace.seconds or 0.0) / (pace.batch_size or 1)


def _seconds(paces: Iterable[Pace]) -> float:
    return sum(pace.new * (pace.seconds or 0.0) for pace in paces)


def _baseline(job: Job, tail: Sequence[Pace], settings: Settings) -> float | None:
    """Return the usual cost in this attempt or earlier ones; None if too little is known."""
    rule, size = settings.slow, tail[-1].batch_size
    steps = job.attempt.steps
    before = range(_WARM_UP, len(steps) - rule.lines)
    sampled = map(steps.pace, before[:: max(1, len(before) // _SAMPLE)])
    usual = list(filter(_is_printed, sampled))
    if any((pace.batch_size or 0) > (size or 0) for pace in usual):  # small batches cost more each
        older = map(steps.pace, before)
        usual = [pace for pace in older if pace.batch_size == size and _is_printed(pace)]
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
