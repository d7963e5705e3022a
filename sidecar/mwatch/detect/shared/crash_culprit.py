# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank caused the end of an attempt, as far as the printed lines prove it.

A failure that hits every rank, or a resource that ranks share, is blamed on no rank, whichever
printed it first.
"""

from __future__ import annotations

from mwatch.detect.shared.causes import SIGABRT, SIGTERM, has_trained, plain
from mwatch.detect.shared.culprit import absent_suspect, culprit
from mwatch.detect.shared.evidence import place_of_error
from mwatch.detect.shared.root_cause import RootCause
from mwatch.model.cause import Cause
from mwatch.model.event import Error
from mwatch.model.fault import Blame, CatalogueEntry, RestartHelps, Role
from mwatch.model.finding import Culprit, CulpritState
from mwatch.model.job import FaultSeen, Job
from mwatch_trainer.exits.signal_table import signal_of

OF_ALL_RANKS = (Cause.USER_ERROR, Cause.CHECKPOINT, Cause.DATA)
"""Causes that usually hit every rank; an excerpt of a log shows the rank that printed first."""
_SHARED_MEMORY = frozenset({"process-bus-error", "dataloader-bus-error", "shared-memory-full"})


def culprit_of(job: Job, root: RootCause) -> Culprit | None:
    if root.mismatch:
        rank = root.mismatch.rank
        return Culprit(rank, CulpritState.OUT_OF_STEP, job.layout.coordinates(rank))
    if root.cause is Cause.HANG:  # the ranks that report it waited for another one
        suspect = absent_suspect(job, job.attempt.last_progress)
        return culprit(job, suspect) if suspect else None
    fault = root.fault.fault if root.fault else None
    error = root.error.error if root.error else None
    if root.cause is Cause.KILLED and error and _ended_by(error) == SIGTERM:
        return None  # all ranks were terminated: the launcher names the first it noticed
    rank = error.rank if error else None
    if fault is not None and fault.rank is not None and fault.role != Role.CASCADE:
        rank = fault.rank  # a rank that reports the loss of another is not to blame
    if fault and fault.role == Role.CASCADE and error and _ended_by(error) == SIGABRT:
        rank = None  # it reported the loss of another
    if root.fault and root.fault.entry and _is_shared(job, root.fault, root.fault.entry):
        rank = None
    if root.cause in OF_ALL_RANKS and rank is not None and not _others_waited(job, rank):
        rank = None
    if _ended_alike(job, root):
        rank = None
    host = error.host if error and error.host != "localhost" else None
    node = (fault.node if fault else None) or host
    entry = root.fault.entry if root.fault else None
    gpu = fault.gpu if fault and fault.gpu and fault.gpu.startswith("GPU-") else None
    if rank is None and node is None and gpu is None:
        return None
    seen = root.fault or root.error or root.gone
    return Culprit(
        rank=rank,
        coordinates=job.layout.coordinates(rank),
        pod=job.pod_of(seen.stream) if seen else None,
        file=job.file_of(seen.stream) if seen else None,
        node=node,
        gpu_uuid=gpu,
        xid=entry.xid if entry else None,
        place=place_of_error(error),
    )


def _ended_by(error: Error) -> int | None:
    """Return the number of the signal that ended the process."""
    return signal_of(plain(error.exit_code, error.signal))


def _others_waited(job: Job, rank: int) -> bool:
    """Whether not all ranks failed alike: other ranks report a lost peer, or no other rank raised
    an error after training had begun."""
    attempt = job.attempt
    seen = (each.fault for each in attempt.faults if each.fault.role == Role.CASCADE)
    if any(fault.rank not in (None, rank) for fault in seen):
        return True
    named = {each.error.rank for each in (*attempt.errors, *attempt.exceptions)} - {None}
    return has_trained(attempt) and named <= {rank}


def _is_shared(job: Job, seen: FaultSeen, entry: CatalogueEntry) -> bool:
    """Whether no single rank is at fault: several ranks report it, a volume is full, or shared
    memory ran out."""
    if entry.id in _SHARED_MEMORY:
        return True
    if entry.blame is Blame.STORAGE and entry.restart_helps is RestartHelps.NO:
        return True
    same = (each.fault.rank for each in job.attempt.faults if each.fault.id == seen.fault.id)
    return len({*same} - {None}) > 1


def _ended_alike(job: Job, root: RootCause) -> bool:
    """Whether several ranks left with the same exit code without a printed reason."""
    error = root.error.error if root.error else None
    if root.fault or error is None or error.error or error.signal:
        return False
    reports = (each.error for each in job.attempt.errors if each.error.exit_code is not None)
    same = {each.rank for each in reports if each.exit_code == error.exit_code} - {None}
    return len(same) > 1
