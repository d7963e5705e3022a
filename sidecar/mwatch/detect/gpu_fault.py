# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A GPU or its node is broken, as shown by an Xid or an error of the driver, CUDA or the host.

A fault that the job survived is only a warning: it may be on a GPU of another job. The kernel log
does not name the rank that uses a GPU; the fault has the GPU's PCI address.
"""

from __future__ import annotations

from mwatch.detect.shared import evidence, xid
from mwatch.detect.shared.causes import is_of_a_fork, is_without_memory
from mwatch.detect.shared.progress import iteration_at, went_on
from mwatch.detect.shared.stall import has_stopped
from mwatch.model.cause import Cause
from mwatch.model.fault import Blame, RestartHelps, Role
from mwatch.model.finding import Culprit, Detector, Finding, Severity
from mwatch.model.job import FaultSeen, Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings

MAX_FINDINGS = 8
_MAX_EVIDENCE = 4
_NOT_THE_MACHINE = frozenset({Blame.USER, Blame.JOB})
_ORCHESTRATION = "kubernetes"  # evictions and drains have causes of their own


def detect(job: Job, settings: Settings) -> list[Finding]:
    faults = job.attempt.faults
    if not faults:
        return []
    xids = xid.standing(faults)
    found = [_of_node(job, bursts, settings) for bursts in xid.bursts(xids).values()]
    findings = [each for each in found if each is not None]
    if findings:
        return findings[:MAX_FINDINGS]
    past = [seen for attempt in job.past for seen in attempt.faults]
    again = xid.repeated(xids, xid.standing(past))
    seen = again or _named_by_text(faults)
    return [] if seen is None else [_finding(job, seen, [seen], settings)]


def _of_node(job: Job, bursts: list[list[FaultSeen]], settings: Settings) -> Finding | None:
    """Judge the first burst that the job did not survive, otherwise the newest burst."""
    found = [roots for roots in map(xid.roots, bursts) if roots]
    if not found:
        return None
    lasting = (roots for roots in found if not went_on(job, roots[0].at, settings))
    roots = next(lasting, found[-1])
    return _finding(job, roots[0], roots, settings)


def _named_by_text(faults: list[FaultSeen]) -> FaultSeen | None:
    """Return the first error of CUDA or the host that is not a consequence of a job error."""
    is_echo = False
    for seen in sorted(faults, key=lambda each: each.at):
        entry = seen.entry
        if entry is None or entry.role is not Role.ROOT or entry.xid is not None:
            continue
        is_ours = xid.is_machine(seen) and entry.runbook != _ORCHESTRATION
        is_ours = is_ours and not (is_of_a_fork(seen, faults) or is_without_memory(seen, faults))
        if is_ours and entry.restart_helps is not RestartHelps.NO:
            if xid.is_fatal(seen) or not is_echo:
                return seen
        elif entry.blame in _NOT_THE_MACHINE:
            is_echo = True
    return None


def _finding(job: Job, seen: FaultSeen, burst: list[FaultSeen], settings: Settings) -> Finding:
    attempt = job.attempt
    is_outlived = went_on(job, seen.at, settings) or attempt.is_done
    is_fatal = any(map(xid.is_fatal, burst)) and not is_outlived
    is_down = is_fatal or (not is_outlived and has_stopped(job, settings))
    rank = seen.fault.rank
    return Finding(
        detector="gpu_fault",
        cause=Cause.HARDWARE,
        severity=Severity.CRITICAL if is_down else Severity.WARNING,
        summary=_summary(seen, burst, is_outlived),
        since_time=seen.at,
        since_iteration=iteration_at(attempt, seen.at),
        confidence=0.95 if any(map(xid.is_fatal, burst)) else 0.6,
        culprit=Culprit(
            rank=rank,
            coordinates=job.layout.coordinates(rank),
            pod=job.pod_of(seen.stream),
            file=job.file_of(seen.stream),
            node=seen.fault.node,
            gpu_uuid=seen.fault.gpu,
            xid=xid.number(seen),
        ),
        evidence=tuple(evidence.of_fault(each) for each in burst[:_MAX_EVIDENCE]),
        cannot_heal=is_fatal,
        fault=seen.fault.id,
        fingerprint=f"hardware/{seen.fault.id}",
    )


def _summary(seen: FaultSeen, burst: list[FaultSeen], is_outlived: bool) -> str:
    number = xid.number(seen)
    title = seen.entry.title if seen.entry is not None else "a fault that the catalogue lacks"
    text = title if number is None else f"Xid {number}: {title}"
    text += f" on {xid.node(seen)}" + (f", GPU {seen.fault.gpu}" if seen.fault.gpu else "")
    due = next((reported for reported in map(xid.action, reversed(burst)) if reported), None)
    text += f"; the driver asks for: {due}" if due else ""
    return f"{text}; the job went on" if is_outlived else text


DETECTOR = Detector(
    "gpu_fault", frozenset({Source.LOG, Source.GPU}), detect, runbook="gpu-hardware"
)
