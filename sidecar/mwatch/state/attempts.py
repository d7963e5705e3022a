# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Open, join and close attempts, and move the current one from phase to phase.

Pods restart at different moments, and most print nothing when they do. So a stream that starts
again opens a new attempt only if it took part in the current one; otherwise it joins the current
one. What a stream prints before it has joined is late output of its earlier attempt.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from mwatch.model.job import MAX_EARLIER_STEPS, Attempt, Job, PrintedEnd, Stream
from mwatch.model.observation import AttemptStart
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.model.step import StepWindow
from mwatch.state import calibration
from mwatch.state.goodput import ledger

KEPT_STEPS = 256  # for an ended attempt
_LINES_OF_LIFE = 2
LAST_WORDS_SECONDS = 30.0
"""For so long after another pod has restarted, a pod that is being removed may print errors."""


def open_first(job: Job, at: float) -> None:
    """Open attempt 1 at the first observation of the job."""
    job.has_started = True
    job.now = at
    job.attempt = _new(1, at)
    job.timeline.attempt = max(job.timeline.attempt, 1)
    ledger.attempt_started(job, at)


def _new(number: int, at: float) -> Attempt:
    return Attempt(number, at, phase_since=at, progress_at=at)


def is_current(job: Job, stream: Stream, at: float) -> bool:
    """Whether what `stream` reports at `at` is about the current attempt; joins it if so."""
    attempt = job.attempt
    if stream.attempt < attempt.number:
        if stream.attempt and at < attempt.started_at:
            return False
        join(job, stream)
    return True


def is_last_word(job: Job, stream: Stream, at: float) -> bool:
    """Whether an error of a stream without output in this attempt belongs to the previous one.

    The end of a process is often reported after the others have restarted.
    """
    attempt = job.attempt
    if stream.attempt in (0, attempt.number):
        return False
    return attempt.is_numbered or at < attempt.started_at + LAST_WORDS_SECONDS


def join(job: Job, stream: Stream) -> None:
    stream.attempt = job.attempt.number
    stream.last_iteration = None
    stream.printed_at_start = set()
    job.attempt.streams.add(stream.name)


def start(job: Job, stream: Stream, at: float, number: int | None = None) -> None:
    """Record that `stream` starts its command or its workers again."""
    current = job.attempt
    if number is None:
        if stream.attempt == current.number:
            _replace(job, current.number + 1, at)
        join(job, stream)
        return
    if number > current.number:
        if _is_blank(job):
            _rename(job, number)
        else:
            _replace(job, number, at)
    if number == job.attempt.number:
        job.attempt.is_numbered = True
        if stream.attempt < number:
            join(job, stream)


def _is_blank(job: Job) -> bool:
    """Whether nothing was observed before; the first observed attempt need not be number 1."""
    return not job.past and not job.attempt.streams


def _rename(job: Job, number: int) -> None:
    job.attempt.number = job.timeline.attempt = number


def end(job: Job, at: float) -> None:
    """Close the current attempt; a later call has no effect."""
    attempt = job.attempt
    if attempt.ended_at is None:
        attempt.ended_at = max(at, attempt.started_at)
        ledger.attempt_ended(job, attempt.ended_at)


def end_as_printed(job: Job, stream: Stream, at: float) -> None:
    """End the attempt because a line reports it; `line_after_end` may revert that."""
    attempt = job.attempt
    if attempt.ended_at is None:
        before = deepcopy(job.ledger)
        attempt.printed_end = PrintedEnd(stream.name, attempt.phase, attempt.phase_since, before)
    enter_phase(job, at, JobPhase.ENDED)
    end(job, at)


def line_after_end(job: Job, stream: Stream, at: float) -> None:
    """Handle an iteration line that follows a printed end of the attempt.

    One step may have been under way, and lines of other pods may be late. More lines show that
    training goes on: the end was quoted, or was that of a helper process. The end is reverted then.
    """
    attempt, printed = job.attempt, job.attempt.printed_end
    if printed is None or not all(gone.is_printed for gone in attempt.gone.values()):
        return
    is_near = stream.name == printed.stream or at - attempt.phase_since > LAST_WORDS_SECONDS
    printed.lines_after += is_near
    if printed.lines_after < _LINES_OF_LIFE:
        return
    attempt.gone = {}
    attempt.errors = [seen for seen in attempt.errors if seen.error.exit_code is None]
    attempt.phase, attempt.phase_since = printed.phase, printed.phase_since
    attempt.ended_at = attempt.printed_end = None
    job.ledger = printed.ledger


