# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an attempt has died, by what was seen after its newest iteration line.

Proof is a launcher's report, an exit code, a signal, or the word of Kubernetes. A traceback or a
line that only a dying process prints is a strong hint when no iteration came after it; it may
have been caught all the same, so where the processes can be watched they are given a moment.
"""

from __future__ import annotations

import re

from mwatch.detect.afterwards import has_trained, is_after
from mwatch.detect.exit_causes import cause_of_reason
from mwatch.detect.explains import REPORTS
from mwatch.model.event import ASKED_EXITS
from mwatch.model.fault import Blame, Role
from mwatch.model.job import Attempt, ErrorSeen, FaultSeen, Job
from mwatch.model.observation import Sight
from mwatch.model.phase import Slot
from mwatch.model.settings import Settings

_DEADLY = re.compile(
    r"checkpoint-(?:load-exit-zero|tracker-invalid|no-iteration|no-rng-state|no-optimizer"
    r"|version-invalid|required-missing)|rerun-(?:checkpoint|failed)-exit|nan-.*"
    r"|loss-scale-at-minimum|process-(?:segfault.*|bus-error|aborted|killed|cpp-exception"
    r"|illegal-instruction|heap-corrupted)|arguments-.*|script-missing|syntax-error|elastic-.*"
    r"|launcher-rank-crashed|collective-timeout|nccl-teardown|watchdog-.*|gil-hang|monitor-ends-.*"
    r"|k8s-(?:oom-killed|evicted|preempted|node-shutdown|deadline)|keyboard-interrupt|slurm-.*"
)
"""Ids of faults after which their process does not go on."""
_SAVES_FIRST = "Saving a checkpoint and exiting now"
_CATCHABLE = (Blame.USER, Blame.STORAGE, Blame.FABRIC)
"""Errors of the data loader, a logger or a network are often caught and tried again."""


def is_quiet(attempt: Attempt) -> bool:
    """Nothing but iterations lately: the common case, answered first."""
    if attempt.gone:
        return False
    if attempt.errors:
        seen = attempt.errors[-1]
        if _is_last(attempt, seen.at, seen.error.file, seen.error.line):
            return False
    if not attempt.faults:
        return True
    newest = attempt.faults[-1]
    return not _is_last(attempt, newest.at, newest.fault.file, newest.fault.line)


def _is_last(attempt: Attempt, at: float, file: str, line: int) -> bool:
    return is_after(attempt.steps[-1] if attempt.steps else None, at, file, line)


def left_in_order(attempt: Attempt) -> bool:
    """It had finished, or said good-bye: what dies after that is only the process."""
    if attempt.is_done:
        return attempt.is_finished
    if attempt.exit is None:
        return False
    is_told = any(cause_of_reason(gone.exit.reason) for gone in attempt.gone.values())
    return attempt.exit.exit.reason in ASKED_EXITS or not is_told


def is_proven(attempt: Attempt) -> bool:
    for gone in attempt.gone.values():
        if gone.exit.exit_code or gone.exit.signal or cause_of_reason(gone.exit.reason):
            return True
    return any(
        seen.error.kind in REPORTS and _is_last(attempt, seen.at, seen.error.file, seen.error.line)
        for seen in attempt.errors
    )


def is_credible(job: Job, settings: Settings) -> bool:
    """Without proof: there are last words, and nothing moved after them."""
    attempt = job.attempt
    words = _last_words(attempt)
    if not words:
        return False
    latest = max(seen.at for seen in words)
    if attempt.progress_at > latest and not any(map(_is_farewell, words)):
        return False
    is_watched = job.sees(Sight.PROBE) or job.sees(Sight.PROCESS)
    return not is_watched or job.now - latest >= settings.act.lost_pod_seconds


def is_sure(job: Job, settings: Settings) -> bool:
    """An emergency, and not merely one traceback of a job that may go on."""
    attempt = job.attempt
    if not has_trained(attempt):
        return True
    words = _last_words(attempt)
    if any(isinstance(seen, FaultSeen) or seen.error.rank is not None for seen in words):
        return True  # torch's own hook, which prefixes the rank, prints what nobody caught
    if any(_is_beyond_catching(attempt, seen) for seen in attempt.faults):
        return True
    silence = job.now - max(seen.at for seen in words)
    usual = job.calibration.deadline(Slot.TRAINING, settings)
    return silence >= max(settings.act.lost_pod_seconds, usual)


def _last_words(attempt: Attempt) -> list[FaultSeen | ErrorSeen]:
    raised: list[FaultSeen | ErrorSeen] = [
        seen
        for seen in attempt.errors
        if seen.error.kind == "traceback"
        and _is_last(attempt, seen.at, seen.error.file, seen.error.line)
    ]
    return raised + [seen for seen in attempt.faults if _is_deadly(attempt, seen)]


def _is_deadly(attempt: Attempt, seen: FaultSeen) -> bool:
    fault = seen.fault
    if not _DEADLY.fullmatch(fault.id) or not _is_last(attempt, seen.at, fault.file, fault.line):
        return False
    if _SAVES_FIRST not in fault.text:
        return True
    return attempt.last_save_at is not None and attempt.last_save_at >= seen.at


def _is_farewell(seen: FaultSeen | ErrorSeen) -> bool:
    """Megatron saves after it has said so, and then leaves."""
    return isinstance(seen, FaultSeen) and seen.fault.id.startswith("rerun-")


def _is_beyond_catching(attempt: Attempt, seen: FaultSeen) -> bool:
    entry = seen.entry
    if entry is None or entry.role is not Role.ROOT or entry.blame in _CATCHABLE:
        return False
    return _is_last(attempt, seen.at, seen.fault.file, seen.fault.line)
