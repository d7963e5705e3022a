# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks the probe shows to be alive, and for how long none of them got further.

Clocks of pods differ by seconds, so a rank is held against its own clock: how long ago, by that,
it finished its last iteration. All ranks finish an iteration together, so one whose last word
came sooner after it than others' has been silent since. Only where no iteration was finished
yet are clocks compared, with room for their difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from mwatch.model.job import Job, RankState
from mwatch.model.observation import Source
from mwatch.model.settings import HangSettings, Settings


class ProbedRanks(NamedTuple):
    """The ranks as their probes show them; both empty: there is no probe."""

    beating: list[RankState]
    silent: list[RankState]
    newest: float
    """When any of them last wrote, by its own clock."""
    quiet: Mapping[int, float] = {}
    """By rank: seconds of silence, where some are silent and others beat."""

    @property
    def is_dark(self) -> bool:
        """Every probe has stopped at once: that says more of the watcher than of the ranks."""
        return bool(self.silent) and not self.beating

    @property
    def follows(self) -> bool:
        """Somebody beats and tells how far it is."""
        return any(rank.iteration is not None for rank in self.beating)


NOBODY = ProbedRanks([], [], 0.0)
_known: ContextVar[dict[int, ProbedRanks] | None] = ContextVar("watched", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Within it no job changes: what several detectors ask for is worked out once. A job may have
    many thousand ranks. Within another one, that one holds."""
    known = _known.get()
    before = _known.set({} if known is None else known)
    try:
        yield
    finally:
        _known.reset(before)


def watched(job: Job, settings: Settings) -> ProbedRanks:
    known = _known.get()
    if known is None:
        return _watched(job, settings)
    found = known.get(id(job))
    if found is None:
        found = known[id(job)] = _watched(job, settings)
    return found


def _watched(job: Job, settings: Settings) -> ProbedRanks:
    attempt, hang = job.attempt, settings.hang
    if not attempt.ranks or not job.sees(Source.PROBE):
        return NOBODY
    away = attempt.gone.keys() | attempt.unseen
    ranks = [rank for rank in attempt.ranks.values() if rank.stream not in away]
    newest = max((rank.at for rank in ranks), default=0.0)
    if job.now - newest > hang.beat_silence_seconds + hang.clock_seconds:
        return ProbedRanks([], ranks, newest)
    if all(newest - rank.at <= hang.look_seconds for rank in ranks):
        return ProbedRanks(ranks, [], newest)
    quiet = silences(job, ranks, hang)
    limit = hang.beat_silence_seconds
    return ProbedRanks(
        [rank for rank in ranks if quiet[rank.rank] <= limit],
        [rank for rank in ranks if quiet[rank.rank] > limit],
        newest,
        quiet,
    )


def silences(job: Job, ranks: list[RankState], hang: HangSettings) -> dict[int, float]:
    """By rank: for how many seconds it has surely written nothing while others did."""
    latest = max(rank.at for rank in ranks) - hang.clock_seconds
    in_pod: dict[str, float] = {}
    for rank in ranks:
        if rank.at > in_pod.get(rank.stream, latest):
            in_pod[rank.stream] = rank.at
    found = {rank.rank: in_pod.get(rank.stream, latest) - rank.at for rank in ranks}
    counted = _counted(job, ranks)
    longest = _longest(counted)
    for rank in counted:
        silent = longest[rank.iteration or 0] - _since_iteration(rank)
        if silent > found[rank.rank]:
            found[rank.rank] = silent
    return found


def _longest(ranks: list[RankState]) -> dict[int, float]:
    """By iteration: how long ago any rank that is as far, or further, finished its last one."""
    found: dict[int, float] = {}
    for rank in ranks:
        iteration, since = rank.iteration or 0, _since_iteration(rank)
        if since > found.get(iteration, 0.0):
            found[iteration] = since
        else:
            found.setdefault(iteration, 0.0)
    longest = 0.0
    for iteration in sorted(found, reverse=True):
        found[iteration] = longest = max(longest, found[iteration])
    return found


def _counted(job: Job, ranks: list[RankState]) -> list[RankState]:
    """Those that were seen to finish an iteration: before, `progressed_at` is when they came."""
    first = job.attempt.first_iteration
    if first is None:
        return []
    return [rank for rank in ranks if rank.iteration is not None and rank.iteration >= first]


def _since_iteration(rank: RankState) -> float:
    return rank.at - rank.progressed_at


def standstill(job: Job, probe: ProbedRanks, settings: Settings) -> float:
    """For how many seconds no rank that beats has finished an iteration, by their own clocks.

    Nor longer than the phase lasts: that begins by the clock of the first rank.
    """
    ranks = prompt(probe, settings)
    unobserved = min(max(job.now - probe.newest, 0.0), settings.hang.look_seconds)
    first = job.attempt.ranks[min(job.attempt.ranks)]
    at = first.at + unobserved if first in ranks else job.now
    by_phase = max(at - job.attempt.phase_since, 0.0)
    return min(min(map(_since_iteration, ranks)) + unobserved, by_phase)


def prompt(probe: ProbedRanks, settings: Settings) -> list[RankState]:
    """Those that beat and have missed next to nothing: another may be the one that was stopped."""
    late = 2 * settings.hang.look_seconds
    found = [rank for rank in probe.beating if probe.quiet.get(rank.rank, 0.0) <= late]
    return found or probe.beating


def is_behind_the_log(job: Job, ranks: list[RankState], settings: Settings) -> bool:
    """Its counter does not count: lines have told of iterations that no beat knows.

    It may be behind by one: Megatron counts an iteration when it begins the next.
    """
    steps = job.attempt.steps
    known = [rank.iteration for rank in ranks if rank.iteration is not None]
    if not steps or not known or max(known) + 1 >= steps[-1].iteration:
        return False
    hang = settings.hang
    return job.now - steps[-1].at > hang.beat_silence_seconds + hang.clock_seconds
