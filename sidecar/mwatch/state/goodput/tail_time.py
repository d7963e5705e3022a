# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify the time after the last line: at the end of an attempt, or now.

With the probe the time of the last finished iteration is known. The log alone shows only that the
next line did not come. An attempt that ended before the line was due is assumed to have worked
until its end; one that was silent for longer stopped at some point since the last line, and half of
the usual gap is the best estimate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mwatch.model.goodput import GoodputLedger, Open, Parts, Spent, StepShares
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.state.goodput.step_time import (
    SAME_MOMENT,
    add,
    add_all,
    add_steps,
    fit,
    redone_share,
    spans_within,
    split_stall,
    split_untimed,
    usual_step,
)

_LATE = 1.3  # a line may be late by this factor, plus `_GRACE_SECONDS`, without a stall
_GRACE_SECONDS = 2.0
_AFTER_STEPS = frozenset({Spent.IDLE, Spent.RESTARTING})
PHASES = {
    JobPhase.QUEUED: Spent.QUEUED,
    JobPhase.SCHEDULING: Spent.QUEUED,
    JobPhase.STARTING: Spent.STARTING,
    JobPhase.LOADING: Spent.LOADING,
    JobPhase.FIRST_STEP: Spent.FIRST_STEP,
    JobPhase.SAVING: Spent.SAVING,
    JobPhase.ASYNC_FINALIZE: Spent.SAVING,
    JobPhase.EVALUATING: Spent.EVALUATING,
}


class Tail(NamedTuple):
    parts: Parts
    reported: float  # the last iteration of a line
    reached: float  # the last iteration that was done, by estimate; 0: unknown
    worked_seconds: float
    unobserved_seconds: float  # work that is likely after `at`, up to the unobserved end


def read_tail(job: Job, at: float, *, goes_on: bool = False) -> Tail:
    """Split the time from `booked_at` to `at`; changes nothing.

    `goes_on`: the attempt has not ended, so a step that is under way and not late is training.
    """
    ledger, opened = job.ledger, job.ledger.open
    begin = ledger.booked_at
    parts: Parts = {}
    if opened.head is not None:
        begin = min(max(opened.head.ended_at, begin), at)
        add(parts, opened.head.spent, begin - ledger.booked_at)
    span = at - begin
    spans, untimed = spans_within(opened, begin, at)
    if job.attempt.evaluations > opened.evaluations and opened.phase is not JobPhase.EVALUATING:
        untimed.add(Spent.EVALUATING)
    add_all(parts, spans)
    free = span - sum(spans.values())
    phase = spent_in(job, opened.phase)
    inside = 0.0
    if phase is not None:
        inside = min(max(at - max(opened.phase_began, begin), 0.0), free)
        _add_phase(ledger, parts, phase, inside, at)
    rest = free - inside
    has_ended = any(each.spent in _AFTER_STEPS for each in opened.spans)
    is_cut = phase is not None or has_ended
    goes_on = goes_on and not is_cut
    is_on_time = goes_on and _is_on_time(job, rest, at)
    trained = rest if is_on_time else _trained(job, rest, at, is_cut=is_cut)
    step, reported = ledger.pace.step_seconds, _reported(job.attempt)
    if opened.stall is None and opened.head is None and not is_on_time:
        has_mark = not is_cut and not job.sees(Source.PROBE) and _marked_at(opened) is not None
        sure = _since_a_mark(job, at) if has_mark else _finished(job) * (step or 0.0)
        trained += _take_from(parts, sure - (trained if has_mark else rest))
    iterations = trained / step if step else 0.0
    redone = redone_share(ledger.pace, reported + iterations, iterations)
    shares = StepShares(redone, bad=1.0 if ledger.pace.is_bad else 0.0)
    slow = trained * shares.good * _slow_share(job)
    add(parts, Spent.SLOW, slow)
    add_steps(parts, trained, shares)
    if slow > 0:
        parts[Spent.TRAINING] -= slow
    _add_lost(job, parts, untimed, rest - trained, at - inside, goes_on=goes_on)
    reached = reported + iterations if reported or job.attempt.steps else 0.0
    parts = fit(parts, at - ledger.booked_at, Spent.IDLE)
    return Tail(parts, reported, reached, trained, _unobserved(job, rest))


