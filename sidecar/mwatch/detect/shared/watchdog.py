# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the trainer's own watchdogs say of a collective that does not end.

The rank that prints a timeout is a victim as a rule; the one that had enqueued less work of the
same group is the one that the others wait for. Ranks that print nothing are not known here.
"""

from __future__ import annotations

import re

from mwatch.model.job import FaultSeen, Job

GIVEN_UP = frozenset(
    {
        "collective-timeout",
        "gloo-timeout",
        "global-timeout-signal",
        "monitor-ends-hang",
        "monitor-ends-timeout",
        "nccl-teardown",
        "watchdog-heartbeat",
        "watchdog-stuck",
    }
)
"""After these lines the process is taken down: nothing can heal any more."""
_WAITED = frozenset({"collective-timeout", "gloo-timeout"})
STUCK_HERE = frozenset({"watchdog-heartbeat", "watchdog-stuck"})
"""These blame the very process that prints them: a stuck CUDA or NCCL call, or the GIL."""

_GROUP = re.compile(r"\[(PG [^\]\n]{1,120}?) Rank \d+\]")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d{1,18})")


def given_up(job: Job, since: float) -> FaultSeen | None:
    """The first watchdog that ended its wait after the last progress."""
    return next((seen for seen in _since(job, since) if seen.fault.id in GIVEN_UP), None)


def stuck_here(job: Job, since: float) -> FaultSeen | None:
    found = (seen for seen in _since(job, since) if seen.fault.id in STUCK_HERE)
    return next((seen for seen in found if seen.fault.rank is not None), None)


def least_enqueued(job: Job, since: float) -> FaultSeen | None:
    """The report of the rank that had enqueued the least, where most of its group had more."""
    groups: dict[str, dict[int, tuple[int, FaultSeen]]] = {}
    for seen in _since(job, since):
        group, work = _GROUP.search(seen.fault.text), _ENQUEUED.search(seen.fault.text)
        if group and work and seen.fault.rank is not None:
            groups.setdefault(group[1], {})[seen.fault.rank] = (int(work[1]), seen)
    for reports in groups.values():
        most = max(work for work, _ in reports.values())
        behind = [report for report in reports.values() if report[0] < most]
        if behind and len(behind) * 2 <= len(reports):
            return min(behind, key=lambda report: report[0])[1]
    return None


def absentee(job: Job, since: float) -> int | None:
    """The only rank of the job that did not wait in a collective until it timed out."""
    world = job.layout.world_size or 0
    waited = {
        seen.fault.rank
        for seen in _since(job, since)
        if seen.fault.id in _WAITED and seen.fault.rank is not None
    }
    absent = [rank for rank in range(world) if rank not in waited] if len(waited) < world else []
    return absent[0] if len(absent) == 1 and world > 1 else None


def _since(job: Job, since: float) -> list[FaultSeen]:
    return [seen for seen in job.attempt.faults if seen.at >= since]
