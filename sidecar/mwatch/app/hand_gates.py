# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a due action back, whatever the plan would say. Pure.

A person's own restart passes all but the leader's and the sight's gate.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from mwatch.app.fleet_settings import FleetSettings
from mwatch.app.hand_common import Episode
from mwatch.app.hand_state import HeldBy
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_ledger import Halt
from mwatch.model.pause import pause_of

if TYPE_CHECKING:
    from mwatch.app.job_watch import JobWatch

BACK_SECONDS = 60.0


class Gate(NamedTuple):
    held_by: HeldBy
    text: str


def gate(
    job: KubeJob,
    settings: FleetSettings,
    halt: Halt | None,
    *,
    now: float,
    sight_age: float | None,
    is_asked: bool,
) -> Gate | None:
    """None: nothing does."""
    if sight_age is None or sight_age > settings.max_sight_seconds:
        told = "never" if sight_age is None else f"{sight_age:.0f} s ago"
        return Gate(HeldBy.STALE_SIGHT, f"the cluster was last seen {told}")
    return None if is_asked else _by_people(job, settings, halt, now)


def _by_people(job: KubeJob, settings: FleetSettings, halt: Halt | None, now: float) -> Gate | None:
    if not settings.acting:
        return Gate(HeldBy.SWITCH, "acting is switched off in the fleet's settings")
    if halt is not None and halt.holds(now):
        words = f"all acting is stopped{_until(halt.until)} by {halt.who}: {halt.why}"
        return Gate(HeldBy.HALT, words)
    pause = pause_of(job, now)
    if pause is not None:
        return Gate(HeldBy.PAUSE, f"paused{_until(pause.until)} by {pause.words}")
    window = settings.maintained(now)
    if window is not None:
        return Gate(
            HeldBy.MAINTENANCE, f"in a maintenance window: {window.why or 'no reason given'}"
        )
    return None


def stalled_together(episode: Episode | None) -> Gate | None:
    if episode is None:
        return None
    count, shared = len(episode.group.keys), episode.cause.shared
    text = f"{count} jobs stalled together on {shared} ({episode.cause.id})"
    return Gate(HeldBy.COMMON_CAUSE, text)


def not_back(job: JobWatch, since: float, at_desk: Collection[str], now: float) -> Gate | None:
    """A gang that lost pods is restarted when the wrappers of the new ones wait: then they need
    not be replaced once more. `since`: from when on all pods run."""
    if not job.is_broken or now - since >= BACK_SECONDS:
        return None
    for each in job.pods.values():
        wrapper = None if each.snapshot is None else each.snapshot.wrapper
        if wrapper is None and each.pod.name not in at_desk:
            return Gate(HeldBy.PODS, f"{each.pod.name} runs, and has not asked for its attempt yet")
    return None


def _until(moment: float | None) -> str:
    if moment is None:
        return ""
    return f" until {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"
