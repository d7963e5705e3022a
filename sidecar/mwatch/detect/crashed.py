# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of the attempt died, or are about to.

A launcher's report, an exit code, a signal or a reason given by Kubernetes is proof. A traceback,
or a line that only a dying process prints, is a strong hint if no iteration follows. The exception
may have been caught, so if the processes can be observed, the verdict waits for a short time.
`root_cause` determines the cause.

A recorded log may be an excerpt that ends with the fault itself: `at_log_end` judges it. Printed
text alone does not prove the death of a live job, so only the replay of recorded logs calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mwatch.detect.shared.causes import (
    REPORTS,
    cause_of_reason,
    has_trained,
    is_after,
    plain,
)
from mwatch.detect.shared.crash_culprit import OF_ALL_RANKS, culprit_of
from mwatch.detect.shared.evidence import of_error, of_fault, of_frame, of_gone
from mwatch.detect.shared.root_cause import TIMEOUTS, RootCause, root_cause
from mwatch.detect.shared.stall import stood_still_before
from mwatch.model.cause import Cause
from mwatch.model.event import ASKED_EXITS
from mwatch.model.fault import Blame, Role
from mwatch.model.finding import (
    LOG_END,
    MAX_EVIDENCE,
    Detector,
    Evidence,
    Finding,
    Severity,
)
from mwatch.model.job import Attempt, ErrorSeen, FaultSeen, Job
from mwatch.model.observation import Source
from mwatch.model.phase import DeadlineSlot
from mwatch.model.settings import Settings
from mwatch_trainer.exits.signal_table import signal_of

