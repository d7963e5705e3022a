# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How often a job prints an iteration line, how long its steps take, when it last progressed.

Gaps that contain a save or an evaluation do not count as usual. If output is buffered, lines come
in bursts: then only the longest gap counts. The printed step time excludes saves and evaluations,
so it is the better estimate while the batch size ramps up.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import NamedTuple

from mwatch.model.job import Attempt, Job
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.step import Pace, Step
from mwatch.stats import median

RECENT_LINES = 32
STEP_LINES = 8
_COUNTED = 10
_BURST = 0.5  # share of the steps' time: lines that come faster were held in a buffer


class Cadence(NamedTuple):
    gap: float  # usual seconds between two lines
    iterations: int  # usual iterations between two lines
    longest: float  # longest recent gap, including saves and evaluations
    longest_plain: float  # the same without gaps in which a save or an evaluation was observed


def cadence(job: Job) -> Cadence | None:
    lines = _recent(job, RECENT_LINES)
    pairs = [(a, b) for a, b in pairwise(lines) if b.iteration > a.iteration and b.at >= a.at]
    apart = _apart(job, pairs)
    if apart is None:
        return None
    gaps = [b.at - a.at for a, b in pairs]
    asides = _asides(job, lines)
    plain = [
        (a, b)
        for a, b in pairs
        if not _is_between(asides, a.iteration, b.iteration)
        and not _holds_more_than_steps(job, a, b)
    ]
    usual = [(b.at - a.at) / (b.iteration - a.iteration) * apart for a, b in plain]
    step = step_seconds(job)
    known = [] if step is None else [step * apart]
    if _comes_in_bursts(plain):
        known += gaps
    elif usual:
        known.append(median(usual))
    gap = max(known or gaps, default=None)
    steps_only = [
        b.at - a.at for a, b in pairs if not _is_between(asides, a.iteration, b.iteration)
    ]
    if gap is None:
        return None
    return Cadence(gap, apart, max(gaps, default=gap), max(steps_only, default=gap))


def _comes_in_bursts(pairs: list[tuple[Step, Step]]) -> bool:
    """Whether most lines follow the previous one sooner than their steps can have taken."""
    shares = [
        (b.at - a.at) / (b.seconds * (b.iteration - a.iteration))
        for a, b in pairs
        if b.seconds and b.seconds > 0
    ]
    return bool(shares) and median(shares) < _BURST


def _apart(job: Job, pairs: list[tuple[Step, Step]]) -> int | None:
    """Return the usual iterations between lines; a process's first line may be off the interval."""
    on_time = [b.iteration - a.iteration for a, b in pairs if not a.is_first_of_process]
    if len(on_time) >= 2 or (on_time and job.layout.log_interval is None):
        return max(1, round(median(on_time)))
    interval = job.layout.log_interval
    return interval if interval and interval > 0 else None


def step_seconds(job: Job) -> float | None:
    """Estimate the next step: recent seconds per sample times the batch size that is due.

    Some trainers print a time that includes their saves, and the first line of a run includes its
    first step. If every line includes one of the two, the smaller estimate is the closer one.
    """
    lines = [line for line in _recent(job, STEP_LINES) if line.seconds]
    warm = _warm(job, lines) or lines
    asides = _asides(job, lines)
    plain = [
        line for line in lines if not _is_between(asides, line.iteration - line.new, line.iteration)
    ]
    both = [line for line in warm if line in plain]
    groups = [both] if both else [plain, warm]
    return min((_estimate(group) for group in groups if group), default=None)


def _estimate(lines: list[Step]) -> float:
    known = [(line.seconds or 0.0, line.batch_size) for line in lines]
    sizes = [size for _, size in known if size]
    if len(sizes) < len(known):
        return median(seconds for seconds, _ in known)
    per_sample = median(seconds / size for seconds, size in known if size)
    risen = [b - a for a, b in pairwise(sizes) if b > a]  # while the batch ramps up
    return per_sample * (sizes[-1] + (risen[-1] if risen else 0))


