# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`fold(job, observed)`: update the job with one observation, in place.

Missing and late observations are accepted; only a new attempt can go back to an earlier iteration.
Faults, errors and exits are kept earliest first, because the root cause comes before its more
visible consequences. Periodic evaluations print nothing until their result, and only a timer shows
how long they took.
"""

from __future__ import annotations

import math
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
from mwatch.model.fault import Role
from mwatch.model.job import (
    MAX_ERRORS,
    MAX_FAULTS,
    MAX_RANKS,
    Attempt,
    ErrorSeen,
    ExitSeen,
    FaultSeen,
    Job,
    Layout,
    ProcessGone,
    SignSeen,
    SourceStatus,
    StackSeen,
    Stream,
)
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    ProcessExit,
    RankStack,
    Sign,
    SignSource,
    SignState,
    Source,
    SourceStatusChange,
    StoredCheckpoints,
    Unreachable,
)
from mwatch.model.phase import JobPhase
from mwatch.state import attempts, checkpoints, steps

_ASKED_NOTHING = "status"  # reason of an `exit` event with only the exit code 0
_HELD = frozenset({SignState.TRACED, SignState.SUSPENDED})
"""States in which a person holds the process: by a debugger or a stop signal."""


def _attempt(job: Job, stream: Stream, at: float) -> Attempt | None:
    """Return the attempt that an observation of the stream is about; an ended one if it is late."""
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
    if error.kind == "exception":
        _fold_exception(attempt, ErrorSeen(at, stream.name, error))
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
        if attempt.is_done_by_process:  # a process of the job has failed after all
            attempt.is_done = False
        gone = ProcessExit(error.exit_code, error.signal, None)
        _printed_exit(job, stream, at, gone, is_failure=True)


def _printed_exit(
    job: Job, stream: Stream, at: float, gone: ProcessExit, *, is_failure: bool
) -> None:
    """Record an end that a line reports, unless a wrapper will report the real one."""
    attempt = job.attempt
    if stream.has_wrapper:
        return
    attempt.gone.setdefault(stream.name, ProcessGone(at, stream.name, gone, is_printed=True))
    if is_failure:
        checkpoints.judge_load(job)
    if is_failure or attempt.streams <= attempt.gone.keys():
        attempts.end_as_printed(job, stream, at)


def _fold_exception(attempt: Attempt, seen: ErrorSeen) -> None:
    """Keep an exception; if there are too many, drop those that training has survived.

    A trainer may print the same exception for each sample.
    """
    kept = attempt.exceptions
    if len(kept) >= MAX_ERRORS and attempt.line_at is not None:
        kept[:] = [each for each in kept if each.at >= attempt.line_at]
    if len(kept) < MAX_ERRORS:
        kept.append(seen)
    else:
        attempt.dropped += 1


def fold_exit(job: Job, stream: Stream, at: float, bye: Exit) -> None:
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    if bye.reason == _ASKED_NOTHING:
        _printed_exit(job, stream, at, ProcessExit(0, None, None), is_failure=False)
        return
    if attempt.exit is None and not _has_failed_validation(attempt):
        attempt.exit = ExitSeen(at, stream.name, bye)
    attempts.enter_phase(job, at, JobPhase.STOPPING)


def _has_failed_validation(attempt: Attempt) -> bool:
    """Whether Megatron's rerun state machine has ended the run because of a bad result."""
    since = attempt.line_at or attempt.started_at
    return any(seen.fault.id.startswith("rerun-") and seen.at >= since for seen in attempt.faults)


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
    """End the attempt: when one rank of a gang is dead, the others can only wait for it."""
    attempts.enter_phase(job, at, JobPhase.ENDED)
    attempts.end(job, at)


_TIMER = "evaluate"


def fold_validation(job: Job, stream: Stream, at: float, result: Validation) -> None:
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    attempt.evaluations += 1
    attempt.evaluated_after = result.iteration
    if attempt.bad_validation_at is None and not all(map(math.isfinite, result.losses.values())):
        attempt.bad_validation_at = (
            result.iteration if result.iteration is not None else attempt.iteration
        )
    if attempt.phase is JobPhase.EVALUATING:
        if not attempts.is_seen_to_last(attempt, at):
            attempts.enter_phase(job, at, attempts.resting_phase(attempt))
    elif attempt.phase is JobPhase.TRAINING and not attempt.saw_evaluating:
        _look_back(job, attempt.phase_since, at)


def fold_timers(job: Job, stream: Stream, at: float, timers: Timers) -> None:
    """Use the timer of an evaluation, which the last rank prints, to book its duration.

    The line has no timestamp in a recorded log, so its time may be before the evaluation's end.
    """
    if not attempts.is_current(job, stream, at) or _TIMER not in timers.values:
        return
    seconds = timers.values[_TIMER][1] / 1000.0
    attempt = job.attempt
    if attempt.saw_evaluating:
        return  # its time is booked already
    if attempt.phase is JobPhase.TRAINING and math.isfinite(seconds) and seconds > 0:
        began = max(attempt.phase_since, attempt.line_at or at)
        passed = max(at, attempt.phase_since) - (attempt.line_at or began)
        if passed < seconds:  # otherwise the time has passed already, even with a save in between
            _look_back(job, began, began + seconds)


