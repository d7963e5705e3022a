# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The network between ranks reports an error: InfiniBand, EFA, NVLink, a link that is down.

Link flaps recover by themselves, and a dead peer looks like a lost path. So a line is critical only
if the job has stopped too, and nothing else failed before it.
"""

from __future__ import annotations

from itertools import pairwise

from mwatch.detect.shared import evidence, xid
from mwatch.detect.shared.causes import ran_out_of_memory
from mwatch.detect.shared.progress import iteration_at, went_on
from mwatch.detect.shared.stall import has_stopped
from mwatch.model.cause import Cause
from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
from mwatch.model.finding import Culprit, Detector, Finding, Severity
from mwatch.model.job import FaultSeen, Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings

FLAP_SECONDS = 300.0  # network alerts are tolerated until there are two within five minutes
_ONE_EVENT_SECONDS = 5.0
_NONFATAL = "nonfatal"
_INSIDE = "nvlink"  # runbook of the links between GPUs within a node
_MAX_EVIDENCE = 4


def detect(job: Job, settings: Settings) -> list[Finding]:
    faults = [seen for seen in job.attempt.faults if _is_fabric(seen)]
    if not faults:
        return []
    faults.sort(key=lambda seen: seen.at)
    lasting = [seen for seen in faults if not went_on(job, seen.at, settings)]
    is_outlived = not lasting or job.attempt.is_done
    first = (faults if is_outlived else lasting)[0]
    severity = _severity(job, faults, first, is_outlived, settings)
    rank = first.fault.rank
    return [
        Finding(
            detector="fabric_fault",
            cause=_cause(first),
            severity=severity,
            summary=_summary(first, len(faults), is_outlived),
            since_time=first.at,
            since_iteration=iteration_at(job.attempt, first.at),
            confidence=0.8 if severity is Severity.CRITICAL else 0.5,
            culprit=Culprit(
                rank=rank,
                coordinates=job.layout.coordinates(rank),
                pod=job.pod_of(first.stream),
                file=job.file_of(first.stream),
                node=first.fault.node,
                xid=xid.number(first),
            ),
            evidence=tuple(evidence.of_fault(seen) for seen in faults[:_MAX_EVIDENCE]),
            cannot_heal=severity is Severity.CRITICAL and _is_fatal(first),
            fault=first.fault.id,
            fingerprint=f"{_cause(first)}/{first.fault.id}",
        )
    ]


def _is_fabric(seen: FaultSeen) -> bool:
    entry = seen.entry
    if entry is None or entry.role is not Role.ROOT or entry.blame is not Blame.FABRIC:
        return False
    return entry.xid is None or _NONFATAL not in seen.fault.text.lower().replace("-", "")


def _cause(seen: FaultSeen) -> Cause:
    """Return the cause; a fault of a link inside the node counts as hardware of that node."""
    is_inside = seen.entry is not None and seen.entry.runbook == _INSIDE
    return Cause.HARDWARE if is_inside else Cause.FABRIC


def _severity(
    job: Job, faults: list[FaultSeen], first: FaultSeen, is_outlived: bool, settings: Settings
) -> Severity:
    if is_outlived:
        return Severity.WARNING if _flaps(faults) else Severity.INFO
    if _follows_another(job, first):
        return Severity.WARNING
    if _is_fatal(first) or has_stopped(job, settings):
        return Severity.CRITICAL
    return Severity.WARNING


def _flaps(faults: list[FaultSeen]) -> bool:
    """Whether two events came within five minutes; the ranks' lines about one event count once."""
    events = [faults[0].at]
    for seen in faults:
        if seen.at - events[-1] > _ONE_EVENT_SECONDS:
            events.append(seen.at)
    return any(b - a <= FLAP_SECONDS for a, b in pairwise(events))


def _follows_another(job: Job, first: FaultSeen) -> bool:
    """Whether a root cause of another kind came first: its peers only report a lost path."""
    attempt = job.attempt
    if ran_out_of_memory(attempt.faults):
        return True  # the kill for memory use is reported last
    roots = (seen for seen in attempt.faults if seen.is_root)
    if any(seen.at <= first.at and not _is_fabric(seen) for seen in roots):
        return True
    return any(seen.at < first.at for seen in attempt.errors)


def _is_fatal(seen: FaultSeen) -> bool:
    entry = seen.entry
    reported = (entry.avoid_node, entry.restart_helps) if entry is not None else None
    return reported == (AvoidNode.YES, RestartHelps.ELSEWHERE)


def _summary(first: FaultSeen, count: int, is_outlived: bool) -> str:
    title = first.entry.title if first.entry is not None else first.fault.id
    text = f"{title} on {xid.node(first)}" + (f", {count} reports" if count > 1 else "")
    return f"{text}; the job went on" if is_outlived else text


DETECTOR = Detector(
    "fabric_fault", frozenset({Source.LOG, Source.FABRIC}), detect, runbook="fabric"
)
