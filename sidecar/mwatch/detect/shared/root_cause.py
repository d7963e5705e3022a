# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the many last words of an attempt names the cause: by role, not by loudness.

In this order: what Kubernetes or the wrapper said; Megatron's own exits 16 and 17; the earliest
fault that may be blamed, or the earliest exception if that came before it; memory that the kernel
reports; the signal; and at last the cascade, in which every rank complains about another.
Trouble that training survived is not considered. A cause that nobody printed stays unknown.

From an entry of the fault catalogue to the cause of an ended attempt.

An entry's runbook names the family; the exceptions stand beside it. What to do about a cause is
not decided here, but the choice matters: `user_error`, `data` and `oom` stop a job, the others
start it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mwatch.detect.shared.exit_causes import (
    FAILED_RESULT_EXIT,
    REPORTS,
    RERUN_EXIT,
    SHOT,
    SIGABRT,
    WORKER_FAILED,
    cause_of_error,
    cause_of_exit,
    cause_of_load_error,
    cause_of_reason,
    exit_of_worker,
    explains,
    has_trained,
    is_after,
    is_cascade,
    place_of_report,
    plain,
    signal_of,
)
from mwatch.model.event import Error, Fault
from mwatch.model.fault import Blame, CatalogueEntry, Role
from mwatch.model.finding import Cause
from mwatch.model.job import ErrorSeen, FaultSeen, Job, ProcessGone
from mwatch.model.observation import ProcessExit

FAMILIES: dict[str, Cause] = {
    "checkpoint": Cause.CHECKPOINT,
    "collective-timeout": Cause.HANG,
    "data": Cause.DATA,
    "fabric": Cause.FABRIC,
    "gpu-hardware": Cause.HARDWARE,
    "host-memory": Cause.OOM,
    "kubernetes": Cause.LOST_POD,
    "numerics": Cause.NAN,
    "nvlink": Cause.HARDWARE,
    "out-of-memory": Cause.OOM,
    "process-crash": Cause.CRASH,
    "rendezvous": Cause.LOST_POD,
    "software-stack": Cause.USER_ERROR,
    "storage": Cause.STORAGE,
    "user-code": Cause.USER_ERROR,
}
"""By runbook."""

EXCEPTIONS: dict[Cause, tuple[str, ...]] = {
    Cause.HARDWARE: (
        "rerun-transient-error", "rerun-persistent-error", "rerun-not-reproducible",
        "rerun-failed-exit", "weights-differ-across-dp", "process-segfault-nccl", "disk-io-error",
        "ft-gpu-memory-held",
    ),
    Cause.RERUN: (
        "rerun-checkpoint-exit", "rerun-reproducible", "rerun-second-run", "rerun-same-gpu",
    ),
    Cause.HANG: ("store-wait-timeout",),
    Cause.LOSS_SCALE_COLLAPSE: ("loss-scale-at-minimum",),
    Cause.LOSS_SPIKE: ("grad-norm-too-large", "loss-spike-composer"),
    Cause.STARTED_FROM_RANDOM: ("checkpoint-none-found", "checkpoint-tracker-missing"),
    Cause.STORAGE: (
        "checkpoint-write-failed", "checkpoint-worker-failed", "checkpoint-rank-failed",
        "checkpoint-save-overlap", "checkpoint-delete-failed", "data-hub-throttled",
    ),
    Cause.USER_ERROR: (
        # the same for every checkpoint of the run: an older one does not help
        "checkpoint-weights-only", "checkpoint-no-rng-state", "checkpoint-no-optimizer",
        "checkpoint-version-invalid", "checkpoint-required-missing", "checkpoint-shape-differs",
        "checkpoint-keys-differ", "checkpoint-arguments-differ", "checkpoint-format-flag",
        # limits of the pod or the job's own settings
        "ib-memory-lock", "nccl-no-interface", "nccl-topology-missing", "process-too-many-files",
        "process-no-threads", "storage-permission", "object-store-denied", "k8s-container-start",
        "k8s-admission-denied",
    ),
    Cause.CRASH: (
        # may be a kernel, may be the GPU: worth another try
        "cuda-illegal-address", "cuda-misaligned-address", "cuda-launch-failure",
        "cuda-illegal-instruction", "cublas-execution-failed", "cudnn-failed", "te-cublas-error",
        "te-cudnn-error", "te-cuda-error", "wandb-failed", "data-streaming-stale",
        "store-port-in-use", "nccl-bootstrap-mismatch",
        # another process died first
        "dataloader-exited", "gloo-peer-closed", "remote-error", "nccl-remote-error",
        "nccl-peer-closed", "nccl-connect-refused", "nccl-unhandled-cuda", "nccl-cuda-failure",
        "k8s-crash-loop", "k8s-backoff-limit",
    ),
    Cause.FABRIC: ("dns-failure", "etcd-unreachable"),
    Cause.SLOW: ("nccl-uses-tcp", "nccl-no-ib-device", "k8s-readiness-failed"),
    Cause.KILLED: ("process-killed", "k8s-liveness-failed", "elastic-death-signal"),
    Cause.OOM: ("k8s-oom-killed", "slurm-out-of-memory"),
    Cause.DELETED_BY_USER: ("keyboard-interrupt",),
    Cause.IMAGE: ("k8s-image-pull",),
    Cause.UNSCHEDULABLE: (
        "k8s-unschedulable", "k8s-no-gpu-free", "k8s-no-rdma-free", "k8s-quota-exceeded",
    ),
    Cause.VOLUME: ("k8s-mount-failed", "k8s-claim-missing"),
    Cause.PREEMPTED: ("k8s-preempted", "slurm-preempted"),
    Cause.DRAINED: ("k8s-node-shutdown",),
    Cause.FINISHED_EARLY: ("k8s-deadline", "slurm-time-limit"),
}  # fmt: skip
"""By id, where the family is wrong."""