_DEADLY = re.compile(
    r"checkpoint-(?:load-exit-zero|tracker-invalid|no-iteration|no-rng-state|no-optimizer"
    r"|version-invalid|required-missing)|rerun-(?:checkpoint|failed)-exit|nan-.*"
    r"|loss-scale-at-minimum|process-(?:segfault.*|bus-error|aborted|killed|cpp-exception"
    r"|illegal-instruction|heap-corrupted|terminated|arithmetic-error)|ray-.*|batch-.*"
    r"|container-.*|arguments-.*|script-missing|syntax-error|elastic-.*"
    r"|launcher-rank-crashed|collective-timeout|nccl-teardown|watchdog-.*|gil-hang|monitor-ends-.*"
    r"|k8s-(?:oom-killed|evicted|preempted|node-shutdown|deadline)|keyboard-interrupt|slurm-.*"
)
"""Faults after which the process that prints them does not continue."""
_GUARDS = frozenset({"nan-guard-raised", "nan-in-gradients", "nan-in-gradients-fsdp"})
_SLURM_ENDS = frozenset({"slurm-time-limit", "slurm-cancelled"})
_SAVES_FIRST = "Saving a checkpoint and exiting now"
_CATCHABLE = (Blame.USER, Blame.STORAGE, Blame.FABRIC)
"""Errors of data loaders, loggers and networks are often caught and retried."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|/\S+|\d+")
_ITERATION = re.compile(r"iteration #?(\d{1,18})")
_FINGERPRINT_WORDS = 8
_UNPROVEN = 0.6  # maximum confidence if only the end of a log shows that the run ended
_LOSES_RESULT = (Cause.CHECKPOINT, Cause.OOM, Cause.STORAGE)
"""Causes for which the last save failed, so that the result is lost."""
_ANOTHER_DIED = re.compile(r"\b(?:RayActor|ActorDied|WorkerCrashed|NodeDied|OutOfMemory)Error$")
"""Exceptions about a lost worker: the progress bar that completed was only one of several."""
_MISMATCH = "collective-mismatch"
_SIGKILL = 9
_NAMELESS = re.compile(r"(?:-?\d+|SIG\w+)?")
"""An exit code or a signal."""
_INTERRUPTED = "keyboard-interrupt"
_FIRST_LINES = 5
_OF_THE_PROGRAM = ("process-crash", "software-stack", "gpu-hardware")  # runbooks
_CTRL_C_ERROR = "KeyboardInterrupt"
_SHORT = ("load", "save", "data")  # short activities of a trainer between its steps
_CTRL_C = re.compile(r"\^C|\bSIGINT\b|Received 2 death signal")
_NUMERIC = (Cause.NAN, Cause.RERUN, Cause.HARDWARE)  # causes whose messages may name the iteration


def is_quiet(attempt: Attempt) -> bool:
    """Whether no fault or error follows the last iteration line: the common case, checked first."""
    newest: list[FaultSeen | ErrorSeen] = [*attempt.errors[-1:], *attempt.faults[-1:]]
    return not attempt.gone and not any(_is_last(attempt, seen) for seen in newest)


def _is_last(attempt: Attempt, seen: FaultSeen | ErrorSeen) -> bool:
    what = seen.fault if isinstance(seen, FaultSeen) else seen.error
    return is_after(attempt.steps[-1] if attempt.steps else None, seen.at, what.file, what.line)


def exited_in_order(attempt: Attempt) -> bool:
    """Whether the attempt finished or announced its exit; later errors come from the shutdown."""
    if attempt.is_done:
        return attempt.is_finished
    if attempt.exit is None:
        return False
    is_reported = any(cause_of_reason(gone.exit.reason) for gone in attempt.gone.values())
    return attempt.exit.exit.reason in ASKED_EXITS or not is_reported


def is_proven(job: Job) -> bool:
    attempt = job.attempt
    for gone in attempt.gone.values():
        if gone.exit.exit_code or gone.exit.signal or cause_of_reason(gone.exit.reason):
            return True
    return any(
        seen.error.kind in REPORTS
        and not job.has_wrapper(seen.stream)  # the wrapper reports the exit itself
        and _is_last(attempt, seen)
        for seen in attempt.errors
    )


def is_credible(job: Job, settings: Settings) -> bool:
    """Whether the attempt probably died, without proof: no progress follows the last error."""
    attempt = job.attempt
    errors = _last_errors(attempt)
    if not errors:
        return False
    latest = max(seen.at for seen in errors)
    if attempt.progress_at > latest and not any(map(_announces_exit, errors)):
        return False
    is_watched = job.sees(Source.PROBE) or job.sees(Source.PROCESS)
    return not is_watched or job.now - latest >= settings.act.lost_pod_seconds


def is_sure(job: Job, settings: Settings) -> bool:
    """Whether the finding is critical, and not just a traceback of a job that may continue."""
    attempt = job.attempt
    if not has_trained(attempt):
        return True
    errors = _last_errors(attempt)
    if any(isinstance(seen, FaultSeen) or seen.error.rank is not None for seen in errors):
        return True  # torch's own hook, which prefixes the rank, prints uncaught exceptions
    if any(_is_uncatchable(attempt, seen) for seen in attempt.faults):
        return True
    silence = job.now - max(seen.at for seen in errors)
    usual = job.calibration.deadline(DeadlineSlot.TRAINING, settings)
    return silence >= max(settings.act.lost_pod_seconds, usual)


def _last_errors(attempt: Attempt) -> list[FaultSeen | ErrorSeen]:
    raised = (seen for seen in attempt.errors if seen.error.kind == "traceback")
    deadly = (seen for seen in attempt.faults if _is_deadly(attempt, seen))
    return [*(seen for seen in raised if _is_last(attempt, seen)), *deadly]


def _is_deadly(attempt: Attempt, seen: FaultSeen) -> bool:
    if not _DEADLY.fullmatch(seen.fault.id) or not _is_last(attempt, seen):
        return False
    if _SAVES_FIRST not in seen.fault.text:
        return True
    return attempt.last_save_at is not None and attempt.last_save_at >= seen.at


def _announces_exit(seen: FaultSeen | ErrorSeen) -> bool:
    """Whether Megatron announced an exit: it prints this line, saves, and then exits."""
    return isinstance(seen, FaultSeen) and seen.fault.id.startswith("rerun-")


def _is_uncatchable(attempt: Attempt, seen: FaultSeen) -> bool:
    entry = seen.entry
    if entry is None or entry.role is not Role.ROOT or entry.blame in _CATCHABLE:
        return False
    return _is_last(attempt, seen)


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if is_quiet(attempt) or exited_in_order(attempt):
        return []
    has_proof = is_proven(job)
    if not has_proof and not is_credible(job, settings):
        return []
    is_emergency = has_proof or is_sure(job, settings)
    root = root_cause(job)
    if root is None:
        return []
    finding = _finding(job, root, has_proof, is_emergency)
    return [_hang_behind_kill(job, root, finding, settings) or finding]


def _hang_behind_kill(
    job: Job, root: RootCause, finding: Finding, settings: Settings
) -> Finding | None:
    """Report a hang if a run was killed after it had stalled: the signal is not the fault."""
    by_slurm = root.fault is not None and root.fault.fault.id in _SLURM_ENDS
    if root.cause is not Cause.KILLED and not by_slurm:
        return None
    at = root.at or job.attempt.ended_at
    still = None if at is None else stood_still_before(job, at, settings)
    if at is None or still is None:
        return None
    since, limit = still
    return replace(
        finding,
        cause=Cause.HANG,
        summary=(
            f"no progress for {at - since:.0f} s{_after(job.attempt)} (allowed: {limit:.0f} s), "
            f"then it was ended: {_what(root)}"
        ),
        since_time=since,
        confidence=min(finding.confidence, 0.8),
        culprit=None,
        fingerprint="hang/ended",
    )


def at_log_end(job: Job, after: Mapping[str, int], settings: Settings) -> Finding | None:
    """Find the fault with which a recorded log ends. `after`: the last line of progress, by file.

    Many lines may follow the fault, such as errors of other ranks and the report of a launcher.
    After training has finished, an exception counts only if it shows that the result was not saved.
    """
    attempt = job.attempt
    is_after_end = attempt.is_finished and attempt.exit is None
    if exited_in_order(attempt) and not is_after_end:
        return None
    if not all(is_after_end and gone.is_printed for gone in attempt.gone.values()):
        return None
    root = root_cause(job, after)
    if root is None or (is_after_end and not _loses_result(job, root)):
        return None
    found = _finding(job, root, has_proof=False, is_emergency=True)
    found = _hang_behind_kill(job, root, found, settings) or found
    if _is_by_hand(root) and (not has_trained(attempt) or _has_waited(attempt)):
        summary = f"It was stopped{_after(attempt)}, without an error: it may have stood still."
        found = _interrupted_hang(found, summary)
    if _never_worked(attempt, found, root):
        found = replace(found, is_guess=True)
    confidence = min(found.confidence, _UNPROVEN)
    return replace(found, detector=LOG_END, confidence=confidence, cannot_heal=not found.is_guess)


def _interrupted_hang(found: Finding, summary: str) -> Finding:
    """Turn the finding into a possible hang that a person interrupted, as far as the log shows. The
    rank that printed the interrupt is arbitrary, so no culprit is named."""
    return replace(
        found,
        culprit=None,
        cause=Cause.HANG,
        summary=summary,
        severity=Severity.WARNING,
        is_guess=True,
        fingerprint="hang/interrupted",
    )


def _never_worked(attempt: Attempt, found: Finding, root: RootCause) -> bool:
    """Whether a kernel or a process crashed before the first step: the crash may recur after a
    restart, and nothing shows that the run has ended."""
    if found.cause is not Cause.CRASH or has_trained(attempt) or attempt.resumed_from is not None:
        return False
    entry = root.fault.entry if root.fault else None
    return entry is None or entry.runbook in _OF_THE_PROGRAM


def _is_by_hand(root: RootCause) -> bool:
    """Whether a person pressed Ctrl-C, or a job that had begun to print was cancelled or hit its
    time limit."""
    if root.fault is not None:
        fault = root.fault.fault
        is_cancelled = fault.id in _SLURM_ENDS or _CTRL_C.search(fault.text) is not None
        return fault.id == _INTERRUPTED or (is_cancelled and fault.line > _FIRST_LINES)
    return root.error is not None and root.error.error.error == _CTRL_C_ERROR


def _has_waited(attempt: Attempt) -> bool:
    """Whether the interrupt came during an activity too short for a person to react to."""
    interrupts = (seen.error for seen in attempt.errors if seen.error.error == _CTRL_C_ERROR)
    return any(error.during in _SHORT for error in interrupts)


def _loses_result(job: Job, root: RootCause) -> bool:
    """Whether the result of a finished run is lost: ranks do not meet, or a save or export fails.
    Errors during shutdown are harmless."""
    attempt = job.attempt
    ends = (each for each in job.checkpoints.values() if each.iteration == attempt.iteration)
    if any(each.attempt == attempt.number for each in ends):
        return False
    if root.cause is Cause.HANG:
        return any(seen.fault.id in TIMEOUTS and _is_last(attempt, seen) for seen in attempt.faults)
    if root.error is None:
        return False
    if root.error.error.error and _ANOTHER_DIED.search(root.error.error.error):
        return True
    if root.cause is Cause.KILLED:  # launchers send SIGTERM to processes that have finished
        code = plain(root.error.error.exit_code, root.error.error.signal)
        return root.error.error.kind in REPORTS and signal_of(code) == _SIGKILL
    during = root.error.error.during
    if root.cause in OF_ALL_RANKS and during != "close":
        return True
    return root.cause in _LOSES_RESULT or during in ("save", "load")


def _finding(job: Job, root: RootCause, has_proof: bool, is_emergency: bool) -> Finding:
    return Finding(
        detector="crashed",
        cause=root.cause,
        severity=Severity.CRITICAL if is_emergency else Severity.WARNING,
        summary=f"The attempt died{_after(job.attempt)}: {_what(root)}.",
        since_time=root.at or job.attempt.ended_at,
        since_iteration=_since(job, root),
        confidence=root.confidence if has_proof else min(root.confidence, 0.7),
        culprit=culprit_of(job, root),
        evidence=_evidence(job.attempt, root),
        cannot_heal=has_proof,
        fault=_MISMATCH if root.mismatch else root.fault.fault.id if root.fault else None,
        fingerprint=_fingerprint(root),
    )


def _after(attempt: Attempt) -> str:
    if has_trained(attempt):
        return f" after iteration {attempt.iteration}"
    return " while loading" if attempt.load in ("begun", "failed") else " before its first step"


def _what(root: RootCause) -> str:
    if root.mismatch:
        return f"ranks call different collectives: {root.mismatch.text}"
    if root.fault and root.fault.entry:
        return root.fault.entry.title
    error = root.error.error if root.error else None
    if error and error.error:
        return f"{error.error}: {error.message[:120]}".rstrip(": ")
    if error and (error.signal or error.exit_code is not None):
        return error.signal or f"exit code {error.exit_code}"
    if root.gone:
        end = root.gone.exit
        return end.reason or end.signal or f"exit code {end.exit_code}"
    if error and error.where:
        return f"an exception in {error.where}; its name is not in the log"
    return str(root.cause)


def _since(job: Job, root: RootCause) -> int | None:
    attempt = job.attempt
    done = attempt.iteration if attempt.iteration is not None else attempt.resumed_from
    if root.cause not in _NUMERIC:
        return None if done is None else done + 1
    named = _named(root)
    if named is None:
        return max([done or 0, *_checked(job, root)]) + 1
    # The guard's save on exit is the last good iteration; releases count it differently.
    limits = [number + 1 for number, at in _saves(job) if at >= root.at]
    if done is not None:  # a later iteration would have printed a line
        limits.append(done + (job.layout.log_interval or named))
    return min([named, *limits])


def _checked(job: Job, root: RootCause) -> list[int]:
    """Return the checkpoints that this attempt saved before a guard raised. The guard checks every
    iteration: there was no NaN up to them, though no line shows the newest iterations."""
    if root.fault is None or root.fault.fault.id not in _GUARDS:
        return []
    return [number for number, at in _saves(job) if at < root.at]


def _saves(job: Job) -> list[tuple[int, float]]:
    """Return the checkpoints that the log reports as saved by this attempt, with their times."""
    return [
        (known.iteration, known.saved_at)
        for known in job.checkpoints.values()
        if known.attempt == job.attempt.number and known.saved_at is not None
    ]


def _named(root: RootCause) -> int | None:
    """Return the iteration that the message names; Megatron prints -1 if unknown."""
    text = root.fault.fault.text if root.fault else root.error.error.message if root.error else ""
    found = _ITERATION.search(text)
    return int(found[1]) if found else None


def _evidence(attempt: Attempt, root: RootCause) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    if root.mismatch:
        found.append(of_fault(root.mismatch.first))
    if root.fault:
        found.append(of_fault(root.fault))
    if root.error:
        found += [of_error(root.error), *of_frame(root.error)]
    found += [of_error(seen) for seen in attempt.errors if seen.error.kind in REPORTS][:2]
    found += [of_gone(gone) for gone in attempt.gone.values()][:2]
    return tuple(dict.fromkeys(found))[:MAX_EVIDENCE]


def _fingerprint(root: RootCause) -> str:
    """Return a key without numbers, addresses and paths, equal for the same failure."""
    if root.mismatch:
        return f"{root.cause}/{_MISMATCH}"
    if root.fault:
        return f"{root.cause}/{root.fault.fault.id}"
    error = root.error.error if root.error else None
    if error and error.error:
        text = " ".join(_NUMBERS.sub("#", error.message).split()[:_FINGERPRINT_WORDS])
        return f"{root.cause}/{error.error}: {text}".rstrip(": ")
    if error and (error.signal or error.exit_code is not None):
        return f"{root.cause}/{error.signal or error.exit_code}"
    if root.gone:
        end = root.gone.exit
        return f"{root.cause}/{end.reason or end.signal or end.exit_code}"
    return str(root.cause)


DETECTOR = Detector(
    "crashed", frozenset({Source.LOG, Source.PROCESS}), detect, runbook="process-crash"
)