def _look_back(job: Job, since: float, until: float) -> None:
    """Record the time from the last line to the result as an evaluation that printed no begin."""
    began = max(since, job.attempt.line_at or since)
    if until > began:
        attempts.enter_phase(job, began, JobPhase.EVALUATING)
        attempts.enter_phase(job, until, attempts.resting_phase(job.attempt))


def fold_marker(job: Job, stream: Stream, at: float, mark: Phase) -> None:
    if mark.name == "starting" and mark.edge == "begin":
        _printed_start(job, stream, at, "banner")
    elif mark.name == "first-step" and _has_left(job.attempt, stream):
        _printed_start(job, stream, at, mark.name)
    if not attempts.is_current(job, stream, at):
        return
    attempt = job.attempt
    if mark.name == "first-step":
        if attempts.is_before_steps(attempt) or attempt.phase is JobPhase.LOADING:
            attempts.enter_phase(job, at, JobPhase.FIRST_STEP)
    elif mark.name in ("training", "process") and mark.edge == "end":
        _printed_done(job, at, mark)
    elif mark.name == "evaluating" and mark.edge == "begin":
        attempts.enter_phase(job, at, JobPhase.EVALUATING)
    elif mark.name == "async-finalize":
        attempts.enter_phase(job, at, JobPhase.ASYNC_FINALIZE)


def _printed_done(job: Job, at: float, mark: Phase) -> None:
    attempt = job.attempt
    if _is_far_from_the_end(job):
        return
    if mark.name == "training":
        attempt.is_done_by_process = False  # the trainer itself reports it
    elif not attempt.is_done:
        if attempt.errors or any(seen.is_root for seen in attempt.faults):
            return  # other processes have failed
        attempt.is_done_by_process = True
    attempt.is_done = attempt.exit is None
    attempts.enter_phase(job, at, JobPhase.STOPPING)


def _is_far_from_the_end(job: Job) -> bool:
    """Whether training cannot be done yet, such as at iteration 60 of 100, whatever is printed."""
    attempt, total = job.attempt, job.layout.total_iterations
    if total is None or attempt.iteration is None or not attempt.steps:
        return False
    return total - attempt.iteration > max(job.layout.log_interval or 1, attempt.steps[-1].covers)


def fold_checkpoint(job: Job, stream: Stream, at: float, line: Checkpoint) -> None:
    if line.op == "load" and line.edge == "begin" and _has_left(job.attempt, stream):
        _printed_start(job, stream, at, line.op)
    checkpoints.fold(job, stream, at, line)


def _has_left(attempt: Attempt, stream: Stream) -> bool:
    """Whether the attempt has trained and then printed its end, or a fault with no step after it.

    A load or a first step in the log after that is from a new process, whose first lines may be
    missing. If there is a wrapper, it reports and numbers each new process, so the log is not used.
    """
    if stream.has_wrapper or attempt.is_numbered:
        return False
    is_over = attempt.exit is not None or attempt.ended_at is not None
    newest: list[FaultSeen | ErrorSeen] = [*attempt.faults[-1:], *attempt.errors[-1:]]
    has_failed = any(seen.at >= attempt.progress_at for seen in newest)
    return attempt.first_iteration is not None and (is_over or has_failed)


def _printed_start(job: Job, stream: Stream, at: float, kind: str) -> None:
    if _is_new_process(job, stream, at, kind):
        attempts.start(job, stream, at)
    stream.printed_at_start.add(kind)


def _is_new_process(job: Job, stream: Stream, at: float, kind: str) -> bool:
    """Whether a printed start is that of a new process.

    Rank 0 prints each kind of start once, so one after other output means a new start.
    """
    attempt = job.attempt
    if stream.attempt != attempt.number:
        return True
    if attempt.is_numbered and attempt.steps and at < attempt.steps[0].at:
        return False  # a late line: the start of the process that made these steps
    has_stepped = attempt.first_iteration is not None
    if attempt.is_numbered and not has_stepped and kind not in stream.printed_at_start:
        return False  # the start that its wrapper reported, printed after another pod's error
    has_begun = has_stepped or not attempts.is_before_steps(attempt)
    return has_begun or attempt.ended_at is not None or bool(attempt.errors)


def fold_straggler(job: Job, stream: Stream, at: float, report: Straggler) -> None:
    if attempts.is_current(job, stream, at):
        job.attempt.straggler = report


def fold_overflow(job: Job, stream: Stream, at: float, overflow: Overflow) -> None:
    if attempts.is_current(job, stream, at):
        job.attempt.overflows.append((at, overflow))