def _is_on_time(job: Job, rest: float, at: float) -> bool:
    """Whether nothing shows that the steps since the last line have stopped."""
    opened, pace, total = job.ledger.open, job.ledger.pace, job.layout.total_iterations
    if opened.stall is not None or _died_at(job, at) < at:
        return False
    if total is not None and _reported(job.attempt) >= total:
        return False
    step = max(pace.step_seconds or 0.0, pace.newest_seconds or 0.0)
    step = step or job.calibration.rises.median() or math.inf
    if job.sees(Source.PROBE):
        return at - _last_step_at(job) <= step * _LATE + _GRACE_SECONDS
    return rest <= step * (pace.interval or 1) * _LATE + _GRACE_SECONDS


def _slow_share(job: Job) -> float:
    """Return the share of steps that was slow at the last line."""
    pace, usual = job.ledger.pace, usual_step(job)
    if usual is None or not pace.newest_seconds or not pace.is_slow:
        return 0.0
    return max(0.0, 1.0 - usual / pace.newest_seconds)


def _finished(job: Job) -> float:
    """Return how many iterations after the last line are known from a probe, a save or the end."""
    attempt, total = job.attempt, job.layout.total_iterations
    if not attempt.steps:
        return 0.0
    reported = _reported(attempt)
    saved = [known.iteration for known in job.checkpoints.values()
             if known.attempt == attempt.number]  # fmt: skip
    saved += [attempt.save.iteration or 0] if attempt.save is not None else []
    left = attempt.exit.exit.iteration if attempt.exit is not None else None
    named = (attempt.iteration or 0, left or 0, attempt.evaluated_after or 0, *saved)
    seen = max(0.0, max(named) - reported)
    if not attempt.is_done or total is None:
        return seen
    unprinted = (job.ledger.pace.interval or 1) - 1  # one more, and a line would have come
    return max(seen, min(total - reported, unprinted))


def _take_from(parts: Parts, seconds: float) -> float:
    """Shorten saves and evaluations that look too long; return the seconds taken.

    Clocks differ, and an evaluation without an observed begin seems to begin at the previous line.
    """
    total = sum(parts.values())
    taken = min(max(seconds, 0.0), total)
    for spent in parts:
        parts[spent] *= 1 - taken / total
    return taken


def spent_in(job: Job, phase: JobPhase) -> Spent | None:
    """Return the category of a phase; None: its time is classified by lines."""
    if phase is JobPhase.STOPPING:
        return Spent.IDLE if job.attempt.is_done else Spent.RESTARTING
    return PHASES.get(phase)


def _add_phase(
    ledger: GoodputLedger, parts: Parts, spent: Spent, seconds: float, at: float
) -> None:
    stall = ledger.open.stall
    if stall is None:
        add(parts, spent, seconds)
    else:
        add_all(parts, split_stall(stall, at - seconds, at))


def _reported(attempt: Attempt) -> float:
    if attempt.steps:
        return attempt.steps[-1].iteration
    return (attempt.first_iteration or 1) - 1


def _gap(ledger: GoodputLedger) -> float | None:
    pace = ledger.pace
    return None if pace.step_seconds is None else pace.step_seconds * (pace.interval or 1)


def _trained(job: Job, rest: float, at: float, *, is_cut: bool) -> float:
    """Return the seconds of steps. `is_cut`: a phase that follows finished steps has begun."""
    ledger, attempt = job.ledger, job.attempt
    total = job.layout.total_iterations
    if total is not None and _reported(attempt) >= total:
        return 0.0
    if is_cut:
        return min(rest, _most_unprinted(job))
    if job.sees(Source.PROBE):
        worked = max(0.0, rest - (at - _last_step_at(job)))
        step = ledger.pace.step_seconds
        if step is None or not attempt.steps:
            return worked
        if len(attempt.steps) == 1 and usual_step(job) is None:  # the pace is only a guess
            return worked if _finished(job) else 0.0
        return min(worked, _finished(job) * step)  # the probe's clock may be ahead of the log's
    gap = _gap(ledger)
    if gap is None:
        return 0.0 if ledger.open.stall is not None else rest
    alive = max(0.0, rest - (at - _died_at(job, at)))
    if ledger.open.stall is None and _marked_at(ledger.open) is not None:
        return min(_since_a_mark(job, at), alive)
    if ledger.open.stall is not None or alive > gap * _LATE + _GRACE_SECONDS:
        alive = min(alive, gap / 2)
    unprinted = (ledger.pace.interval or 1) - 1  # one more, and a line would have come
    return min(_whole_steps(ledger, alive), unprinted * (ledger.pace.step_seconds or 0.0))


