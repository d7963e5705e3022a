# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Track checkpoints from the log and the folder, and the line of history they belong to."""

from __future__ import annotations

import re

from mwatch.model.event import Checkpoint, Error
from mwatch.model.fault import Blame, Role
from mwatch.model.job import MAX_CHECKPOINTS, Attempt, Job, KnownCheckpoint, Save, Stream
from mwatch.model.observation import StoredCheckpoints
from mwatch.model.phase import JobPhase
from mwatch.model.timeline import Rollback
from mwatch.state import attempts

_FOLDER = re.compile(r"\biter_(\d{7,12})\b")
_NOTHING_THERE = "could not find the metadata file"
_NOT_THE_CHECKPOINT = frozenset({Blame.GPU, Blame.NODE, Blame.FABRIC})


def fold(job: Job, stream: Stream, at: float, line: Checkpoint) -> None:
    stream.prints_checkpoints = True
    if not attempts.is_current(job, stream, at):
        return
    if line.op == "save":
        if job.past and attempts.is_before_steps(job.attempt):
            _late_save(job, at, line)
        else:
            _save(job, at, line)
    elif line.op == "load":
        _load(job, at, line)
    elif line.edge == "end" and line.iteration in job.checkpoints:
        job.checkpoints[line.iteration].stored = "missing"


def _late_save(job: Job, at: float, line: Checkpoint) -> None:
    """Attribute a save reported before the first step to the previous attempt: its line is late."""
    if line.edge == "end" and line.iteration is not None:
        _know_saved(job, at, line.iteration, job.past[-1].number)


def _save(job: Job, at: float, line: Checkpoint) -> None:
    attempt = job.attempt
    if line.edge == "begin":
        is_first = attempt.saves_done == 0
        attempt.save = Save(
            line.iteration, at, bool(line.is_async), None, is_first, line.file, line.line
        )
        attempts.enter_phase(job, at, JobPhase.SAVING)
    elif line.edge == "mark":
        if attempt.save is None:
            attempt.save = Save(line.iteration, at, True, file=line.file, line=line.line)
        attempt.save.is_async = True
        attempt.save.queued_at = at
        _leave_saving(job, at)
    elif line.edge == "end":
        _saved(job, at, line)
    else:
        attempt.save = None
        _leave_saving(job, at)


def _saved(job: Job, at: float, line: Checkpoint) -> None:
    attempt = job.attempt
    if attempt.phase is JobPhase.SAVING and not _is_queued(attempt):
        attempts.enter_phase(job, at, attempts.resting_phase(attempt))
    if attempt.phase is JobPhase.ASYNC_FINALIZE:
        attempts.enter_phase(job, at, attempts.resting_phase(attempt))
    if attempt.save is not None and attempt.save.iteration in (line.iteration, None):
        attempt.save = None
    attempt.saves_done += 1
    attempt.last_save_at = at
    if line.iteration is not None:
        _know_saved(job, at, line.iteration, attempt.number)


def _know_saved(job: Job, at: float, iteration: int, attempt: int) -> None:
    """Record a finished save, which replaces an older checkpoint of the same iteration."""
    job.checkpoints.pop(iteration, None)
    job.checkpoints[iteration] = KnownCheckpoint(iteration, at, attempt, is_saved=True)
    while len(job.checkpoints) > MAX_CHECKPOINTS:
        del job.checkpoints[next(iter(job.checkpoints))]


def _is_queued(attempt: Attempt) -> bool:
    return attempt.save is not None and attempt.save.queued_at is not None


def _leave_saving(job: Job, at: float) -> None:
    if job.attempt.phase is JobPhase.SAVING:
        attempts.enter_phase(job, at, attempts.resting_phase(job.attempt))


def _load(job: Job, at: float, line: Checkpoint) -> None:
    attempt = job.attempt
    if line.edge == "begin":
        attempt.load = "begun"
        attempt.load_iteration = line.iteration
        if attempt.first_iteration is None:
            attempts.enter_phase(job, at, JobPhase.LOADING)
    elif line.edge == "end":
        attempt.load = "loaded"
        number = attempt.load_iteration if line.iteration is None else line.iteration
        if number in job.checkpoints:
            job.checkpoints[number].load_failed = False  # an earlier error was caught
        if number is not None:
            attempt.load_iteration = attempt.resumed_from = number
            _continue_from(job, at, number)
        _leave_loading(job, at)
    elif _NOTHING_THERE in line.text:
        attempt.load = "random"
        _leave_loading(job, at)
    else:
        _load_failed(job)


