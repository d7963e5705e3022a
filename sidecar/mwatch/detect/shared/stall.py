# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the attempt has been silent for longer than what it is doing allows.

A stall is a fact about silence. Whether it is worth a restart is not decided here.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.detect.shared.patience import patience
from mwatch.detect.shared.probe import is_behind_the_log, standstill, watched
from mwatch.detect.shared.watchdog import given_up
from mwatch.model.job import FaultSeen, Job, SignSeen
from mwatch.model.observation import SignState
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

_NEVER = frozenset({JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED})
_GIVEN_UP = 0.9


class Stall(NamedTuple):
    since: float
    """The last progress."""
    limit: float
    """What the silence was measured by; 0: a watchdog of the trainer has ended its wait."""
    confidence: float
    note: str
    given_up: FaultSeen | None
    is_unobserved: bool
    """Every probe is silent too, and nobody else sees the processes: blind, not hung."""


def stall(job: Job, settings: Settings) -> Stall | None:
    attempt = job.attempt
    if attempt.phase in _NEVER or attempt.ended_at is not None or not job.has_started:
        return None
    since = attempt.last_progress
    if since <= 0:
        return None
    is_quiet = not attempt.faults or attempt.is_finished  # a watchdog may still bark at the end
    ended = None if is_quiet else given_up(job, since)
    if ended is not None:
        return Stall(since, 0.0, _GIVEN_UP, "", ended, False)
    return _outlasted(job, since, settings)


def has_stopped(job: Job, settings: Settings) -> bool:
    """Nothing comes of the attempt any more: it is over, or stalled."""
    attempt = job.attempt
    is_over = attempt.phase is JobPhase.ENDED or attempt.ended_at is not None
    return is_over or stall(job, settings) is not None


def _least(settings: Settings) -> float:
    """No limit is shorter; most looks end here."""
    by_probe = settings.hang.probe_floor_seconds - settings.hang.look_seconds
    return min(by_probe, settings.deadlines.training.floor_seconds)


def _outlasted(job: Job, since: float, settings: Settings) -> Stall | None:
    probe = watched(job, settings)
    silent = job.now - since
    if probe.follows and not is_behind_the_log(job, probe.beating, settings):
        silent = standstill(job, probe, settings)
    if silent < _least(settings):
        return None
    allowed = patience(job, probe, settings)
    if allowed is None or silent < allowed.seconds or _is_dying(job, since, settings):
        return None
    after = probe.newest + 2 * settings.hang.look_seconds
    is_unobserved = probe.is_dark and not fresh_signs(job, max(since, after), settings, 0.0)
    return Stall(since, allowed.seconds, allowed.confidence, allowed.note, None, is_unobserved)


def _is_dying(job: Job, since: float, settings: Settings) -> bool:
    """It has raised an error and is coming down: that is a crash, unless it never ends."""
    last = max((seen.at for seen in job.attempt.errors if seen.at >= since), default=None)
    return last is not None and job.now - last < settings.hang.dying_seconds


def fresh_signs(
    job: Job, since: float, settings: Settings, room: float | None = None
) -> list[SignSeen]:
    """What witnesses have said of this silence; older words were about something else.

    `room`: by which their clocks may be behind.
    """
    hang = settings.hang
    room = hang.beat_silence_seconds if room is None else room
    earliest = max(since - room, job.now - hang.sign_seconds)
    return [
        seen
        for seen in job.attempt.signs.values()
        if seen.at >= earliest and seen.sign.state is not SignState.UNKNOWN
    ]