_BY_ID = {id: cause for cause, ids in EXCEPTIONS.items() for id in ids}


def cause_of(entry: CatalogueEntry) -> Cause:
    if entry.role is Role.BENIGN:
        return Cause.UNKNOWN
    if entry.id in _BY_ID:
        return _BY_ID[entry.id]
    if entry.xid is not None:  # 13 and 31 are the application's fault, until they come back
        return Cause.CRASH if entry.blame in (Blame.USER, Blame.JOB) else Cause.HARDWARE
    return FAMILIES.get(entry.runbook, Cause.CRASH)


_BEFORE_SECONDS = 60.0
"""Another rank's line may still come after the fault that ends them all."""
_CHECKPOINT_FILE = re.compile(r"/iter_\d{7}\b|\.distcp\b|/mp_rank_\d\d")
_GENERIC = frozenset({"assertion-failed", "te-assertion", "cuda-unknown-error"})
_VAGUE = _GENERIC | {"checkpoint-load-exit-zero"}
"""Any other root fault says more; the reason of a failed load is in the lines after it."""
_STRONGER = frozenset({Cause.OOM, Cause.HARDWARE, Cause.STORAGE, Cause.FABRIC, Cause.KILLED})
"""Causes that explain why a good checkpoint could not be read."""
_MEMORY = frozenset({"k8s-oom-killed", "host-oom-cgroup", "host-oom-node"})
_NAN = re.compile(r"found (?:NaN|Inf)\b|unexpected result (?:nan|-?inf)", re.I)


class RootCause(NamedTuple):
    cause: Cause
    at: float
    fault: FaultSeen | None = None
    error: ErrorSeen | None = None
    gone: ProcessGone | None = None
    confidence: float = 0.9


def root_cause(job: Job) -> RootCause | None:
    """None: nothing that could end an attempt was seen after its last step."""
    seen = _Seen(job)
    reported = (
        seen.cause_by_reason()
        or seen.cause_by_rerun()
        or seen.first_cause()
        or seen.cause_by_memory()
        or seen.cause_by_signal()
        or seen.cause_by_cascade()
    )
    if reported is not None:
        return reported
    if not seen.has_ended:
        return seen.any_cause()
    return _Seen(job, has_late_lines=True).first_cause() or seen.cause_by_exit()


