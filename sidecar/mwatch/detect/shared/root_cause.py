# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pick the root cause of an ended attempt out of everything that was printed and reported.

The candidates, in this order: the reason given by Kubernetes or the wrapper; Megatron's own exits
16 and 17; the earliest root fault, or an exception before it; an out-of-memory kill that the kernel
reports; ranks that waited in different collectives; the signal; and last the cascade, in which
ranks report the loss of each other. Anything that training survived is ignored. A traceback without
its last line counts only if nothing else does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mwatch.detect.shared import causes
from mwatch.detect.shared.cascades import (
    grace_lines,
    is_behind,
    is_grave,
    is_undefined,
    unexplained,
)
from mwatch.detect.shared.causes import REPORTS, cause_of, explains
from mwatch.detect.shared.exception_causes import cause_of_numbers
from mwatch.detect.shared.raised_at import cause_of_place, reads_data
from mwatch.detect.shared.stall import Mismatch, out_of_step
from mwatch.model.cause import Cause
from mwatch.model.event import Error, Fault
from mwatch.model.fault import Blame, Role
from mwatch.model.job import ErrorSeen, FaultSeen, Job, ProcessGone
from mwatch.model.observation import ProcessExit
from mwatch_trainer.exits.signal_table import signal_of

_BEFORE_SECONDS = 60.0
"""Another rank may still print a step line after the fault that ends them all."""
_CHECKPOINT_FILE = re.compile(
    r"/iter_\d{7}\b|\.distcp\b|/mp_rank_\d\d|_(?:optim|model)_states\.pt\b|/global_step_?\d"
    r"|(?:checkpoint|ckpt|epoch|step)[-_=]?\d{1,12}\b|/\.metadata\b|/random_states_\d|/rng_state"
    r"|/(?:optimizer|scheduler|scaler)(?:_\d{1,7})?\.(?:pt|bin)\b|/trainer_state\.json|\.ckpt\b"
)
"""Files and folders of checkpoints of many trainers."""
_REFUSALS = frozenset({"assertion-failed", "te-assertion"})
_VAGUE = _REFUSALS | {"checkpoint-load-exit-zero", "container-not-started", "cuda-no-gpu-visible",
                      "cuda-unknown-error"}  # fmt: skip
"""Any other root fault is more specific; the reason of a failed load is in the lines after it."""
_STRONGER = frozenset({Cause.OOM, Cause.HARDWARE, Cause.STORAGE, Cause.FABRIC, Cause.KILLED})
"""Causes that explain why a good checkpoint could not be read."""
_BY_CASCADE = frozenset(
    {Cause.HANG, Cause.FABRIC, Cause.KILLED, Cause.LOST_POD, Cause.UNSCHEDULABLE}
)
_RAISED = ("traceback", "exception")
_TIMED_OUT = "collective-timeout-status"
"""Printed beside the timeout itself, which an excerpt may lack."""
_OF_NETWORK = frozenset(
    {"nccl-net-warning", "network-unreachable", "nccl-peer-closed", "nvls-cuda-failure"}
)
_PORT = "store-port-in-use"
_PORT_IN_USE = re.compile(r"[Aa]ddress already in use|EADDRINUSE")
_ASSERTION = "process-assertion"
_LATE_LINES = 40
_AGAIN = 5  # warnings of one kind that together show a failure
_WATCHED = frozenset({"ft-no-first-heartbeat", "ft-no-heartbeat", "ft-section-timeout"})
_HOST_LOST = "mpi-host-lost"
_INTERRUPT, _HUB = "keyboard-interrupt", "hub-unreachable"
_CRASH_LOOP = "k8s-crash-loop"
_STUCK = ("build", "meet")  # activities that people interrupt because they do not end
_LOADER_WORKER, _IN_WORKER = "dataloader-worker-error", "in DataLoader worker process"
_DECODING = re.compile(
    r"DecodeError|EOFError|BadZipFile|BadGzipFile|UnpicklingError|zlib\.error|LZMAError|ArrowInvalid"
    r"|ReadError|UnidentifiedImageError"
)
TIMEOUTS = frozenset({"collective-timeout", "gloo-timeout", "hccl-timeout"})
_SEGFAULTS = frozenset({"process-segfault", "process-segfault-nccl"})
"""Crashes that a watchdog may cause when it ends a process that waits forever."""


class RootCause(NamedTuple):
    cause: Cause
    at: float
    fault: FaultSeen | None = None
    error: ErrorSeen | None = None
    gone: ProcessGone | None = None
    confidence: float = 0.9
    mismatch: Mismatch | None = None


