# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How many restarts a job may have, and how long each must wait.

It counts what the record holds: a record that was lost with its controller forgives everything.
"""

from __future__ import annotations

from mwatch.decide import progress
from mwatch.model.decision import Action, DecisionRecord
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings


def spent(record: DecisionRecord, now: float, settings: ActSettings) -> int:
    """Restarts in the window that ends now; one in the future (clocks differ) counts too."""
    return sum(
        act.action is Action.RESTART
        and act.spends_budget
        and act.at > now - settings.window_seconds
        for act in record.acts
    )


def backoff_seconds(record: DecisionRecord, now: float, settings: ActSettings) -> float:
    """Grows with each recent restart; a job that was quiet for a window starts from the first."""
    wait = settings.backoff_first_seconds
    for _ in range(spent(record, now, settings)):
        wait = min(wait * settings.backoff_factor, settings.backoff_max_seconds)
    return min(wait, settings.backoff_max_seconds)


def refusal(record: DecisionRecord, job: Job, settings: ActSettings) -> str | None:
    """Why there is no restart left in the window; None: there is one."""
    used = spent(record, job.now, settings)
    if used < settings.restarts_per_window:
        return None
    hours = settings.window_seconds / 3600
    return (
        f"the budget is spent: {used} restarts in the last {hours:g} hours, "
        f"and {settings.restarts_per_window} are allowed"
    )


def no_progress(record: DecisionRecord, job: Job, settings: ActSettings) -> str | None:
    """Why another restart would be one too many; None: the last ones helped."""
    in_vain = len(progress.fruitless(record, job))
    if in_vain < settings.max_without_progress:
        return None
    return f"no progress: the last {in_vain} restarts did not pass the furthest iteration"
