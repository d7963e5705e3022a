# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which attempts of a job failed, how far they got and what ended them.

An attempt that was asked to end is not a failure. What ended an attempt is named by its first root
fault, else by the class of its first error, without numbers, ranks and times.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mwatch.detect.shared import causes, evidence
from mwatch.model.cause import Cause
from mwatch.model.event import ASKED_EXITS, Error
from mwatch.model.finding import Evidence, Finding
from mwatch.model.job import Attempt, Job
from mwatch.model.phase import JobPhase

_ASKED_EXITS = ASKED_EXITS | {"signal"}
_ASKED_REASONS = frozenset({"preempted", "deleted", "suspended", "drained"})
_RERUN_EXITS = frozenset({16, 216})
"""Exit codes by which Megatron asks to be resumed once; the wrapper passes 16 on as 216."""


_PROCESS = re.compile(r"\bPID (\d{1,9})|\[[\w.-]{1,80}:(\d{1,9}) ")
"""Process id in the output of a native crash."""


class EndedAttempt(NamedTuple):
    attempt: Attempt
    has_progressed: bool  # it passed the furthest iteration of the history that it continued


class Death(NamedTuple):
    key: str
    fault: str | None
    evidence: Evidence
    place: str | None = None
    """Where an exception was raised whose reason lies in the program; None for any other end."""


def is_over(attempt: Attempt) -> bool:
    return attempt.ended_at is not None or attempt.phase is JobPhase.ENDED


def reached(attempt: Attempt) -> int | None:
    """Return the last iteration; None if the attempt finished none of its own."""
    return None if attempt.first_iteration is None else attempt.iteration


def has_failed(attempt: Attempt) -> bool:
    if attempt.is_done:
        return False
    if attempt.exit is not None and attempt.exit.exit.reason in _ASKED_EXITS:
        return False
    gone = attempt.gone.values()
    if any((each.exit.reason or "").lower() in _ASKED_REASONS for each in gone):
        return False
    codes = {each.exit.exit_code for each in gone}
    codes |= {seen.error.exit_code for seen in attempt.errors}
    return not codes & _RERUN_EXITS


def failures(job: Job) -> list[EndedAttempt]:
    """Return the failed attempts, oldest first, with the current one if it is over.

    The first attempt that could not load a given checkpoint is not counted: the next one loads
    another.
    """
    rollbacks = list(job.timeline.rollbacks)
    best: int | None = None
    unloadable: set[int | None] = {None}
    found = []
    for attempt in (*job.past, job.attempt):
        until = job.now if attempt.ended_at is None else attempt.ended_at
        while rollbacks and rollbacks[0].at <= until:
            point = rollbacks.pop(0).to_iteration
            best = None if best is None else min(best, point)
        far = reached(attempt)
        has_progressed = far is not None and (best is None or far > best)
        best = far if has_progressed else best
        if attempt.load == "failed" and attempt.load_iteration not in unloadable:
            unloadable.add(attempt.load_iteration)
        elif is_over(attempt) and has_failed(attempt):
            found.append(EndedAttempt(attempt, has_progressed))
        elif has_progressed:
            found.clear()
    return found


def death(attempt: Attempt) -> Death | None:
    """Name what ended the attempt; None if nothing was reported."""
    roots = [seen for seen in attempt.faults if seen.is_root]
    if roots:
        first = min(roots, key=lambda seen: seen.at)
        return Death(first.fault.id, first.fault.id, evidence.of_fault(first))
    for seen in attempt.errors:
        if key := _class(seen.error):
            return Death(key, None, evidence.of_error(seen), _place(attempt, seen.error))
    for gone in attempt.gone.values():
        if gone.exit.signal or gone.exit.exit_code:
            key = gone.exit.signal or f"exit-{gone.exit.exit_code}"
            return Death(key, None, evidence.of_gone(gone))
    return None


def _place(attempt: Attempt, error: Error) -> str | None:
    is_ours = causes.cause_of_error(error.error, error.message, has_worked=False)
    if error.where is None or is_ours is not Cause.USER_ERROR:
        return None
    return f"{error.where} after iteration {reached(attempt)}"


def _class(error: Error) -> str | None:
    if error.kind == "restart":
        return None
    if error.error:
        return error.error
    return error.signal or (f"exit-{error.exit_code}" if error.exit_code else None)


def crashed_alike(job: Job, finding: Finding) -> bool:
    """Whether the same native crash ended several processes: the reason is common to all."""
    if finding.cause is not Cause.CRASH or finding.fault is None:
        return False
    faults = (seen.fault for seen in job.attempt.faults)
    texts = [fault.text for fault in faults if fault.id == finding.fault]
    texts += [seen.error.message for seen in job.attempt.errors]
    found = filter(None, map(_PROCESS.search, texts))
    return len({each[1] or each[2] for each in found}) > 1