def _marked_at(opened: Open) -> float | None:
    """Return when the last save or evaluation since the line ended; None: none did, or unknown."""
    ends = [span.end for span in opened.spans
            if span.spent not in _AFTER_STEPS and span.end - span.begin > SAME_MOMENT]  # fmt: skip
    return max(ends, default=None)


def _since_a_mark(job: Job, at: float) -> float:
    """Return the seconds of steps since the last line, if a save or an evaluation followed it.

    The save or the result names the iterations before it; after it there were fewer steps than a
    line needs.
    """
    pace, known, step = job.ledger.pace, _finished(job), job.ledger.pace.step_seconds or 0.0
    since = _died_at(job, at) - (_marked_at(job.ledger.open) or at)
    left = max(0.0, (pace.interval or 1) - 1 - known) * step
    return known * step + min(_whole_steps(job.ledger, max(0.0, since)), left)


def _most_unprinted(job: Job) -> float:
    """Return the most seconds of steps that may be done without a line."""
    attempt, pace = job.attempt, job.ledger.pace
    if pace.step_seconds is None or not attempt.steps:
        return math.inf
    if attempt.is_done or job.sees(Source.PROBE) or _ends_with_save(job):
        return _finished(job) * pace.step_seconds
    return max(_finished(job), (pace.interval or 1) - 1) * pace.step_seconds * _LATE


def _ends_with_save(job: Job) -> bool:
    """Whether the attempt made no step after its save, which names the last iteration.

    The remaining time before the save is an evaluation of which only the end is known.
    """
    opened, step = job.ledger.open, job.ledger.pace.step_seconds or 0.0
    if job.attempt.evaluations == opened.evaluations:
        return False
    if opened.phase is JobPhase.SAVING:
        return job.attempt.save is not None and job.attempt.save.iteration is not None
    saved = max((span.end for span in opened.spans if span.spent is Spent.SAVING), default=None)
    is_over = opened.phase is JobPhase.STOPPING and saved is not None
    return is_over and opened.phase_began - (saved or 0.0) < step


def _last_step_at(job: Job) -> float:
    """Return when the last step or phase ended, by the probe: a phase is work of all ranks too."""
    known = [rank.progressed_at for rank in job.attempt.ranks.values() if rank.iteration]
    return max([*known, job.ledger.booked_at, job.ledger.open.phase_began])


def _whole_steps(ledger: GoodputLedger, seconds: float) -> float:
    """Round down to whole steps: a step that was not finished is lost."""
    step = ledger.pace.step_seconds
    return seconds // step * step if step else seconds


def _died_at(job: Job, at: float) -> float:
    """Return when the first error since the last line was printed, else `at`.

    An error without a timestamp has the time of the line before it, and is ignored.
    """
    attempt, begin = job.attempt, job.ledger.booked_at
    errors = [seen.at for seen in attempt.errors] + [seen.at for seen in attempt.faults]
    return min((each for each in errors if begin < each <= at), default=at)


def _add_lost(
    job: Job,
    parts: Parts,
    untimed: set[Spent],
    seconds: float,
    until: float,
    *,
    goes_on: bool,
) -> None:
    """Add the time that was neither a phase nor steps."""
    opened = job.ledger.open
    if seconds <= 0:
        return
    if opened.stall is not None:
        add_all(parts, split_stall(opened.stall, until - seconds, until))
    elif untimed:
        add_all(parts, split_untimed(untimed, seconds, job.calibration))
    elif job.attempt.is_done:
        add(parts, Spent.IDLE, seconds)
    else:
        dying = min(seconds, until - _died_at(job, until))
        hung = seconds - dying
        step = job.ledger.pace.step_seconds or 0.0
        if hung <= step * _LATE + _GRACE_SECONDS and not goes_on:
            dying, hung = seconds, 0.0
        add(parts, Spent.RESTARTING, dying)
        add(parts, Spent.HANG_UNDETECTED, hung)


def _unobserved(job: Job, rest: float) -> float:
    """Return the likely seconds of work after the last line: half of the usual gap, on average."""
    attempt, gap = job.attempt, _gap(job.ledger)
    is_quiet = rest < SAME_MOMENT and job.ledger.open.phase is JobPhase.TRAINING
    if not is_quiet or gap is None or usual_step(job) is None or job.sees(Source.PROBE):
        return 0.0
    return 0.0 if attempt.is_done or attempt.exit is not None else gap / 2
