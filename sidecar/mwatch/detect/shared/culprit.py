# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank is to blame for a stall, and whether the stall can still recover.

Proof beats inference: a dead or stopped process, then what the collectives show (flight recorder,
RAS), then the probes. A rank is ahead by one iteration at most, so the others wait for the ranks
with the fewest iterations; among equals, for the one that has not reached the place where most
ranks wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from mwatch.detect.shared import evidence
from mwatch.detect.shared.place import odd_rank
from mwatch.detect.shared.probe import ProbedRanks, probed_ranks
from mwatch.detect.shared.stall import Stall, absentee, fresh_signs, least_enqueued, stuck_here
from mwatch.model.finding import Culprit, CulpritState, Evidence
from mwatch.model.job import FaultSeen, Job, RankState, SignSeen
from mwatch.model.observation import SignSource, SignState
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

_WAITING = "collective"
_WORKING = frozenset({"compute", "training"})
_FETCHING = "data"
_BEFORE_STEPS = frozenset({JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP})
_NAMED = {
    SignState.DEAD: CulpritState.SILENT,
    SignState.STOPPED: CulpritState.SILENT,
    SignState.SUSPENDED: CulpritState.SILENT,
    SignState.TRACED: CulpritState.SILENT,
    SignState.NEVER_JOINED: CulpritState.NEVER_JOINED,
    SignState.OUT_OF_STEP: CulpritState.OUT_OF_STEP,
    SignState.BEHIND: CulpritState.BEHIND,
    SignState.STUCK: CulpritState.STUCK,
}
"""Culprit state by sign, strongest sign first."""
_FINAL = frozenset(
    {SignState.DEAD, SignState.STOPPED, SignState.NEVER_JOINED, SignState.OUT_OF_STEP}
)
_MAX_SIGNS = 4
_COLLECTIVES = frozenset({SignSource.NCCL_RAS, SignSource.FLIGHT_RECORDER})


class Suspect(NamedTuple):
    rank: int | None
    state: CulpritState
    text: str


def silent_suspect(probe: ProbedRanks) -> Suspect | None:
    """Return the rank that stopped writing first while others go on."""
    if not probe.silent or probe.is_dark:
        return None
    first = max(probe.silent, key=lambda rank: (probe.quiet[rank.rank], -rank.rank))
    quiet = probe.quiet[first.rank]
    text = f"probe: rank {first.rank} has written nothing for {quiet:.0f} s, others go on"
    return Suspect(first.rank, CulpritState.SILENT, text)


def missing_suspect(probe: ProbedRanks, world: int | None, phase: JobPhase) -> Suspect | None:
    """Return a rank that never wrote a record although most ranks have started."""
    if world is None or phase not in _BEFORE_STEPS:
        return None
    there = {rank.rank for rank in probe.beating}
    missing = [rank for rank in range(min(world, 2 * len(there))) if rank not in there]
    if not missing or world - len(there) >= len(there):
        return None
    text = f"probe: rank {missing[0]} never wrote a record, {len(there)} of {world} ranks did"
    return Suspect(missing[0], CulpritState.NEVER_JOINED, text)


def slowest(probe: ProbedRanks) -> list[RankState]:
    known = [rank for rank in probe.beating if rank.iteration is not None]
    fewest = min((rank.iteration or 0 for rank in known), default=None)
    return [rank for rank in known if rank.iteration == fewest]


def behind_suspect(probe: ProbedRanks) -> Suspect | None:
    """Return a rank with fewer iterations than most others."""
    late = slowest(probe)
    fewest = late[0].iteration if late else None
    others = [rank for rank in probe.beating if rank.iteration not in (None, fewest)]
    if not late or len(late) > len(others):
        return None
    # Of several, prefer one that does not itself wait in a collective.
    last = min(late, key=lambda rank: (rank.phase == _WAITING, rank.rank))
    most = max(rank.iteration or 0 for rank in others)
    text = f"probe: rank {last.rank} has finished {last.iteration} iterations, others {most}"
    return Suspect(last.rank, CulpritState.BEHIND, text)


