# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When an attempt last did something, and what can be said of it from then on.

How often this job prints an iteration line, learnt from its newest lines.

A gap with a save or an evaluation in it is no usual gap. Where output is buffered, lines come
in bursts and most gaps are nothing: then only the longest one tells. The printed time of a step
leaves saves and evaluations out, so it is the better guide while the batch size ramps.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import NamedTuple

from mwatch.model.job import Attempt, Job, Step
from mwatch.model.settings import HangSettings, Settings
from mwatch.stats import median

RECENT_LINES = 32
STEP_LINES = 8
_BURST = 0.5  # of what the steps take: lines that come faster than that were waiting in a buffer


class Cadence(NamedTuple):
    gap: float
    """Seconds from one line to the next, as a rule."""
    iterations: int
    """That the next line will be away from the last."""
    longest: float
    """The longest gap of late, whatever was in it."""


def cadence(job: Job) -> Cadence | None:
    """None: too little was printed to tell."""
    lines = _recent(job, RECENT_LINES)
    pairs = [(a, b) for a, b in pairwise(lines) if b.iteration > a.iteration and b.at >= a.at]
    apart = _apart(job, pairs)
    if apart is None:
        return None
    gaps = [b.at - a.at for a, b in pairs]
    plain = [pair for pair in pairs if not _holds_more_than_steps(job, *pair)]
    usual = [(b.at - a.at) / (b.iteration - a.iteration) * apart for a, b in plain]
    step = step_seconds(job)
    known = [] if step is None else [step * apart]
    if _comes_in_bursts(plain):
        known += gaps
    elif usual:
        known.append(median(usual))
    gap = max(known or gaps, default=None)
    return None if gap is None else Cadence(gap, apart, max(gaps, default=gap))


def _comes_in_bursts(pairs: list[tuple[Step, Step]]) -> bool:
    """Most lines come much sooner after the one before than their steps can have taken."""
    shares = [
        (b.at - a.at) / (b.seconds * (b.iteration - a.iteration))
        for a, b in pairs
        if b.seconds and b.seconds > 0
    ]
    return bool(shares) and median(shares) < _BURST


def _apart(job: Job, pairs: list[tuple[Step, Step]]) -> int | None:
    """The extra first line of a process stands off the interval."""
    on_time = [b.iteration - a.iteration for a, b in pairs if not a.is_first_of_process]
    if len(on_time) >= 2 or (on_time and job.layout.log_interval is None):
        return max(1, round(median(on_time)))
    interval = job.layout.log_interval
    return interval if interval and interval > 0 else None


def step_seconds(job: Job) -> float | None:
    """Of the next step: the newest lines by the sample, times the batch size that is due."""
    lines = [line for line in _recent(job, STEP_LINES) if line.seconds]
    known = [(line.seconds or 0.0, line.batch_size) for line in _warm(job, lines) or lines]
    if not known:
        return None
    sizes = [size for _, size in known if size]
    if len(sizes) < len(known):
        return median(seconds for seconds, _ in known)
    per_sample = median(seconds / size for seconds, size in known if size)
    return per_sample * _due_size(sizes)


def slowest_step(job: Job) -> float | None:
    """Of the newest lines, where calibration has learnt nothing: all were skipped, for one."""
    lines = [line for line in _recent(job, STEP_LINES) if line.seconds]
    return max((line.seconds or 0.0 for line in _warm(job, lines)), default=None)


def _warm(job: Job, lines: list[Step]) -> list[Step]:
    """Without the first two of the attempt, where others are there: a pod that tells nothing of
    the start prints the first step in them, and does not say so."""
    warm = [line for line in lines if is_warm(line)]
    cold = list(islice(job.attempt.steps, 2))
    return [line for line in warm if line not in cold] or warm


def is_warm(line: Step) -> bool:
    """Not the first step of a process, and no line that counts it once more."""
    return not line.is_first_of_process and line.new >= line.covers


def _due_size(sizes: list[int]) -> int:
    """While the batch ramps, the next line may be of the size after this one."""
    risen = [b - a for a, b in pairwise(sizes) if b > a]
    return sizes[-1] + (risen[-1] if risen else 0)


def _holds_more_than_steps(job: Job, before: Step, after: Step) -> bool:
    layout = job.layout
    done = range(before.iteration, after.iteration)
    if any(has_multiple(done, each) for each in (layout.save_interval, layout.eval_interval)):
        return True
    return any(iteration in done for iteration in job.checkpoints)


def has_multiple(iterations: range, interval: int | None) -> bool:
    return multiples(iterations, interval) > 0


def multiples(iterations: range, interval: int | None) -> int:
    """How many of these iterations an interval falls on."""
    if not interval or interval < 0 or not iterations:
        return 0
    return iterations[-1] // interval - (max(iterations[0], 1) - 1) // interval


def _recent(job: Job, count: int) -> list[Step]:
    return list(islice(reversed(job.attempt.steps), count))[::-1]


def last_iteration_at(attempt: Attempt) -> float | None:
    """When an iteration was last seen to be finished, by anybody."""
    seen = [] if attempt.line_at is None else [attempt.line_at]
    first = attempt.first_iteration
    if first is not None:
        ranks = attempt.ranks.values()
        seen += [rank.progressed_at for rank in ranks if (rank.iteration or 0) >= first]
    return max(seen, default=None)


def step_limit(job: Job, settings: Settings) -> float | None:
    """After so many seconds without an iteration the probe's reader worries; None: no data."""
    hang: HangSettings = settings.hang
    p99 = job.calibration.step_p99() or slowest_step(job)
    if p99 is None:
        return None
    return max(hang.probe_floor_seconds, hang.probe_factor * p99)


def went_on(job: Job, at: float, settings: Settings) -> bool:
    """Iterations were finished well after `at`: whatever happened then did not stop the job."""
    last = last_iteration_at(job.attempt)
    margin = step_limit(job, settings) or settings.hang.probe_floor_seconds
    return last is not None and last > at + margin


def iteration_at(attempt: Attempt, at: float) -> int | None:
    """The iteration that was being done at that moment, as far as the lines tell."""
    later = next((step for step in attempt.steps if step.at >= at), None)
    if later is not None:
        return later.first_covered
    return next_iteration(attempt)


def next_iteration(attempt: Attempt) -> int | None:
    """The one after the last that is known to be finished."""
    if attempt.iteration is not None:
        return attempt.iteration + 1
    return None if attempt.resumed_from is None else attempt.resumed_from + 1
