# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which restarts brought the run further than it had been.

Iterations are known as finely as somebody told them: from the log alone, by its interval. An
attempt that died before its first line has reached nothing.

The same thing happening again: told by its fingerprint, in the record of past acts.

A detector makes the fingerprint; where it gave none, the cause and the fault stand for it.
"""

from __future__ import annotations

from mwatch.decide.policy import RULES
from mwatch.model.decision import Act, Action, DecisionRecord
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings


def restarts(record: DecisionRecord) -> list[Act]:
    """Since the last stop: whoever starts a stopped job again has changed something."""
    found: list[Act] = []
    for act in record.acts:
        if act.action is Action.STOP:
            found = []
        else:
            found.append(act)
    return found


def reached(job: Job, record: DecisionRecord) -> int | None:
    """The furthest iteration since the last act.

    torchrun, an operator or a person may have restarted the job in between: their attempts
    count as well.
    """
    last = max((act.attempt for act in record.acts), default=0)
    attempts = [past for past in job.past if past.number > last] + [job.attempt]
    return max((each.iteration for each in attempts if each.iteration is not None), default=None)


def fruitless(record: DecisionRecord, job: Job) -> list[Act]:
    """The newest restarts in a row that did not pass the furthest iteration before them.

    After a rollback the run goes on from an older point: what the bad numbers had reached is
    forgotten.
    """
    done = restarts(record)
    afterwards = [act.iteration for act in done[1:]] + [reached(job, record)]
    chain: list[Act] = []
    best: int | None = None
    for act, after in zip(done, afterwards, strict=False):
        best = _furthest(best, act)
        if after is not None and (best is None or after > best):
            chain = []
        elif RULES[act.cause].counts_as_no_progress:
            chain.append(act)
    return chain


def _furthest(best: int | None, act: Act) -> int | None:
    if act.first_bad is not None:
        return act.resume_from or 0
    if act.iteration is None:
        return best
    return act.iteration if best is None else max(best, act.iteration)


def of(finding: Finding) -> str:
    return finding.fingerprint or f"{finding.cause}:{finding.fault or finding.detector}"


def repeated_failure_refusal(
    record: DecisionRecord, job: Job, finding: Finding, settings: ActSettings
) -> str | None:
    """Why this very thing is not answered by a restart once more; None: it may be."""
    mark = of(finding)
    in_vain = fruitless(record, job)
    times = 1 + sum(act.fingerprint == mark for act in in_vain)
    if times < max(2, settings.max_same_fingerprint):
        return None
    return f"the same thing happened {times} times without progress in between ({mark})"
