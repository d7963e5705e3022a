# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Past restarts of a job: which ones helped, how many are left, how long the next one waits.

If the record is lost with its controller, all counts start again from zero. Iterations are known
only as precisely as they were printed or probed.
"""

from __future__ import annotations

from mwatch.decide.policy import RULES
from mwatch.model.decision import Act, Action, DecisionRecord
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings


def restarts(record: DecisionRecord) -> list[Act]:
    """Return the restarts since the last stop.

    Earlier ones do not count: a person who restarts a stopped job is assumed to have fixed it.
    """
    found: list[Act] = []
    for act in record.acts:
        if act.action is Action.STOP:
            found = []
        else:
            found.append(act)
    return found


def reached(job: Job, record: DecisionRecord) -> int | None:
    """Return the furthest iteration since the last action.

    Attempts that torchrun, an operator or a person started in between count too.
    """
    last = max((act.attempt for act in record.acts), default=0)
    attempts = [past for past in job.past if past.number > last] + [job.attempt]
    return max((each.iteration for each in attempts if each.iteration is not None), default=None)


def fruitless(record: DecisionRecord, job: Job) -> list[Act]:
    """Return the newest restarts in a row that did not pass the furthest iteration before them.

    After a rollback the run continues from an older checkpoint, so iterations that were reached
    with bad numbers do not count.
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


def fingerprint(finding: Finding) -> str:
    return finding.fingerprint or f"{finding.cause}:{finding.fault or finding.detector}"


def same_in_vain(record: DecisionRecord, job: Job, finding: Finding) -> list[Act]:
    """Return the newest restarts after which the same failure recurred without progress."""
    mark = fingerprint(finding)
    return [act for act in fruitless(record, job) if act.fingerprint == mark]


def repeated_failure_refusal(
    record: DecisionRecord, job: Job, finding: Finding, settings: ActSettings
) -> str | None:
    """Return why the job is not restarted again after this failure; None if it may be."""
    mark = fingerprint(finding)
    in_vain = same_in_vain(record, job, finding)
    if any(_has_lost_much(act, job, settings) for act in in_vain):
        return f"the same thing happened again after a restart that lost all progress ({mark})"
    times = 1 + len(in_vain)
    if times < max(2, settings.max_same_fingerprint):
        return None
    return f"the same thing happened {times} times without progress in between ({mark})"


def _has_lost_much(act: Act, job: Job, settings: ActSettings) -> bool:
    """Whether the restart was from the beginning and repeated more work than a restart costs."""
    again = (act.iteration or 0) * (job.calibration.step_median() or 0.0)
    return act.resume_from is None and again >= settings.min_restart_cost_seconds


def spent(record: DecisionRecord, now: float, settings: ActSettings) -> int:
    """Count restarts in the window that ends now.

    A restart with a time in the future (clocks differ) counts too.
    """
    recent = (act for act in record.acts if act.at > now - settings.window_seconds)
    return sum(act.action is Action.RESTART and act.spends_budget for act in recent)


def backoff_seconds(record: DecisionRecord, now: float, settings: ActSettings) -> float:
    """Return the wait before the next restart.

    It grows with each restart in the window and is the first value after a window without any.
    """
    wait = settings.backoff_first_seconds
    for _ in range(spent(record, now, settings)):
        wait = min(wait * settings.backoff_factor, settings.backoff_max_seconds)
    return min(wait, settings.backoff_max_seconds)


def budget_refusal(record: DecisionRecord, job: Job, settings: ActSettings) -> str | None:
    """Return why no restart is left in the window; None if one is."""
    used = spent(record, job.now, settings)
    if used < settings.restarts_per_window:
        return None
    hours = settings.window_seconds / 3600
    return (
        f"the budget is spent: {used} restarts in the last {hours:g} hours, "
        f"and {settings.restarts_per_window} are allowed"
    )


def no_progress_refusal(record: DecisionRecord, job: Job, settings: ActSettings) -> str | None:
    """Return why another restart is refused; None if the last ones made progress."""
    in_vain = len(fruitless(record, job))
    if in_vain < settings.max_without_progress:
        return None
    return f"no progress: the last {in_vain} restarts did not pass the furthest iteration"