def _leave_loading(job: Job, at: float) -> None:
    if job.attempt.phase is JobPhase.LOADING:
        attempts.enter_phase(job, at, JobPhase.STARTING)


def _load_failed(job: Job, is_bad: bool = True) -> None:
    attempt = job.attempt
    attempt.load = "failed" if is_bad else "begun"
    if attempt.load_iteration is not None:
        number = attempt.load_iteration
        known = job.checkpoints.setdefault(number, KnownCheckpoint(number))
        known.load_failed = is_bad


def judge_load(job: Job) -> None:
    """Decide after an error, a fault or an exit whether the loaded checkpoint is to blame.

    It is not if a faulty machine, a kill or a lack of memory caused the failure, which may be
    reported after the error.
    """
    attempt = job.attempt
    raised = [seen.error for seen in attempt.errors if seen.error.during == "load"]
    is_loading = attempt.phase is JobPhase.LOADING and attempt.load in ("begun", "failed")
    if not (raised or is_loading) or attempt.load in ("loaded", "random"):
        return
    if not attempt.errors and not attempt.gone:
        return
    if attempt.load_iteration is None:
        attempt.load_iteration = _meant(job, raised)
    roots = [seen.entry for seen in attempt.faults if seen.fault.role == Role.ROOT]
    is_machine = any(entry is not None and entry.blame in _NOT_THE_CHECKPOINT for entry in roots)
    is_memory = any("memory" in seen.fault.id for seen in attempt.faults)
    is_kill = any(seen.error.signal for seen in attempt.errors) or any(
        gone.exit.signal for gone in attempt.gone.values()
    )
    _load_failed(job, is_bad=not (is_machine or is_memory or is_kill))


def _meant(job: Job, raised: list[Error]) -> int | None:
    """Return the checkpoint that was to be loaded, if no log line has named it.

    It is the one in an error message, else the newest.
    """
    for error in raised:
        if named := _FOLDER.search(error.message):
            return int(named[1])
    return max(
        (number for number, known in job.checkpoints.items() if not known.is_abandoned),
        default=None,
    )


def _continue_from(job: Job, at: float, iteration: int) -> None:
    """Mark checkpoints newer than the resumed one as abandoned."""
    newer = [
        known for number, known in job.checkpoints.items()
        if number > iteration and not known.is_abandoned and known.attempt != job.attempt.number
    ]  # fmt: skip
    if not newer:
        return
    reason = f"attempt {job.attempt.number} resumed from {iteration}"
    job.timeline.roll_back(Rollback(at, iteration, None, reason))
    for known in newer:
        known.is_abandoned = True


def fold_stored(job: Job, at: float, stored: StoredCheckpoints) -> None:
    """Update the checkpoints with a listing of the folder, which overrides the log.

    A listing that began before a save ended has none or only a part of that checkpoint.
    """
    there = {each.iteration: each for each in stored.checkpoints}
    for number, known in job.checkpoints.items():
        if number not in there and _was_over(known, at):
            known.stored = "missing"
    for number in sorted(there)[-MAX_CHECKPOINTS:]:
        seen = there[number]
        known = job.checkpoints.setdefault(number, KnownCheckpoint(number))
        if seen.state == "incomplete" and not _was_over(known, at):
            continue
        known.stored = seen.state
        known.stored_reason = seen.reason
        known.written_at = seen.written_at
        if seen.written_at is not None and seen.written_at > job.attempt.began_at:
            known.attempt = job.attempt.number  # written again; its log line has not arrived yet
        known.is_abandoned = job.timeline.is_abandoned(number, known.made_at)


def _was_over(known: KnownCheckpoint, at: float) -> bool:
    """Whether the save had ended, by the log, when the listing began."""
    return known.saved_at is None or known.saved_at <= at
