# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`fold(job, observed)`: one observation more is known. Returns the job that it was given, changed.

Missing and late observations are accepted; only a new attempt goes backwards. A caller that
wants to keep an old state copies it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mwatch.model.event import (
    Arguments,
    Batch,
    Checkpoint,
    Error,
    Exit,
    Fault,
    Iteration,
    Overflow,
    Phase,
    Straggler,
    Timers,
    Validation,
)
from mwatch.model.job import Job, SightState, SignSeen, Stream
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    ProcessExit,
    Sight,
    SightChange,
    Sign,
    SignState,
    Stored,
    Unseen,
)
from mwatch.state import attempts, beats, checkpoints, endings, evaluation, layout, markers, steps

MAX_STREAMS = 8192

Fold = Callable[[Job, Stream, float, Any], None]


def fold(job: Job, observed: Observed) -> Job:
    at, name, what = observed
    stream = job.streams.get(name)
    if stream is None:
        if len(job.streams) >= MAX_STREAMS:
            return job
        stream = job.streams[name] = Stream(name)
    kind = type(what)
    if not job.has_started:
        attempts.open_first(job, at)
    if kind in _LOG:
        _see(job, Sight.LOG, at)
    if at > job.now:
        job.now = at
    _FOLDS[kind](job, stream, at, what)
    stream.last_at = at
    return job


def _see(job: Job, sight: Sight, at: float) -> None:
    state = job.sights.get(sight)
    if state is None or not state.is_up:
        job.sights[sight] = SightState(True, at, "seen")


def _beat(job: Job, stream: Stream, at: float, beat: Beat) -> None:
    _see(job, Sight.PROBE, at)
    beats.fold(job, stream, at, beat)


def _fault(job: Job, stream: Stream, at: float, fault: Fault) -> None:
    if fault.line:  # else no log said so, but a driver or a network card
        _see(job, Sight.LOG, at)
    endings.fold_fault(job, stream, at, fault)


def _stored(job: Job, stream: Stream, at: float, stored: Stored) -> None:
    _see(job, Sight.CHECKPOINTS, at)
    checkpoints.fold_stored(job, at, stored)


def _sign(job: Job, stream: Stream, at: float, sign: Sign) -> None:
    if not attempts.is_current(job, stream, at):
        return
    key = (sign.source, sign.rank, stream.name)
    before = job.attempt.signs.get(key)
    since = at
    if before is not None:
        if before.sign.state is SignState.DEAD and sign.state is SignState.UNKNOWN:
            return  # who no longer answers does not take back a death
        if before.sign.state is sign.state:
            since = before.since
    job.attempt.signs[key] = SignSeen(at, stream.name, sign, since)


def _sight(job: Job, stream: Stream, at: float, change: SightChange) -> None:
    job.sights[change.sight] = SightState(change.is_up, at, change.reason)


def _unseen(job: Job, stream: Stream, at: float, unseen: Unseen) -> None:
    job.attempt.unseen.add(stream.name)


def _nothing(job: Job, stream: Stream, at: float, what: object) -> None:
    """The lines themselves carry what is needed of it."""


_FOLDS: dict[type, Fold] = {
    Iteration: steps.fold,
    Batch: steps.fold,
    Validation: evaluation.fold_validation,
    Timers: evaluation.fold_timers,
    Phase: markers.fold,
    Checkpoint: checkpoints.fold,
    Fault: _fault,
    Error: endings.fold_error,
    Exit: endings.fold_exit,
    ProcessExit: endings.fold_process_exit,
    Overflow: _nothing,
    Straggler: markers.fold_straggler,
    Arguments: layout.fold,
    Beat: _beat,
    Sign: _sign,
    Stored: _stored,
    SightChange: _sight,
    Unseen: _unseen,
    AttemptStart: attempts.fold_start,
}
_LOG = frozenset(
    {
        Iteration, Batch, Validation, Timers, Phase, Checkpoint, Error, Exit, Overflow, Straggler,
        Arguments,
    }
)  # fmt: skip