class _Seen:
    """What was seen since training last moved.

    A pipe that was flushed late puts lines of steps after the traceback that ended them: with
    `has_late_lines` whatever a rank did not catch counts, wherever it stands.
    """

    def __init__(self, job: Job, *, has_late_lines: bool = False) -> None:
        attempt = job.attempt
        self._last = attempt.steps[-1] if attempt.steps else None
        self._has_trained = has_trained(attempt)
        self._was_loading = not self._has_trained and attempt.load in ("begun", "failed")
        self._gone = sorted(attempt.gone.values(), key=lambda gone: gone.at)
        self._errors = [
            seen
            for seen in attempt.errors
            if seen.error.kind in REPORTS or self._counts(seen.at, seen.error)
        ]
        self._faults = [seen for seen in attempt.faults if self._counts(seen.at, seen.fault)]
        if has_late_lines:
            uncaught = [seen for seen in attempt.errors if seen.error.rank is not None]
            self._errors = [seen for seen in uncaught if seen.error.kind == "traceback"]
            self._faults = [
                seen for seen in attempt.faults if any(explains(seen, e) for e in self._errors)
            ]
        self._code = self._exit_code()

    def _counts(self, at: float, what: Fault | Error) -> bool:
        last = self._last
        if last is None or is_after(last, at, what.file, what.line):
            return True
        return what.file != last.file and at >= last.at - _BEFORE_SECONDS

    def _exit_code(self) -> int | None:
        """torchrun's own is 1 whatever happened: its report comes first."""
        ends: list[Error | ProcessExit] = [seen.error for seen in self._reports()]
        ends += [gone.exit for gone in self._gone]
        codes = [plain(end.exit_code, end.signal) for end in ends]
        codes += [exit_of_worker(seen.fault.text) for seen in self._worker_failures()]
        return next((code for code in codes if code is not None), None)

    def _worker_failures(self) -> Iterator[FaultSeen]:
        return (seen for seen in self._faults if seen.fault.id == WORKER_FAILED)

    @property
    def has_ended(self) -> bool:
        return self._code is not None or any(seen.error.kind in REPORTS for seen in self._errors)

    def _ids(self) -> set[str]:
        return {seen.fault.id for seen in self._faults}

    def cause_by_reason(self) -> RootCause | None:
        for gone in self._gone:
            if cause := cause_of_reason(gone.exit.reason):
                return RootCause(cause, gone.at, gone=gone, confidence=0.95)
        return None

    def cause_by_rerun(self) -> RootCause | None:
        """Megatron asks for a resume (16), or has judged a result to be wrong (17)."""
        ids = self._ids()
        if self._code == RERUN_EXIT or "rerun-checkpoint-exit" in ids:
            return self._of_rerun(Cause.RERUN)
        if self._code != FAILED_RESULT_EXIT and "rerun-failed-exit" not in ids:
            return None
        return self._of_rerun(Cause.NAN if "rerun-application-error" in ids else Cause.HARDWARE)

    def _of_rerun(self, cause: Cause) -> RootCause:
        verdicts = [seen for seen in self._faults if seen.entry and cause_of(seen.entry) is cause]
        named = [seen for seen in verdicts if seen.fault.gpu is not None] or verdicts
        error = next(self._reports(), None)
        at = named[0].at if named else error.at if error else self._first_gone_at()
        return RootCause(cause, at, named[0] if named else None, error)

    def _first_gone_at(self) -> float:
        return self._gone[0].at if self._gone else 0.0

    def first_cause(self) -> RootCause | None:
        return self._cause_by_load() or self._cause_by_first()

    def _cause_by_load(self) -> RootCause | None:
        """A load that failed: a fault that fits any file says less than where it was raised."""
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
        fault, error = self._first_root(), self._first_error()
        if fault is not None and fault.fault.id in _GENERIC:
            error = min(self._tracebacks(), key=self._order, default=None)
            return self._of_error(error) if error else self._of_generic(fault)
        if fault is not None and (error is None or self._order(fault) <= self._order(error)):
            return self._of_fault(fault)
        if error is None or self._was_shot():
            return None
        return self._of_error(error)

    def _was_shot(self) -> bool:
        """torchrun saw the first process die by a signal: what others raised came after that."""
        first = next(self._reports(), None)
        return first is not None and signal_of(first.error.exit_code) in SHOT

    def _of_fault(self, seen: FaultSeen) -> RootCause:
        assert seen.entry is not None
        raised = next((each for each in self._tracebacks() if explains(seen, each)), None)
        error = raised or next(self._reports(), None)
        is_shard = not self._has_trained and _CHECKPOINT_FILE.search(seen.fault.text)
        cause = cause_of(seen.entry)
        if is_shard and cause is Cause.DATA:
            cause = Cause.CHECKPOINT
        return RootCause(cause, seen.at, seen, error, confidence=0.95)

    def _of_generic(self, seen: FaultSeen) -> RootCause:
        cause = Cause.NAN if _NAN.search(seen.fault.text) else Cause.CRASH
        return RootCause(cause, seen.at, seen, next(self._reports(), None), confidence=0.6)

    def _of_error(self, seen: ErrorSeen) -> RootCause:
        name, message = seen.error.error, seen.error.message
        if _NAN.search(message):
            return RootCause(Cause.NAN, seen.at, error=seen)
        if self._was_loading or (seen.error.during == "load" and not self._has_trained):
            return RootCause(cause_of_load_error(name, message), seen.at, error=seen)
        cause = cause_of_error(name, message, seen.error.during)
        return RootCause(cause, seen.at, error=seen, confidence=0.7)

    def _roots(self) -> list[FaultSeen]:
        return [seen for seen in self._faults if seen.is_root]

    def _named_roots(self) -> list[FaultSeen]:
        return [seen for seen in self._roots() if seen.fault.id not in _VAGUE]

    def _first_root(self) -> FaultSeen | None:
        return min(self._named_roots() or self._roots(), key=self._order, default=None)

    def _first_error(self) -> ErrorSeen | None:
        """Of the exceptions that no fault explains."""
        own = [
            seen
            for seen in self._tracebacks()
            if not any(explains(fault, seen) for fault in self._faults)
        ]
        return min(own, key=self._order, default=None)

    def _tracebacks(self) -> list[ErrorSeen]:
        """Without those that another process caused."""
        return [
            seen
            for seen in self._errors
            if seen.error.kind == "traceback" and not is_cascade(seen.error.error)
        ]

    @staticmethod
    def _order(seen: FaultSeen | ErrorSeen) -> tuple[float, int]:
        what = seen.fault if isinstance(seen, FaultSeen) else seen.error
        return seen.at, what.line

    def cause_by_memory(self) -> RootCause | None:
        seen = next((seen for seen in self._faults if seen.fault.id in _MEMORY), None)
        return RootCause(Cause.OOM, seen.at, seen, next(self._reports(), None)) if seen else None

    def cause_by_signal(self) -> RootCause | None:
        number = signal_of(self._code)
        if number is None or (number == SIGABRT and self._first_cascade() is not None):
            return None  # torch's watchdog ends a process by SIGABRT
        return self._of_code()

    def cause_by_cascade(self) -> RootCause | None:
        seen = self._first_cascade()
        if seen is None or seen.entry is None:
            return None
        report = next(self._reports(), None)
        return RootCause(cause_of(seen.entry), seen.at, seen, report, confidence=0.6)

    def _first_cascade(self) -> FaultSeen | None:
        """A collective that timed out says more than a launcher that tidies up."""
        cascades = [
            seen for seen in self._faults
            if seen.entry is not None and seen.entry.role is Role.CASCADE
            and cause_of(seen.entry) in (Cause.HANG, Cause.FABRIC, Cause.KILLED, Cause.LOST_POD)
        ]  # fmt: skip
        hangs = [seen for seen in cascades if seen.entry and cause_of(seen.entry) is Cause.HANG]
        return min(hangs or cascades, key=self._order, default=None)

    def any_cause(self) -> RootCause | None:
        """Only consequences were printed, and nobody has seen an end."""
        error = next((seen for seen in self._errors if seen.error.kind == "traceback"), None)
        fault = next((seen for seen in self._faults if seen.fault.role == Role.CASCADE), None)
        first = error or fault
        return RootCause(Cause.CRASH, first.at, fault, error, confidence=0.5) if first else None

    def cause_by_exit(self) -> RootCause:
        if self._code is not None:
            return self._of_code()
        report = next(self._reports())
        return RootCause(Cause.CRASH, report.at, error=report, confidence=0.5)

    def _of_code(self) -> RootCause:
        cause = cause_of_exit(self._code)
        report = next(self._reports(), None)
        gone = next((each for each in self._gone if each.exit.exit_code or each.exit.signal), None)
        if report or gone:
            at = report.at if report else gone.at if gone else 0.0
            return RootCause(cause, at, error=report, gone=gone, confidence=0.8)
        failed = next(self._worker_failures())
        return RootCause(cause, failed.at, failed, confidence=0.8)

    def _reports(self) -> Iterator[ErrorSeen]:
        """Of launchers, the most telling first: each pod's names the first failure of that pod."""
        found = [seen for seen in self._errors if seen.error.kind in REPORTS]
        return iter(sorted(found, key=place_of_report))
