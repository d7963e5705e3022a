# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Faults, errors and good-byes: kept earliest first, for the root cause is rarely the loudest."""

from __future__ import annotations

from mwatch.model.event import Error, Exit, Fault
from mwatch.model.fault import Role
from mwatch.model.job import (
    MAX_ERRORS,
    MAX_FAULTS,
    Attempt,
    ErrorSeen,
    ExitSeen,
    FaultSeen,
    Job,
    ProcessGone,
    Stream,
)
from mwatch.model.observation import ProcessExit
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, checkpoints, phases

_ASKED_NOTHING = "status"
"""Reason of an `exit` event that only tells the exit code 0."""


def _attempt(job: Job, stream: Stream, at: float) -> Attempt | None:
    """The attempt that this stream is in; an old one for a stream that is late."""
    if not attempts.is_last_word(job, stream, at) and attempts.is_current(job, stream, at):
        return job.attempt
    return next((past for past in job.past if past.number == stream.attempt), None)


def fold_fault(job: Job, stream: Stream, at: float, fault: Fault) -> None:
    attempt = _attempt(job, stream, at)
    if attempt is None or fault.role == Role.BENIGN:
        return
    if len(attempt.faults) >= MAX_FAULTS:
        attempt.dropped += 1
        return
    attempt.faults.append(FaultSeen(at, stream.name, fault, job.catalogue.get(fault.id)))
    if attempt is job.attempt:
        checkpoints.judge_load(job)


def fold_error(job: Job, stream: Stream, at: float, error: Error) -> None:
    attempt = _attempt(job, stream, at)
    if attempt is None:
        return
    if len(attempt.errors) < MAX_ERRORS:
        attempt.errors.append(ErrorSeen(at, stream.name, error))
    else:
        attempt.dropped += 1
    if attempt is not job.attempt:
        return
    checkpoints.judge_load(job)
    if error.kind == "restart":
        attempts.start(job, stream, at)
    elif error.kind == "elastic" or error.exit_code is not None:
        gone = ProcessExit(error.exit_code, error.signal, None)
        attempt.gone.setdefault(stream.name, ProcessGone(at, stream.name, gone))
        checkpoints.judge_load(job)
        _over(job, at)


def fold_exit(job: Job, stream: Stream, at: float, bye: Exit) -> None:
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    if bye.reason == _ASKED_NOTHING:
        fold_process_exit(job, stream, at, ProcessExit(0, None, None))
        return
    if attempt.exit is None:
        attempt.exit = ExitSeen(at, stream.name, bye)
    phases.enter(job, at, JobPhase.STOPPING)


def fold_process_exit(job: Job, stream: Stream, at: float, gone: ProcessExit) -> None:
    attempt = _attempt(job, stream, at)
    if attempt is None:
        return
    attempt.gone[stream.name] = ProcessGone(at, stream.name, gone)
    if attempt is not job.attempt:
        return
    if gone.exit_code or gone.signal or attempt.streams <= attempt.gone.keys():
        if gone.exit_code or gone.signal:
            checkpoints.judge_load(job)
        _over(job, at)


def _over(job: Job, at: float) -> None:
    """One dead rank is the end of a gang: the others can only wait for it."""
    phases.enter(job, at, JobPhase.ENDED)
    attempts.end(job, at)