def slowest_step(job: Job) -> float | None:
    """Return the slowest recent step, for use while calibration has learnt nothing."""
    lines = [line for line in _recent(job, STEP_LINES) if line.seconds]
    return max((line.seconds or 0.0 for line in _warm(job, lines)), default=None)


def _warm(job: Job, lines: list[Step]) -> list[Step]:
    """Drop the first two lines of the attempt if there are others: in a pod whose log does not show
    the start, they include the slow first step without a mark."""
    warm = [line for line in lines if is_warm(line)]
    cold = list(islice(job.attempt.steps, 2))
    return [line for line in warm if line not in cold] or warm


def is_warm(line: Step | Pace) -> bool:
    """Whether the line is not the first of a process and repeats no printed iterations."""
    return not line.is_first_of_process and line.new >= line.covers


def _holds_more_than_steps(job: Job, before: Step, after: Step) -> bool:
    layout = job.layout
    done = range(before.iteration, after.iteration)
    if any(has_multiple(done, each) for each in (layout.save_interval, layout.eval_interval)):
        return True
    return any(iteration in done for iteration in job.checkpoints)


def _asides(job: Job, lines: list[Step]) -> list[int]:
    """Return the iterations of these lines after which log or probe showed a save or evaluation."""
    first = lines[0].iteration - lines[0].new if lines else 0
    return [iteration for iteration in job.attempt.asides if iteration >= first]


def _is_between(asides: list[int], begin: int, end: int) -> bool:
    return any(begin <= iteration < end for iteration in asides)


def has_multiple(iterations: range, interval: int | None) -> bool:
    return multiples(iterations, interval) > 0


def multiples(iterations: range, interval: int | None) -> int:
    if not interval or interval < 0 or not iterations:
        return 0
    return iterations[-1] // interval - (max(iterations[0], 1) - 1) // interval


def _recent(job: Job, count: int) -> list[Step]:
    return list(islice(reversed(job.attempt.steps), count))[::-1]


def last_iteration_at(attempt: Attempt) -> float | None:
    seen = [] if attempt.line_at is None else [attempt.line_at]
    first = attempt.first_iteration
    if first is not None:
        ranks = attempt.ranks.values()
        seen += [rank.progressed_at for rank in ranks if (rank.iteration or 0) >= first]
    return max(seen, default=None)


def step_limit(job: Job, settings: Settings) -> float | None:
    hang = settings.hang
    p99 = job.calibration.step_p99() or slowest_step(job)
    if p99 is None:
        return None
    return max(hang.probe_floor_seconds, hang.probe_factor * p99)


def counted_step(job: Job, settings: Settings) -> float | None:
    """Return the mean step time by the probe's count alone, for use before any line shows a step;
    None if it counted too few. One polling interval is added, as it reads the count once a second.
    """
    attempt = job.attempt
    if attempt.first_iteration is None or attempt.iteration is None:
        return None
    done = attempt.iteration - attempt.first_iteration
    if attempt.phase is not JobPhase.TRAINING or done < _COUNTED:
        return None
    seconds = max(attempt.progress_at - attempt.phase_since, 0.0)
    return (seconds + settings.hang.look_seconds) / done


def went_on(job: Job, at: float, settings: Settings) -> bool:
    """Whether iterations were finished well after `at`: the event did not stop the job."""
    last = last_iteration_at(job.attempt)
    margin = step_limit(job, settings) or settings.hang.probe_floor_seconds
    return last is not None and last > at + margin


def iteration_at(attempt: Attempt, at: float) -> int | None:
    """Return the iteration that was in progress at that time, as far as the lines show."""
    later = next((step for step in attempt.steps if step.at >= at), None)
    if later is not None:
        return later.first_covered
    return next_iteration(attempt)


def next_iteration(attempt: Attempt) -> int | None:
    if attempt.iteration is not None:
        return attempt.iteration + 1
    return None if attempt.resumed_from is None else attempt.resumed_from + 1