def elsewhere_suspect(probe: ProbedRanks) -> Suspect | None:
    """Return a rank with as many iterations as the others, but in another phase."""
    late = slowest(probe) or probe.beating
    phases = Counter(rank.phase for rank in late)
    if len(phases) < 2:
        return None
    common, count = phases.most_common(1)[0]
    if count * 2 <= len(late):
        return None
    outliers = [rank for rank in late if _is_waited_for(rank.phase, common)]
    if not outliers:
        return None
    last = min(outliers, key=lambda rank: rank.rank)
    text = f"probe: rank {last.rank} is in {last.phase}, {count} others in {common}"
    return Suspect(last.rank, CulpritState.BEHIND, text)


def _is_waited_for(phase: str, common: str) -> bool:
    """Whether others wait for a rank in this phase; if most wait for data, it is the storage."""
    if phase == common or common == _FETCHING:
        return False
    return phase != _WAITING if common in _WORKING else True


def equal_suspect(probe: ProbedRanks, world: int | None) -> Suspect | None:
    beating = probe.beating
    if world is None or len(beating) < world or probe.silent:
        return None
    phases = Counter(rank.phase for rank in beating)
    common, count = phases.most_common(1)[0]
    if world == 1:
        text = f"probe: the only rank is in {common}"
        return Suspect(beating[0].rank, CulpritState.STUCK, text)
    text = f"probe: no rank is behind, {count} of {world} are in {common}"
    return Suspect(None, CulpritState.ALL_EQUAL, text)


class BlameResult(NamedTuple):
    culprit: Culprit | None
    evidence: tuple[Evidence, ...]
    cannot_heal: bool
    agree: int  # independent witnesses that also see no progress
    disagree: int


def find_culprit(job: Job, stall: Stall, settings: Settings) -> BlameResult:
    signs = fresh_signs(job, stall.since, settings)
    if job.is_alone:  # its collectives involve no other rank
        signs = [seen for seen in signs if seen.sign.source not in _COLLECTIVES]
    still = {seen.sign.source for seen in signs if seen.sign.state is not SignState.MOVING}
    moving = {seen.sign.source for seen in signs} - still
    lasted = job.now - stall.since >= settings.hang.probe_floor_seconds
    is_final = any(seen.sign.state in _FINAL for seen in signs) or _is_pod_held(job, signs)
    beats = settings.hang.beat_silence_seconds
    named = [seen for seen in signs if not _is_echo(seen, stall.given_up)]
    suspect, proof = _suspect(job, named, stall, probed_ranks(job, settings), beats)
    return BlameResult(
        None if suspect is None else culprit(job, suspect, _stream(suspect, proof)),
        _evidence(suspect, proof, signs, stall.given_up),
        (is_final and lasted) or stall.given_up is not None,
        len(still) + (stall.given_up is not None),
        len(moving),
    )


def _is_pod_held(job: Job, signs: Iterable[SignSeen]) -> bool:
    """Whether a signal stopped all processes of a pod; a person would stop those of the job."""
    is_held = any(seen.sign.state is SignState.SUSPENDED for seen in signs)
    return is_held and job.suspended_since() is None


def culprit(job: Job, suspect: Suspect, stream: str | None = None) -> Culprit:
    rank = suspect.rank
    if rank is None:
        return Culprit(None, suspect.state, pod=job.pod_of(stream), file=job.file_of(stream))
    state = job.attempt.ranks.get(rank)
    stream = state.stream if state is not None else stream
    return Culprit(
        rank,
        suspect.state,
        job.layout.coordinates(rank),
        pod=job.pod_of(stream),
        file=job.file_of(stream),
    )


def _suspect(
    job: Job, signs: list[SignSeen], stall: Stall, probe: ProbedRanks, beats: float
) -> tuple[Suspect | None, SignSeen | None]:
    named = _named_by_sign(job, signs)
    if named is not None:
        return named
    world = job.layout.world_size
    silent = silent_suspect(probe)
    if silent is not None and fell_silent_after(job, silent, stall.given_up, beats):
        silent = None
    found = (
        silent
        or missing_suspect(probe, world, job.attempt.phase)
        or behind_suspect(probe)
        or _by_watchdog(least_enqueued(job, stall.since), CulpritState.BEHIND)
        or absent_suspect(job, stall.since)
    )
    found = found or stack_suspect(job, stall.since)
    equal = next((seen for seen in signs if seen.sign.state is SignState.ALL_EQUAL), None)
    if found is None and equal is not None:
        return Suspect(None, CulpritState.ALL_EQUAL, ""), equal
    found = (
        found
        or elsewhere_suspect(probe)
        or _by_watchdog(stuck_here(job, stall.since), CulpritState.STUCK)
        or equal_suspect(probe, world)
    )
    return found, None