def _replace(job: Job, number: int, at: float) -> None:
    ended = job.attempt
    end(job, ended.ended_at or max(ended.progress_at, last_word(job, ended)))
    _remember(job, ended)
    job.past.append(ended)
    job.attempt = _new(number, max(at, ended.ended_at or at))
    job.attempt.best_before = job.best_iteration
    job.timeline.attempt = max(job.timeline.attempt, number)
    ledger.attempt_started(job, job.attempt.started_at)


def last_word(job: Job, attempt: Attempt) -> float:
    """Return when the last of its streams was last active."""
    times = [job.streams[name].last_at for name in attempt.streams]
    return max((at for at in times if at is not None), default=attempt.started_at)


def _remember(job: Job, attempt: Attempt) -> None:
    """Keep the steps to compare recomputed ones with; drop what only a live attempt needs."""
    earlier = job.earlier_steps
    for step in attempt.steps:
        earlier.pop(step.iteration, None)  # newest last
        earlier[step.iteration] = step
    while len(earlier) > MAX_EARLIER_STEPS:
        del earlier[next(iter(earlier))]
    attempt.steps = StepWindow(attempt.steps, maxlen=KEPT_STEPS)
    attempt.signs.clear()
    attempt.stacks.clear()
    attempt.ranks.clear()
    attempt.save = None
    if attempt.phase is not JobPhase.ENDED:
        attempt.phase = JobPhase.ENDED


def fold_start(job: Job, stream: Stream, at: float, started: AttemptStart) -> None:
    stream.has_wrapper = started.attempt is not None
    start(job, stream, at, started.attempt)
    if job.attempt.number != stream.attempt:
        return
    if started.late_seconds is not None and started.attempt == job.attempt.number:
        late = job.attempt.started_at - (at - started.late_seconds)
        job.attempt.late_seconds = max(job.attempt.late_seconds, late)
    if started.resume_from is not None:
        job.attempt.resumed_from = started.resume_from
    if started.world_size is not None:
        job.layout = replace(job.layout, world_size=started.world_size)


_FRESH_BEAT_SECONDS = 15.0  # beats come once a second, by clocks that may differ
_ASIDE = frozenset({JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE})
_NOT_STEPS = frozenset({JobPhase.SAVING, JobPhase.EVALUATING})
_BEFORE_STEPS = frozenset({JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.STARTING})


def enter_phase(job: Job, at: float, phase: JobPhase) -> None:
    """Move the current attempt to `phase`, unless it has ENDED: only a new attempt leaves that."""
    attempt = job.attempt
    before = attempt.phase
    if before is phase or before is JobPhase.ENDED:
        return
    at = max(at, attempt.phase_since)
    slot = slot_of(before, attempt.saves_done)
    if (
        slot and slot is not DeadlineSlot.TRAINING and phase is not JobPhase.ENDED
    ):  # lines show the steps
        calibration.phase_ended(job, slot, at - attempt.phase_since)
    attempt.phase = phase
    attempt.phase_since = at
    attempt.saw_evaluating = attempt.saw_evaluating or phase is JobPhase.EVALUATING
    if phase in _NOT_STEPS:
        attempt.asides.append(attempt.iteration or 0)
        attempt.aside_count += 1
    if phase is not JobPhase.ENDED:
        attempt.progress_at = max(attempt.progress_at, at)
    ledger.phase_changed(job, at, before)


def resting_phase(attempt: Attempt) -> JobPhase:
    """The phase after a save, load or evaluation."""
    if attempt.exit is not None or attempt.is_done:
        return JobPhase.STOPPING
    if attempt.iteration is not None and attempt.first_iteration is not None:
        return JobPhase.TRAINING
    return JobPhase.STARTING


def is_before_steps(attempt: Attempt) -> bool:
    return attempt.phase in _BEFORE_STEPS


def is_seen_to_last(attempt: Attempt, at: float) -> bool:
    """Whether the probe shows that rank 0 saves or evaluates now.

    A log line from before is late then, and the probe will also report the end, by the same clock.
    """
    lead = attempt.ranks.get(0)
    if lead is None or lead.phase != attempt.phase.value:
        return False
    return attempt.phase in _ASIDE and abs(at - lead.at) < _FRESH_BEAT_SECONDS
