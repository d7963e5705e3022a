# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks the probe shows to be alive, and for how long none of them has progressed.

Clocks of pods differ by seconds, so a rank's silence is measured by its own clock. All ranks finish
an iteration together: a rank whose last record came sooner after it than those of other ranks has
been silent for the difference. Before the first iteration the clocks themselves are compared, with
an allowance for their difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from mwatch.model.job import Job, RankState
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.settings import HangSettings, Settings

_known: ContextVar[dict[int, ProbedRanks] | None] = ContextVar("probed_ranks", default=None)


_BY_SIGNAL = frozenset({SignState.STOPPED, SignState.SUSPENDED})
_HELD = _BY_SIGNAL | {SignState.TRACED}


class ProbedRanks(NamedTuple):
    """The ranks as their probes show them; both lists are empty without probes."""

    beating: list[RankState]
    silent: list[RankState]
    newest: float  # time of the last record of any rank, by its own clock
    quiet: Mapping[int, float] = {}
    """Seconds of silence by rank, if some ranks are silent and others are not."""

    @property
    def is_dark(self) -> bool:
        """Whether all probes stopped at once; then the observer is more likely at fault."""
        return bool(self.silent) and not self.beating

    @property
    def has_iterations(self) -> bool:
        return any(rank.iteration is not None for rank in self.beating)


NO_PROBES = ProbedRanks([], [], 0.0)


@contextmanager
def one_evaluation() -> Iterator[None]:
    """Share `probed_ranks` between detectors while the job does not change.

    A job may have many thousand ranks. Nested uses share the outermost one.
    """
    known = _known.get()
    before = _known.set({} if known is None else known)
    try:
        yield
    finally:
        _known.reset(before)


def probed_ranks(job: Job, settings: Settings) -> ProbedRanks:
    known = _known.get()
    if known is None:
        return _probed_ranks(job, settings)
    found = known.get(id(job))
    if found is None:
        found = known[id(job)] = _probed_ranks(job, settings)
    return found


def _probed_ranks(job: Job, settings: Settings) -> ProbedRanks:
    attempt, hang = job.attempt, settings.hang
    if not attempt.ranks or not job.sees(Source.PROBE):
        return NO_PROBES
    away = attempt.gone.keys() | attempt.unreachable
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
    """Return, by rank, for how many seconds it certainly wrote nothing while other ranks did."""
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
    """Return, by iteration, the longest time from progress to last record of any rank that far."""
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
    """Return the ranks seen to finish an iteration.

    Before that, `progressed_at` is the time at which a rank appeared.
    """
    first = job.attempt.first_iteration
    if first is None:
        return []
    return [rank for rank in ranks if rank.iteration is not None and rank.iteration >= first]


def _since_iteration(rank: RankState) -> float:
    return rank.at - rank.progressed_at


def standstill(job: Job, probe: ProbedRanks, settings: Settings) -> float:
    """Return for how many seconds no beating rank finished an iteration, by their own clocks.

    The result never exceeds the time in this phase, measured by the clock of the first rank.
    """
    ranks = prompt(probe, settings)
    unobserved = max(job.now - probe.newest, 0.0)
    if not _are_stopped(job, ranks):  # stopped ranks write no more records
        unobserved = min(unobserved, settings.hang.look_seconds)
    first = job.attempt.ranks[min(job.attempt.ranks)]
    at = first.at + unobserved if first in ranks else job.now
    by_phase = max(at - job.attempt.phase_since, 0.0)
    return min(min(map(_since_iteration, ranks)) + unobserved, by_phase)


def _are_stopped(job: Job, ranks: list[RankState]) -> bool:
    return all(_stopped_since(job, rank, _HELD) is not None for rank in ranks)


def held_seconds(job: Job, probe: ProbedRanks) -> float:
    """Return for how long a signal has stopped every rank, by /proc; 0 if any of them may run.

    A debugger does not count: its user knows that the job is stopped.
    """
    ranks = probe.beating + probe.silent
    since = [_stopped_since(job, rank, _BY_SIGNAL) for rank in ranks]
    held = [job.now - each for each in since if each is not None]
    return min(held) if held and len(held) == len(since) else 0.0


def _stopped_since(job: Job, rank: RankState, states: frozenset[SignState]) -> float | None:
    """Return since when /proc shows one of the states; None if not, or if a record came later."""
    signs = job.attempt.signs
    for number in (rank.rank, None):
        seen = signs.get((SignSource.PROCESS, number, rank.stream))
        if seen is not None and seen.sign.state in states and seen.at >= rank.at:
            return seen.since
    return None


def prompt(probe: ProbedRanks, settings: Settings) -> list[RankState]:
    """Return the beating ranks that missed almost no record; a late rank may have been stopped."""
    late = 2 * settings.hang.look_seconds
    found = [rank for rank in probe.beating if probe.quiet.get(rank.rank, 0.0) <= late]
    return found or probe.beating


def is_behind_the_log(job: Job, ranks: list[RankState], settings: Settings) -> bool:
    """Whether the probe's iteration counter is stuck: the log shows iterations that no record has.

    A counter behind by one is normal: Megatron counts an iteration when it begins the next.
    """
    steps = job.attempt.steps
    known = [rank.iteration for rank in ranks if rank.iteration is not None]
    if not steps or not known or max(known) + 1 >= steps[-1].iteration:
        return False
    hang = settings.hang
    return job.now - steps[-1].at > hang.beat_silence_seconds + hang.clock_seconds