def root_cause(job: Job, after: Mapping[str, int] | None = None) -> RootCause | None:
    """Return the root cause; None if nothing that could end an attempt followed its last step.

    `after` (line number by file) is for a recorded log that shows no end: lines that only warn do
    not count, nor do lines up to that one.
    """
    seen = _Seen(job, after=after)
    reported = (
        seen.cause_by_reason()
        or seen.cause_by_rerun()
        or seen.first_cause()
        or seen.cause_by_memory()
        or seen.cause_by_mismatch()
        or seen.cause_by_signal()
        or seen.cause_by_cascade()
    )
    if reported is not None and reported.fault and reported.fault.fault.id == causes.WORKER_FAILED:
        # Other ranks may print a last line of progress below the exception that ended this one.
        late = _Seen(job, has_late_lines=True).first_cause()
        reported = late or reported
    if reported is not None:
        is_first = not job.past and not job.attempt.steps
        fault = reported.fault.fault if reported.fault else None
        if is_first and fault and (fault.id == _PORT or _PORT_IN_USE.search(fault.text)):
            # There is no earlier attempt whose process can hold the port.
            return reported._replace(cause=Cause.USER_ERROR)
        return reported
    if not seen.has_ended:
        return seen.any_cause()
    return _Seen(job, has_late_lines=True).first_cause() or seen.cause_by_exit()


