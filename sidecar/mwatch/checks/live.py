# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All checks of a running job: those of its manifest, on the object as the API server has it, and
those that need more. Each says that it found something, that all is well, or that it could not see.
"""

from __future__ import annotations

from mwatch.checks import cluster, every, going, volume
from mwatch.checks.pods import has_arguments, training
from mwatch.model.check import Check, CheckState, Found, Level, Made, RunningCheck, Unseen
from mwatch.model.running import Running

RUNNING: tuple[RunningCheck, ...] = (*volume.CHECKS, *cluster.CHECKS, *going.CHECKS)
_BY_ARGUMENTS = frozenset({"world-size", "batch", "heads", "layers", "save-load", "save-volume"})
_DROPPED = frozenset({"misplaced-policy"})
"""Of what the API server does not keep."""
_GONE = "the API server keeps nothing of it; give the file: mwatch diagnose -f FILE"
_HIDDEN = "the trainer's arguments stand neither in the manifest nor in what it printed"


def look(running: Running) -> list[Made]:
    """In the order of the tables; each check once."""
    title = f"{running.workload.kind}/{running.workload.name}"
    made = [_of_manifest(each, running) for each in every.ALL]
    return made + [_of_running(each, running, title) for each in RUNNING]


def worst_first(made: list[Made]) -> list[Found]:
    order = list(Level)
    found = [one for each in made for one in each.found]
    return sorted(found, key=lambda each: order.index(each.level))


def _of_manifest(check: Check, running: Running) -> Made:
    workload = running.workload
    if check.id in _DROPPED:
        if running.applied is None:
            return Made(check.id, check.about, CheckState.UNSEEN, why=_GONE)
        workload = running.applied
    found = tuple(every.look(workload, (check,)))
    if found:
        return Made(check.id, check.about, CheckState.FOUND, found)
    if check.id in _BY_ARGUMENTS and not any(map(has_arguments, training(workload))):
        return Made(check.id, check.about, CheckState.UNSEEN, why=_HIDDEN)
    return Made(check.id, check.about, CheckState.FINE)


def _of_running(check: RunningCheck, running: Running, title: str) -> Made:
    seen = check.look(running)
    if isinstance(seen, Unseen):
        return Made(check.id, check.about, CheckState.UNSEEN, why=seen.why)
    found = [
        Found(check.id, each.level or check.level, title, each.what, each.mend) for each in seen
    ]
    state = CheckState.FOUND if found else CheckState.FINE
    return Made(check.id, check.about, state, tuple(found))
