# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who is to blame for a stall, and whether it can still heal.

Proof beats inference: a dead or stopped process, then what the collectives say (flight
recorder, RAS), then where the probes see the ranks. Nobody is named where nobody stands out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from mwatch.detect.shared import evidence, ranks, watchdog
from mwatch.detect.shared.probe import ProbedRanks, watched
from mwatch.detect.shared.ranks import Suspect
from mwatch.detect.shared.stall import Stall, fresh_signs
from mwatch.model.finding import Culprit, CulpritState, Evidence
from mwatch.model.job import FaultSeen, Job, SignSeen
from mwatch.model.observation import SignSource, SignState
from mwatch.model.settings import Settings

_NAMED = {
    SignState.DEAD: CulpritState.SILENT,
    SignState.STOPPED: CulpritState.SILENT,
    SignState.NEVER_JOINED: CulpritState.NEVER_JOINED,
    SignState.OUT_OF_STEP: CulpritState.OUT_OF_STEP,
    SignState.BEHIND: CulpritState.BEHIND,
    SignState.STUCK: CulpritState.STUCK,
}
"""What a sign says of its rank, the strongest first."""
_FINAL = frozenset(
    {SignState.DEAD, SignState.STOPPED, SignState.NEVER_JOINED, SignState.OUT_OF_STEP}
)
_MAX_SIGNS = 4


class Named(NamedTuple):
    culprit: Culprit | None
    evidence: tuple[Evidence, ...]
    cannot_heal: bool
    agree: int
    """Independent witnesses that also see nothing move."""
    disagree: int


def find_culprit(job: Job, stall: Stall, settings: Settings) -> Named:
    signs = fresh_signs(job, stall.since, settings)
    still = {seen.sign.source for seen in signs if seen.sign.state is not SignState.MOVING}
    moving = {seen.sign.source for seen in signs} - still
    lasted = job.now - stall.since >= settings.hang.probe_floor_seconds
    is_final = any(seen.sign.state in _FINAL for seen in signs)
    beats = settings.hang.beat_silence_seconds
    named = [seen for seen in signs if not _is_echo(seen, stall.given_up)]
    suspect, proof = _suspect(job, named, stall, watched(job, settings), beats)
    return Named(
        None if suspect is None else culprit(job, suspect, _stream(suspect, proof)),
        _evidence(suspect, proof, signs, stall.given_up),
        (is_final and lasted) or stall.given_up is not None,
        len(still) + (stall.given_up is not None),
        len(moving),
    )


def culprit(job: Job, suspect: Suspect, stream: str | None = None) -> Culprit:
    rank = suspect.rank
    if rank is None:
        return Culprit(None, suspect.state, pod=stream)
    state = job.attempt.ranks.get(rank)
    pod = state.stream if state is not None else stream
    return Culprit(rank, suspect.state, job.layout.coordinates(rank), pod)


def _suspect(
    job: Job, signs: list[SignSeen], stall: Stall, probe: ProbedRanks, beats: float
) -> tuple[Suspect | None, SignSeen | None]:
    named = _named_by_sign(job, signs)
    if named is not None:
        return named
    world = job.layout.world_size
    silent = ranks.silent_suspect(probe)
    if silent is not None and leaves(job, silent, stall.given_up, beats):
        silent = None
    found = (
        silent
        or ranks.missing_suspect(probe, world, job.attempt.phase)
        or ranks.behind_suspect(probe)
        or _by_watchdog(watchdog.least_enqueued(job, stall.since), CulpritState.BEHIND)
        or absent_suspect(job, stall.since)
    )
    equal = next((seen for seen in signs if seen.sign.state is SignState.ALL_EQUAL), None)
    if found is None and equal is not None:
        return Suspect(None, CulpritState.ALL_EQUAL, ""), equal
    found = (
        found
        or ranks.elsewhere_suspect(probe)
        or _by_watchdog(watchdog.stuck_here(job, stall.since), CulpritState.STUCK)
        or ranks.equal_suspect(probe, world)
    )
    return found, None


def leaves(job: Job, suspect: Suspect, given_up: FaultSeen | None, beats: float) -> bool:
    """It fell silent when a watchdog took its process down: a victim."""
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
    """Where most are stuck, they wait for one that is not."""
    world = job.layout.world_size or len(job.attempt.ranks)
    return bool(world) and world > 1 and len(named) * 2 > world


def _order(job: Job, seen: SignSeen) -> tuple[int, int]:
    """The furthest behind first, then the lowest rank."""
    rank = _rank(job, seen)
    state = None if rank is None else job.attempt.ranks.get(rank)
    done = -1 if state is None or state.iteration is None else state.iteration
    return done, -1 if rank is None else rank


def _rank(job: Job, seen: SignSeen) -> int | None:
    """A sign of a whole pod stands for its lowest rank."""
    if seen.sign.rank is not None:
        return seen.sign.rank
    there = (rank.rank for rank in job.attempt.ranks.values() if rank.stream == seen.stream)
    return min(there, default=None)


def absent_suspect(job: Job, since: float) -> Suspect | None:
    rank = watchdog.absentee(job, since)
    if rank is None:
        return None
    text = "every other rank waited in a collective until it timed out"
    return Suspect(rank, CulpritState.NEVER_JOINED, text)


def _by_watchdog(seen: FaultSeen | None, state: CulpritState) -> Suspect | None:
    if seen is None:
        return None
    return Suspect(seen.fault.rank, state, f"watchdog: {seen.fault.text}")


def _stream(suspect: Suspect, proof: SignSeen | None) -> str | None:
    """The pod of the witness is the pod of the rank only where it looked at the process."""
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
