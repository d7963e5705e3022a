# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the run itself goes, by its logs and sidecars: does it print, did it resume, did it end."""

from __future__ import annotations

from mwatch.model.check import Level, RunningCheck, Seen, Unseen
from mwatch.model.running import LOGS, Running

_LATE = 3.0
_LEAST_SECONDS = 60.0


def _last_rank(running: Running) -> list[Seen] | Unseen:
    """Iteration lines are the last rank's, which need not be in the last pod."""
    told, job = running.progress, running.facts.job
    if job is None or job.finished:
        return []
    if not any(pod.phase == "Running" for pod in running.facts.pods):
        return Unseen("no pod runs")
    if not told.read_pods:
        return Unseen(running.why(LOGS, "no log could be read"))
    if told.line_at is None:
        if told.iteration is not None:
            return []  # the probe counts, whatever is printed
        missing = len(running.facts.pods) - told.read_pods
        if missing > 0:
            return Unseen(f"no iteration line in {told.read_pods} logs; {missing} were not read")
        return [
            Seen((), f"no pod of {told.read_pods} has printed an iteration line",
                 "is --log-interval too large, or does it still start?", Level.WARNING)
        ]  # fmt: skip
    age = running.facts.now - told.line_at
    if told.line_seconds is None or age <= max(_LATE * told.line_seconds, _LEAST_SECONDS):
        return []
    pods = ", ".join(told.line_pods[:2])
    return [
        Seen((), f"the last iteration line ({pods}) is {age:.0f} s old; one came every "
             f"{told.line_seconds:.0f} s", "see the verdict: it hangs, saves or evaluates")
    ]  # fmt: skip


def _random(running: Running) -> list[Seen] | Unseen:
    told = running.progress
    if not told.read_pods:
        return Unseen(running.why(LOGS, "no log could be read"))
    restarts = sum(pod.restarts for pod in running.facts.pods)
    has_past = told.attempts > 1 or restarts or _has_checkpoints(running)
    if not told.random_start or not has_past:
        return []
    return [
        Seen((), f"it was restarted, and starts from random: {told.random_start}",
             "stop it, and check --load and the tracker file")
    ]  # fmt: skip


def _has_checkpoints(running: Running) -> bool:
    stored = running.stored.checkpoints if running.stored is not None else ()
    return any(each.state == "complete" for each in stored)


def _early(running: Running) -> list[Seen] | Unseen:
    told, job = running.progress, running.facts.job
    if job is None or job.finished != "Succeeded":
        return []
    if told.is_done or told.asked_to_end:
        return []
    if told.iteration is None or told.total_iterations is None:
        return Unseen(running.why(LOGS, "no log tells how far it came"))
    if told.iteration >= told.total_iterations:
        return []
    return [
        Seen((), f"{job.kind.value} is Succeeded, but training stopped at iteration "
             f"{told.iteration} of {told.total_iterations}",
             "look for a masked exit code ('| tee' without pipefail), then start it again")
    ]  # fmt: skip


CHECKS = (
    RunningCheck("last-rank", Level.ERROR, "iteration lines come, and come in time", _last_rank),
    RunningCheck("random-start", Level.ERROR, "a restart goes on from a checkpoint", _random),
    RunningCheck("early-success", Level.ERROR, "Succeeded means that it is done", _early),
)
