# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Book wall time into categories at each change of the job; the time is always an argument.

Time in the training loop is booked when an iteration line accounts for it, all other time when its
phase ends. Work on an iteration that was never finished is not visible and counts as lost.
"""

from __future__ import annotations

from mwatch.model.goodput import (
    BookedSpan,
    BookedStall,
    GoodputLedger,
    Head,
    Open,
    Parts,
    Spent,
    StepShares,
    TimeSpent,
    Unjudged,
    UnknownReach,
)
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.model.step import Step
from mwatch.state.goodput.line_time import RECLAIMED, book_late_line, book_line, book_usual_line
from mwatch.state.goodput.step_time import (
    SAME_MOMENT,
    SKEW,
    add,
    fit,
    guess_by_first_line,
    judge,
    leave_unjudged,
    pace_by_save,
    redone_share,
    spans_within,
    usual_step,
)
from mwatch.state.goodput.tail_time import PHASES, Tail, read_tail, spent_in

_ASIDE = frozenset(
    {JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE, JobPhase.STOPPING}
)
_BEFORE_STEPS = frozenset(PHASES) - _ASIDE
_MAX_SPANS = 512


def attempt_started(job: Job, at: float) -> None:
    """Book the time between the last attempt and `job.attempt`, which is new."""
    ledger = job.ledger
    ledger.weigh(job.layout.world_size)
    if ledger.started_at is None:
        ledger.begin(at)
    at = max(at, ledger.booked_at)
    _book_between(ledger, at)
    ledger.pace.start_over()
    ledger.is_closed = ledger.is_over = False
    ledger.open = Open(job.attempt.phase, at, evaluations=job.attempt.evaluations)


def _book_between(ledger: GoodputLedger, at: float) -> None:
    gap = at - ledger.booked_at
    pace = ledger.pace
    worked = min(pace.unobserved_seconds, gap / 2)
    pace.unobserved_seconds = 0.0
    if worked > 0 and pace.step_seconds:
        again = min(max(pace.redone_until - pace.furthest, 0.0) * pace.step_seconds, worked)
        pace.furthest += worked / pace.step_seconds
        parts = {Spent.RECOMPUTED: again, Spent.TRAINING: worked - again}
    else:
        parts, worked = {}, 0.0
    waited = Spent.IDLE if ledger.is_over else Spent.RESTARTING
    parts[waited] = gap - worked
    ledger.book(parts, at)


def phase_changed(job: Job, at: float, before: JobPhase) -> None:
    """Book the time of the phase `before`; `job.attempt.phase` is the new one, from `at` on."""
    ledger = job.ledger
    if ledger.started_at is None or ledger.is_closed:
        return
    at = max(at, ledger.booked_at)
    _book_head(ledger)
    phase = job.attempt.phase
    if phase is JobPhase.STOPPING:
        _judge_by_few(job)
    if phase is JobPhase.ENDED:
        _close(job, at)
    elif phase is JobPhase.STOPPING and ledger.open.stall is not None:
        _leave_to_late_lines(ledger, _book_tail(job, at).parts)
    elif before in _ASIDE:
        _end_aside(job, at, before)
    elif before in _BEFORE_STEPS and phase is JobPhase.TRAINING:
        ledger.open.head = Head(PHASES[before], at)
    elif before in _BEFORE_STEPS:
        _leave_first_steps(job, at, before)
        _book_all(job, at, PHASES[before])
    opened = ledger.open
    opened.phase, opened.phase_began, opened.stall = phase, at, None


def step_reported(job: Job, step: Step) -> None:
    """Book the newest line of `job.attempt.steps`, before `best_iteration` is raised."""
    ledger = job.ledger
    if ledger.started_at is None or step.new < 1:
        return
    if ledger.pace.loss_name is None and step.losses:
        ledger.pace.loss_name = "lm loss" if "lm loss" in step.losses else next(iter(step.losses))
    if ledger.is_closed:
        book_late_line(job, step)
        return
    if ledger.world_size != job.layout.world_size:
        ledger.weigh(job.layout.world_size)
    at = max(step.at, ledger.booked_at)
    if ledger.open.head is not None and ledger.open.head.ended_at < at - SAME_MOMENT:
        _book_head(ledger)
    if book_usual_line(job, step, at):
        ledger.open.phase_began = max(at, job.attempt.phase_since)
    else:
        book_line(job, step, at)
        _reopen(job, at)


def attempt_ended(job: Job, at: float) -> None:
    ledger = job.ledger
    if ledger.started_at is not None and not ledger.is_closed:
        _book_head(ledger)
        _close(job, max(at, ledger.booked_at))


def stall_judged(job: Job, *, detected_at: float, decided_at: float | None) -> None:
    """Record that a stall was detected and, later, that an action was decided."""
    opened = job.ledger.open
    known = opened.stall
    if known is not None:
        detected_at = min(detected_at, known.detected_at)
        decided_at = decided_at if known.decided_at is None else known.decided_at
    else:
        _judge_by_few(job)
    opened.stall = BookedStall(detected_at, decided_at)


def time_spent(job: Job, now: float) -> TimeSpent:
    """Return all time up to `now`, with the open time as it looks now; changes nothing."""
    ledger = job.ledger
    now = max(now, ledger.booked_at)
    parts: Parts = {}
    if ledger.started_at is not None and not ledger.is_closed:
        parts = read_tail(job, now, goes_on=True).parts
    elif ledger.started_at is not None and not ledger.is_over:
        parts = {Spent.RESTARTING: now - ledger.booked_at}
    return ledger.with_open(parts, job.layout.world_size)


def _book_head(ledger: GoodputLedger) -> None:
    """Book a phase that ended without a line at the same moment: all of it was that phase."""
    head, ledger.open.head = ledger.open.head, None
    if head is None:
        return
    if head.spent is Spent.FIRST_STEP:
        ledger.pace.first_step_seconds += max(0.0, head.ended_at - ledger.booked_at)
    until = max(head.ended_at, ledger.booked_at)
    ledger.book({head.spent: until - ledger.booked_at}, until)


def _leave_first_steps(job: Job, at: float, before: JobPhase) -> None:
    """Keep steps to be judged later if a save names its iteration before any line was printed.

    A save of iteration 40 shows that 40 steps were done since the first step began. Their duration
    is known only later.
    """
    attempt, ledger = job.attempt, job.ledger
    if before is not JobPhase.FIRST_STEP or attempt.save is None or attempt.steps:
        return
    if attempt.resumed_from is None and attempt.load != "random":
        return
    last = attempt.save.iteration or 0
    count = last - (attempt.resumed_from or 0)
    if count > 0:
        shares = StepShares(redone_share(ledger.pace, last, count))
        steps = (count, Spent.FIRST_STEP, Spent.FIRST_STEP, at - ledger.booked_at, shares, None)
        leave_unjudged(ledger.pace, Unjudged(*steps))


def _end_aside(job: Job, at: float, before: JobPhase) -> None:
    opened, spent = job.ledger.open, spent_in(job, before)
    if spent is not None and len(opened.spans) < _MAX_SPANS:
        opened.spans.append(BookedSpan(spent, min(opened.phase_began, at), at))


def _book_all(job: Job, at: float, spent: Spent) -> None:
    """Book the open time as `spent`, except saves and evaluations inside."""
    ledger = job.ledger
    ledger.weigh(job.layout.world_size)
    parts, _ = spans_within(ledger.open, ledger.booked_at, at)
    ledger.book(fit(parts, at - ledger.booked_at, spent), at)
    _reopen(job, at)


def _book_tail(job: Job, at: float) -> Tail:
    ledger = job.ledger
    ledger.weigh(job.layout.world_size)
    tail = read_tail(job, at)
    ledger.book(tail.parts, at)
    pace = ledger.pace
    if pace.is_bad:
        pass  # bad steps do not count as progress
    elif usual_step(job) is None and not job.sees(Source.PROBE) and job.attempt.steps:
        pace.unknown_reach = UnknownReach(tail.reported, tail.worked_seconds)
    else:
        pace.furthest = max(pace.furthest, tail.reached, job.attempt.iteration or 0)
    pace.unobserved_seconds = 0.0 if pace.is_bad else tail.unobserved_seconds
    _reopen(job, at)
    return tail


def _leave_to_late_lines(ledger: GoodputLedger, parts: Parts) -> None:
    """Keep lost time as spare: it was training if the log was only late."""
    for spent in RECLAIMED:
        add(ledger.pace.spare, spent, parts.get(spent, 0.0))


def _close(job: Job, at: float) -> None:
    _judge_by_few(job)
    tail = _book_tail(job, at)
    _square(job, tail.parts)
    _leave_to_late_lines(job.ledger, tail.parts)
    job.ledger.pace.owed = -tail.worked_seconds
    job.ledger.is_closed = True
    job.ledger.is_over = job.attempt.is_done


def _judge_by_few(job: Job) -> None:
    """Judge open steps by the few lines so far: no more are expected, or none for a long time."""
    pace = job.ledger.pace
    usual = job.calibration.usual_step()
    is_guess = usual is None
    if is_guess:
        usual = pace_by_save(job) or guess_by_first_line(job)
        pace.step_seconds = usual or pace.step_seconds
    if usual is not None and (pace.unjudged or (pace.guess and not is_guess)):
        judge(job, usual, is_guess=is_guess)


def _square(job: Job, parts: Parts) -> None:
    """Correct for lines with more or less time than was booked: the pod that prints them may have
    another clock than the pod that reported the begin and the end."""
    ledger, lines = job.ledger, job.attempt.steps
    owed, ledger.pace.owed = ledger.pace.owed, 0.0
    is_redone = bool(lines) and lines[-1].iteration <= ledger.pace.redone_until
    steps = Spent.RECOMPUTED if is_redone else Spent.TRAINING
    steps = Spent.BAD_STEPS if ledger.pace.is_bad else steps
    if owed < 0:
        ledger.move(steps, Spent.IDLE, -owed)
    for spent in (Spent.IDLE, Spent.RESTARTING, Spent.HANG_UNDETECTED):
        seconds = min(owed, SKEW, parts.get(spent, 0.0))
        if seconds > 0:
            ledger.move(spent, steps, seconds)
            owed -= seconds


def _reopen(job: Job, at: float) -> None:
    attempt = job.attempt
    began = max(at, attempt.phase_since)
    later = [span._replace(begin=max(span.begin, at)) for span in job.ledger.open.spans
             if span.end > at]  # fmt: skip
    job.ledger.open = Open(attempt.phase, began, later, attempt.evaluations)