def fold_layout(job: Job, stream: Stream, at: float, printed: Arguments) -> None:
    _printed_start(job, stream, at, "arguments")
    if not attempts.is_current(job, stream, at):
        return
    before = job.layout
    length = printed.extra.get("seq_length")
    job.layout = Layout(
        world_size=printed.world_size or before.world_size,
        tensor=printed.tensor_parallel,
        pipeline=printed.pipeline_parallel,
        context=printed.context_parallel,
        expert=printed.expert_parallel,
        log_interval=printed.log_interval,
        save_interval=printed.save_interval,
        eval_interval=printed.eval_interval,
        exit_interval=printed.exit_interval,
        total_iterations=printed.train_iters or before.total_iterations,
        precision=printed.precision,
        is_dynamic_scale=_is_dynamic(printed),
        async_save=printed.async_save,
        save_folder=printed.save,
        load_folder=printed.load,
        sequence_length=length if isinstance(length, int) else before.sequence_length,
    )
    job.calibration = job.calibration.in_layout(job.layout.key)


def _is_dynamic(printed: Arguments) -> bool | None:
    if printed.precision is None:
        return None
    return printed.precision == "fp16" and printed.extra.get("loss_scale") in (None, "None")


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
    if kind in _LOG and getattr(what, "line", True):  # line 0: TensorBoard's, not of a log
        _see(job, Source.LOG, at)
    if at > job.now:
        job.now = at
    _FOLDS[kind](job, stream, at, what)
    stream.last_at = at
    return job


def _see(job: Job, source: Source, at: float) -> None:
    state = job.sources.get(source)
    if state is None or not state.is_up:
        job.sources[source] = SourceStatus(True, at, "seen")


def _beat(job: Job, stream: Stream, at: float, beat: Beat) -> None:
    _see(job, Source.PROBE, at)
    steps.fold_beat(job, stream, at, beat)


def _fault(job: Job, stream: Stream, at: float, fault: Fault) -> None:
    if fault.line:  # otherwise it came from a driver or a network card
        _see(job, Source.LOG, at)
    fold_fault(job, stream, at, fault)


def _stored(job: Job, stream: Stream, at: float, stored: StoredCheckpoints) -> None:
    _see(job, Source.CHECKPOINTS, at)
    checkpoints.fold_stored(job, at, stored)


def _sign(job: Job, stream: Stream, at: float, sign: Sign) -> None:
    if not attempts.is_current(job, stream, at):
        return
    key = (sign.source, sign.rank, stream.name)
    before = job.attempt.signs.get(key)
    since = at
    if before is not None:
        if before.sign.state is SignState.DEAD and sign.state is SignState.UNKNOWN:
            return  # no answer does not revoke a death
        if before.sign.state is sign.state:
            since = before.since
        elif before.sign.state in _HELD:
            job.attempt.released_at = at
        elif before.sign.state is SignState.MOVING:
            job.attempt.moved_at[key] = before.at
    job.attempt.signs[key] = SignSeen(at, stream.name, sign, since)
    stream.confirmed = None
    if sign.source is SignSource.CPU_TIME and sign.rank is not None:
        # The CPU time of the whole command is only used until its ranks are known.
        job.attempt.signs.pop((sign.source, None, stream.name), None)


def _stack(job: Job, stream: Stream, at: float, stack: RankStack) -> None:
    known = job.attempt.stacks
    if attempts.is_current(job, stream, at) and (stack.rank in known or len(known) < MAX_RANKS):
        job.attempt.stacks[stack.rank] = StackSeen(at, stream.name, stack)


def _source_status(job: Job, stream: Stream, at: float, change: SourceStatusChange) -> None:
    job.sources[change.source] = SourceStatus(change.is_up, at, change.reason)


def _unreachable(job: Job, stream: Stream, at: float, unreachable: Unreachable) -> None:
    job.attempt.unreachable.add(stream.name)


_FOLDS: dict[type, Fold] = {
    Iteration: steps.fold_step,
    Batch: steps.fold_step,
    Validation: fold_validation,
    Timers: fold_timers,
    Phase: fold_marker,
    Checkpoint: fold_checkpoint,
    Fault: _fault,
    Error: fold_error,
    Exit: fold_exit,
    ProcessExit: fold_process_exit,
    Overflow: fold_overflow,
    Straggler: fold_straggler,
    Arguments: fold_layout,
    Beat: _beat,
    Sign: _sign,
    RankStack: _stack,
    StoredCheckpoints: _stored,
    SourceStatusChange: _source_status,
    Unreachable: _unreachable,
    AttemptStart: attempts.fold_start,
}
_LOG = frozenset(
    {
        Iteration, Batch, Validation, Timers, Phase, Checkpoint, Error, Exit, Overflow, Straggler,
        Arguments,
    }
)  # fmt: skip