def fell_silent_after(job: Job, suspect: Suspect, given_up: FaultSeen | None, beats: float) -> bool:
    """Whether the rank fell silent when a watchdog ended its process: it is only a victim."""
    if given_up is None or suspect.rank not in job.attempt.ranks:
        return False
    return job.attempt.ranks[suspect.rank].at >= given_up.at - beats


def _is_echo(seen: SignSeen, given_up: FaultSeen | None) -> bool:
    return given_up is not None and seen.sign.state is SignState.DEAD and seen.at >= given_up.at


def _named_by_sign(job: Job, signs: list[SignSeen]) -> tuple[Suspect, SignSeen] | None:
    for reported, state in _NAMED.items():
        named = [seen for seen in signs if seen.sign.state is reported]
        if not named or (reported is SignState.STUCK and _are_most(job, named)):
            continue
        seen = min(named, key=lambda each: _order(job, each))
        return Suspect(_rank(job, seen), state, ""), seen
    return None


def _are_most(job: Job, named: list[SignSeen]) -> bool:
    """Whether most ranks are stuck: then they wait for one that is not."""
    world = job.layout.world_size or len(job.attempt.ranks)
    return bool(world) and world > 1 and len(named) * 2 > world


def _order(job: Job, seen: SignSeen) -> tuple[int, int]:
    rank = _rank(job, seen)
    state = None if rank is None else job.attempt.ranks.get(rank)
    done = -1 if state is None or state.iteration is None else state.iteration
    return done, -1 if rank is None else rank


def _rank(job: Job, seen: SignSeen) -> int | None:
    """Return the rank of the sign; a sign of a whole pod stands for its lowest rank."""
    if seen.sign.rank is not None:
        return seen.sign.rank
    there = (rank.rank for rank in job.attempt.ranks.values() if rank.stream == seen.stream)
    return min(there, default=None)


def absent_suspect(job: Job, since: float) -> Suspect | None:
    rank = absentee(job, since)
    if rank is None:
        return None
    text = "every other rank waited in a collective until it timed out"
    return Suspect(rank, CulpritState.NEVER_JOINED, text)


def stack_suspect(job: Job, since: float) -> Suspect | None:
    """Return the only rank whose stack does not wait in a collective."""
    odd = odd_rank(job, since)
    if odd is None:
        return None
    group, waiting = odd
    text = f"stacks: {group.text}; {waiting} others wait in a collective"
    return Suspect(group.first, CulpritState.BEHIND, text)


def _by_watchdog(seen: FaultSeen | None, state: CulpritState) -> Suspect | None:
    if seen is None:
        return None
    return Suspect(seen.fault.rank, state, f"watchdog: {seen.fault.text}")


def _stream(suspect: Suspect, proof: SignSeen | None) -> str | None:
    """Return the pod of the rank: the witness's, but only if it observed the process itself."""
    if proof is None or suspect.state is not CulpritState.SILENT:
        return None
    return None if proof.sign.source is SignSource.FLIGHT_RECORDER else proof.stream


def _evidence(
    suspect: Suspect | None,
    proof: SignSeen | None,
    signs: Iterable[SignSeen],
    given_up: FaultSeen | None,
) -> tuple[Evidence, ...]:
    found = [] if proof is None else [evidence.of_sign(proof)]
    if suspect is not None and suspect.text:
        found.append(evidence.of_text(suspect.text))
    if given_up is not None:
        found.append(evidence.of_fault(given_up))
    rest = islice((seen for seen in signs if seen is not proof), _MAX_SIGNS)
    return (*found, *map(evidence.of_sign, rest))