class _Seen:
    """Everything observed since the last step.

    A pipe that is flushed late prints step lines after the traceback that ended the run. With
    `has_late_lines`, any exception that a rank did not catch counts, wherever it is.
    """

    def __init__(
        self,
        job: Job,
        *,
        has_late_lines: bool = False,
        after: Mapping[str, int] | None = None,
    ) -> None:
        attempt = job.attempt
        self._last = attempt.steps[-1] if attempt.steps else None
        self._has_trained = causes.has_trained(attempt)
        self._has_ever_trained = self._has_trained or job.best_iteration is not None
        self._has_saved = attempt.saves_done > 0
        self._was_loading = not self._has_trained and attempt.load in ("begun", "failed")
        self._gone = sorted(attempt.gone.values(), key=lambda gone: gone.at)
        self._errors = [
            seen
            for seen in attempt.errors
            if seen.error.kind in REPORTS or self._counts(seen.at, seen.error)
        ]
        self._errors += [each for each in attempt.exceptions if self._counts(each.at, each.error)]
        self._faults = [seen for seen in attempt.faults if self._counts(seen.at, seen.fault)]
        if after is not None:
            faults, errors = self._faults, self._errors
            behind = Counter(seen.fault.id for seen in faults if is_behind(seen.fault, after))
            again = {id for id, count in behind.items() if count >= _AGAIN}
            self._faults = [seen for seen in faults if is_grave(seen, after, again)]
            self._errors = [seen for seen in errors if is_behind(seen.error, after)]
        if has_late_lines:
            every = (*attempt.errors, *attempt.exceptions)
            uncaught = [seen for seen in every if self._is_uncaught(seen.error)]
            self._errors = [seen for seen in uncaught if seen.error.kind in _RAISED]
            self._faults = [
                seen for seen in attempt.faults if any(explains(seen, e) for e in self._errors)
            ]
        reports = (seen for seen in self._errors if seen.error.kind in REPORTS)
        self._reports = sorted(reports, key=causes.place_of_report)
        self._report = self._reports[0] if self._reports else None
        self._code = self._exit_code()

    def _is_uncaught(self, error: Error) -> bool:
        """Whether it names its rank, as only the hook of a dying process does, or is just above the
        last step."""
        last = self._last
        if error.rank is not None or last is None or last.file != error.file:
            return error.rank is not None
        return 0 <= last.line - error.line <= _LATE_LINES

    def _counts(self, at: float, what: Fault | Error) -> bool:
        last = self._last
        if last is None or causes.is_after(last, at, what.file, what.line):
            return True
        if what.file == last.file:
            return what.line > last.line - grace_lines(what)
        return at >= last.at - _BEFORE_SECONDS

    def _exit_code(self) -> int | None:
        """Return the exit code, preferably a launcher's report: torchrun's own code is always 1."""
        ends: list[Error | ProcessExit] = [seen.error for seen in self._reports]
        ends += [gone.exit for gone in self._gone]
        codes = [causes.plain(end.exit_code, end.signal) for end in ends]
        codes += [causes.exit_of_worker(seen.fault.text) for seen in self._worker_failures()]
        return next((code for code in codes if code is not None), None)

    def _worker_failures(self) -> Iterator[FaultSeen]:
        return (seen for seen in self._faults if seen.fault.id == causes.WORKER_FAILED)

    @property
    def has_ended(self) -> bool:
        return self._code is not None or self._report is not None

    def cause_by_reason(self) -> RootCause | None:
        for gone in self._gone:
            if cause := causes.cause_of_reason(gone.exit.reason):
                return RootCause(cause, gone.at, gone=gone, confidence=0.95)
        return None

    def cause_by_rerun(self) -> RootCause | None:
        """Return the cause if Megatron asks for a resume (16) or judged a result as wrong (17)."""
        ids = {seen.fault.id for seen in self._faults}
        if self._is_of_another_program(ids):
            return None
        if self._code == causes.RERUN_EXIT or "rerun-checkpoint-exit" in ids:
            return self._of_rerun(Cause.RERUN)
        if self._code != causes.FAILED_RESULT_EXIT and "rerun-failed-exit" not in ids:
            return None
        return self._of_rerun(Cause.NAN if "rerun-application-error" in ids else Cause.HARDWARE)

    def _is_of_another_program(self, ids: Iterable[str]) -> bool:
        """Whether a printed 16 or 17 is not Megatron's (MPI): nothing else shows Megatron."""
        is_megatron = self._has_ever_trained or any(each.startswith("rerun-") for each in ids)
        return not is_megatron and all(gone.is_printed for gone in self._gone)

    def _of_rerun(self, cause: Cause) -> RootCause:
        verdicts = [seen for seen in self._faults if seen.entry and cause_of(seen.entry) is cause]
        named = [seen for seen in verdicts if seen.fault.gpu is not None] or verdicts
        error = self._report
        gone_at = self._gone[0].at if self._gone else 0.0
        at = named[0].at if named else error.at if error else gone_at
        return RootCause(cause, at, named[0] if named else None, error)

    def first_cause(self) -> RootCause | None:
        return self._cause_by_load() or self._cause_by_first()

    def _cause_by_load(self) -> RootCause | None:
        """Judge a failed load: where it was raised says more than a fault that fits any file."""
        if self._has_trained:
            return None
        raised = [seen for seen in self._tracebacks() if seen.error.during == "load"]
        if not raised:
            return None
        known = [
            seen
            for seen in self._named_roots()
            if seen.entry
            and (seen.entry.runbook == "checkpoint" or cause_of(seen.entry) in _STRONGER)
        ]
        if known:
            return self._of_fault(min(known, key=self._order))
        return self._of_error(min(raised, key=self._order))

    def _cause_by_first(self) -> RootCause | None:
        fault = min(self._named_roots() or self._roots(), key=self._order, default=None)
        error = self._first_error()
        if fault is not None and fault.fault.id in _REFUSALS:
            error = min(self._tracebacks(), key=self._order, default=None)
            if error is not None:
                return self._of_error(error)
            cause = self._cause_of_refusal(fault.fault)
            return RootCause(cause, fault.at, fault, self._report, confidence=0.6)
        if fault and (error is None or self._order(fault) <= self._order(error)):
            return self._of_fault(fault)
        if error is None:
            return None
        root = self._of_error(error)
        report = self._report
        if report and signal_of(report.error.exit_code) in causes.SHOT:
            # torchrun reports that the first process died by a signal: other errors came later
            is_sure = report.error.kind == REPORTS[0] or root.cause is not Cause.USER_ERROR
            return None if is_sure else root
        return root

    def _cause_of_refusal(self, fault: Fault) -> Cause:
        """Classify a truncated or quoted assertion: its message is known, but no traceback."""
        if numbers := cause_of_numbers(fault.text):
            return numbers
        if self._has_trained:
            return Cause.CRASH
        message = fault.text.rpartition("AssertionError")[2].lstrip(": ")
        return causes.cause_of_error("AssertionError", message, has_worked=False)

    def _of_fault(self, seen: FaultSeen) -> RootCause:
        assert seen.entry is not None
        raised = next((each for each in self._tracebacks() if explains(seen, each)), self._report)
        is_shard = _CHECKPOINT_FILE.search(seen.fault.text)
        is_moved = raised is not None and raised.error.during in ("save", "load")
        cause = cause_of(seen.entry)
        if seen.fault.id == _INTERRUPT and not self._has_trained and raised is not None:
            cause = Cause.HANG if raised.error.during in _STUCK else cause
        is_first_try = seen.fault.id == _ASSERTION and not self._has_trained
        is_other_file = not is_shard and causes.is_missing_file_of_no_data(seen)
        if causes.is_of_a_fork(seen, self._faults) or is_first_try or is_other_file:
            cause = Cause.USER_ERROR
        if cause is Cause.CHECKPOINT and causes.is_of_a_loader(self._faults):
            cause = Cause.DATA
        if seen.fault.id == _HOST_LOST and signal_of(self._code) in causes.SHOT:
            cause = Cause.LOST_POD  # mpirun's remote shell was killed with its pod
        if seen.fault.id == _HUB and any(e.error.during == "data" for e in self._tracebacks()):
            cause = Cause.STORAGE  # the data is read from the hub
        if cause is Cause.DATA and is_shard and (is_moved or not self._has_trained):
            cause = Cause.CHECKPOINT
        if cause is Cause.STORAGE and seen.entry.runbook == "checkpoint":
            # The checkpoint writer passes on any exception raised in it.
            error = raised.error if raised else None
            raised_name = f"{error.error}: {error.message}" if error else ""
            if causes.blames_code(f"{seen.fault.text} {raised_name}"):
                cause = Cause.USER_ERROR
        return RootCause(cause, seen.at, seen, raised, confidence=0.95)

    def _of_error(self, seen: ErrorSeen) -> RootCause:
        name, message = seen.error.error, seen.error.message
        if named := cause_of_numbers(message) or cause_of_place(name, seen.error.where):
            return RootCause(named, seen.at, error=seen)
        if self._was_loading or (seen.error.during == "load" and not self._has_trained):
            return RootCause(causes.cause_of_load_error(name, message), seen.at, error=seen)
        has_worked = self._has_saved if seen.error.during == "save" else self._has_trained
        cause = causes.cause_of_error(name, message, seen.error.during, has_worked=has_worked)
        may_be_files = causes.is_about_files(name) and not causes.names_a_setting(message)
        if cause is Cause.USER_ERROR and self._is_bad_sample(name):
            cause = Cause.DATA
        elif cause is Cause.USER_ERROR and may_be_files:
            if reads_data(f"{seen.error.where} {message}") or self._is_bad_record(name):
                cause = Cause.DATA
            elif self._is_of_a_load(seen):
                cause = Cause.CHECKPOINT
        return RootCause(cause, seen.at, error=seen, confidence=0.7)

    def _is_bad_record(self, name: str | None) -> bool:
        """Whether a data loader worker could not decode a record, or not use it like others."""
        is_in_worker = any(seen.fault.id == _LOADER_WORKER for seen in self._faults)
        is_relayed = any(_IN_WORKER in each.error.message for each in self._errors)
        has_read = self._has_trained or _DECODING.search(str(name)) is not None
        return has_read and (is_in_worker or is_relayed)

    def _is_bad_sample(self, name: str | None) -> bool:
        """Whether an assertion of the data code failed in a worker that had read data before."""
        return self._has_trained and name == "AssertionError" and self._is_bad_record(name)

    def _is_of_a_load(self, seen: ErrorSeen) -> bool:
        """Whether the checkpoint lacks a key, as passed on by the code that reads it."""
        names = (str(each.error.error) for each in self._errors)
        is_passed_on = any("Checkpoint" in name for name in names)
        is_missing = str(seen.error.error).endswith("KeyError")
        return is_missing and is_passed_on and seen.error.during != "save" and not self._has_trained

    def _roots(self) -> list[FaultSeen]:
        roots = [
            seen
            for seen in self._faults
            if seen.is_root and not causes.is_without_memory(seen, self._faults)
        ]
        if causes.ran_out_of_memory(self._faults):
            # Peers of the killed process only report a lost path.
            roots = [seen for seen in roots if seen.entry and seen.entry.blame is not Blame.FABRIC]
            roots = [seen for seen in roots if seen.fault.id != _HOST_LOST]
        timeouts = (self._order(seen) for seen in self._faults if seen.fault.id in TIMEOUTS)
        if first := min(timeouts, default=None):
            roots = [s for s in roots if s.fault.id not in _SEGFAULTS or self._order(s) < first]
        if any(map(is_undefined, roots)) and self._first_cascade():
            return [seen for seen in roots if not is_undefined(seen)]
        return roots

    def _named_roots(self) -> list[FaultSeen]:
        return unexplained([seen for seen in self._roots() if seen.fault.id not in _VAGUE])

    def _first_error(self) -> ErrorSeen | None:
        raised = self._tracebacks()
        own = [each for each in raised if not any(explains(fault, each) for fault in self._faults)]
        return min(own, key=self._order, default=None)

    def _tracebacks(self) -> list[ErrorSeen]:
        """Return the exceptions with a name, without those that another process caused."""
        raised = (seen for seen in self._errors if seen.error.kind in _RAISED and seen.error.error)
        cancelled = causes.cancelled_at(self._faults)
        return [
            seen
            for seen in raised
            if not causes.is_cascade(seen.error.error, seen.error.message)
            and not causes.is_after_cancel(seen, cancelled, self._reports)
        ]

    @staticmethod
    def _order(seen: FaultSeen | ErrorSeen) -> tuple[float, int]:
        what = seen.fault if isinstance(seen, FaultSeen) else seen.error
        return seen.at, what.line

    def cause_by_memory(self) -> RootCause | None:
        seen = next((seen for seen in self._faults if seen.fault.id in causes.MEMORY), None)
        return RootCause(Cause.OOM, seen.at, seen, self._report) if seen else None

    def cause_by_mismatch(self) -> RootCause | None:
        found = out_of_step(self._faults)
        if found is None:
            return None
        at = min(found.first.at, found.other.at)
        return RootCause(Cause.USER_ERROR, at, found.other, self._report, mismatch=found)

    def cause_by_signal(self) -> RootCause | None:
        number = signal_of(self._code)
        if number is None or (number == causes.SIGABRT and self._first_cascade() is not None):
            return None  # torch's watchdog ends a process by SIGABRT
        if any(seen.fault.id in _WATCHED for seen in self._faults):
            return None  # ft_launcher's watchdog ends it by SIGKILL
        return self._of_code()

    def cause_by_cascade(self) -> RootCause | None:
        seen = self._first_cascade()
        if seen is None or seen.entry is None:
            return None
        return RootCause(cause_of(seen.entry), seen.at, seen, self._report, confidence=0.6)

    def _first_cascade(self) -> FaultSeen | None:
        """Return the first cascade; a collective timeout or NCCL network fault precedes others."""
        cascades = [
            seen for seen in unexplained(self._faults)
            if seen.entry is not None
            and (seen.entry.role is Role.CASCADE or seen.fault.id == _TIMED_OUT)
            and cause_of(seen.entry) in _BY_CASCADE
        ]  # fmt: skip
        firm = [
            seen for seen in cascades
            if seen.entry
            and (cause_of(seen.entry) is Cause.HANG or seen.fault.id in _OF_NETWORK)
        ]  # fmt: skip
        sure = [seen for seen in firm if seen.fault.id != _TIMED_OUT]
        return min(sure or firm or cascades, key=self._order, default=None)

    def any_cause(self) -> RootCause | None:
        """Return a cause although only consequences were printed and no exit was observed."""
        error = next((seen for seen in self._errors if seen.error.kind in _RAISED), None)
        fault = next((seen for seen in self._faults if seen.fault.role == Role.CASCADE), None)
        first = error or fault
        if first is None:
            return None
        cause = Cause.USER_ERROR if self._loops() else Cause.CRASH
        if error is not None:
            cause = causes.cause_of_cascade(error.error.error, error.error.message)
        return RootCause(cause, first.at, fault, error, confidence=0.5)

    def cause_by_exit(self) -> RootCause:
        if self._report is not None and self._report.error.error:
            return self._of_error(self._report)
        if self._code is not None:
            return self._of_code()
        report = self._reports[0]
        return RootCause(Cause.CRASH, report.at, error=report, confidence=0.5)

    def _loops(self) -> bool:
        """Whether the container is restarted repeatedly and always ends in the same way."""
        return any(seen.fault.id == _CRASH_LOOP for seen in self._faults)

    def _of_code(self) -> RootCause:
        cause = causes.cause_of_exit(self._code)
        if cause is Cause.CRASH and signal_of(self._code) is None and self._loops():
            cause = Cause.USER_ERROR
        report = self._report
        gone = next((each for each in self._gone if each.exit.exit_code or each.exit.signal), None)
        if report or gone:
            at = report.at if report else gone.at if gone else 0.0
            return RootCause(cause, at, error=report, gone=gone, confidence=0.8)
        failed = next(self._worker_failures())
        return RootCause(cause, failed.at, failed, confidence=0.8)
