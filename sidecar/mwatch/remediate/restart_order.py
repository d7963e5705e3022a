# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When an order is fulfilled: the attempt trains, and then is past where the last one was; and when
it cannot be followed, because the volume knows of later attempts than the ledger.

Both are read from the job and the ledger alone, so they are known after a restart of the
controller too. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from mwatch.model.decision import Act, Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.restart_state import RestartEvent, RestartState, can

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor
    from mwatch.remediate.attempt_server import Highest


_LATER_SECONDS = 3.0
"""A sidecar looks once a second; what it reports is that old, and a little more."""


def is_fulfilled(job: JobMonitor, entry: JobEntry) -> bool:
    """All ranks have joined: who asks for it from now on belongs to no gang of this order."""
    start = entry.start
    if start is None or entry.state is not RestartState.RELEASED:
        return False
    attempt = job.engine.job.attempt
    has_trained = attempt.number == start.attempt and attempt.iteration is not None
    return has_trained or attempt.number > start.attempt


def number_is_taken(job: JobMonitor, entry: JobEntry, reported: Highest, now: float) -> bool:
    """Its number was taken before: node 0 cannot follow it, and the others must not. `reported`:
    the highest attempt that a wrapper knows of, by the volume. All pods are seen, later than that,
    to have begun nothing since: a gang that went on unseen may have followed the order."""
    start = entry.start
    if start is None or entry.state is not RestartState.RELEASED:
        return False
    if reported.attempt < start.attempt:
        return False
    seen = job.seen(now)
    if any((each.answered_at or 0.0) < reported.since + _LATER_SECONDS for each in seen.answering):
        return False
    wrappers = [each.snapshot.wrapper for each in seen.answering if each.snapshot is not None]
    is_all = not seen.silent and len(wrappers) >= job.kube.pods_wanted
    has_begun = any(each is not None and each.attempt >= start.attempt for each in wrappers)
    return is_all and not has_begun and job.attempt < start.attempt


def reissue(entry: JobEntry, reported: int) -> JobEntry:
    """With a number that is free; where it forbids no checkpoint, the wrappers' own rule does."""
    start = entry.start
    if start is None or reported < start.attempt or not can(entry.state, RestartEvent.REISSUED):
        return entry
    if start.rollbacks or start.from_beginning or start.quarantine is not None:
        number, entry = reported + 1, entry.moved(RestartEvent.REISSUED)
        return replace(entry, start=structs.replace(start, attempt=number), attempt=number)
    return replace(entry.fulfilled(), attempt=max(entry.attempt, reported))


def only_observed(act: Act, entry: JobEntry) -> bool:
    """Written down as what would have been done, and never done."""
    about = [each for each in entry.incidents
             if each.attempt == act.attempt and each.action is act.action]  # fmt: skip
    return bool(about) and not any(each.is_carried_out for each in about)


def was_done(entry: JobEntry, attempt: int, id: str) -> bool:
    """Something was done about that attempt, and not by the step of that id."""
    if entry.step is not None and entry.step.id == id:
        return False
    return any(each.attempt == attempt and not only_observed(each, entry) for each in entry.acts)


def is_recovering(entry: JobEntry, now: float, seconds: float) -> bool:
    start = entry.start
    if start is None or start.not_before is None or entry.state is not RestartState.RELEASED:
        return False
    return now - start.not_before < seconds


def first_new(job: JobMonitor, entry: JobEntry, now: float) -> IncidentRecord | None:
    """The record of the last restart, once training is past what it had reached before."""
    record = entry.incidents[-1] if entry.incidents else None
    if record is None or not record.is_carried_out or record.action is not Action.RESTART:
        return None
    if record.times.first_new_iteration is not None or job.attempt <= record.attempt:
        return None
    act = next((each for each in entry.acts if each.attempt == record.attempt), None)
    reached = -1 if act is None or act.iteration is None else act.iteration
    now_at = job.engine.job.attempt.iteration
    if now_at is None or now_at <= reached:
        return None
    lost = None
    if record.resume_from is not None and reached >= record.resume_from:
        lost = reached - record.resume_from
    times = replace(record.times, first_new_iteration=now, closed=now)
    world = job.engine.job.layout.world_size
    return record.with_outcome(times, world_size=world, lost_iterations=lost)
