# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The same thing happening again: told by its fingerprint, in the record of past acts.

A detector makes the fingerprint; where it gave none, the cause and the fault stand for it.
"""

from __future__ import annotations

from mwatch.decide import progress
from mwatch.model.decision import Record
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings


def of(finding: Finding) -> str:
    return finding.fingerprint or f"{finding.cause}:{finding.fault or finding.detector}"


def refusal(record: Record, job: Job, finding: Finding, settings: ActSettings) -> str | None:
    """Why this very thing is not answered by a restart once more; None: it may be."""
    mark = of(finding)
    in_vain = progress.fruitless(record, job)
    times = 1 + sum(act.fingerprint == mark for act in in_vain)
    if times < max(2, settings.max_same_fingerprint):
        return None
    return f"the same thing happened {times} times without progress in between ({mark})"
