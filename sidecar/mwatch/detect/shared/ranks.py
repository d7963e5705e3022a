# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank the others wait for, by what the probes of all ranks show.

In a synchronous job a rank can be ahead by one iteration at most, so the ones with the fewest
are waited for. Among equals, the one that has not come to where most are waiting is the one.
A watcher that sees one pod of many cannot say that all are equal.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mwatch.detect.shared.probe import ProbedRanks
from mwatch.model.finding import CulpritState
from mwatch.model.job import RankState
from mwatch.model.phase import JobPhase

_WAITING = "collective"
_WORKING = frozenset({"compute", "training"})
_FETCHING = "data"
_BEFORE_STEPS = frozenset({JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP})


class Suspect(NamedTuple):
    rank: int | None
    state: CulpritState
    text: str


def silent_suspect(watched: ProbedRanks) -> Suspect | None:
    """The one that stopped writing first, while others go on."""
    if not watched.silent or watched.is_dark:
        return None
    first = max(watched.silent, key=lambda rank: (watched.quiet[rank.rank], -rank.rank))
    quiet = watched.quiet[first.rank]
    text = f"probe: rank {first.rank} has written nothing for {quiet:.0f} s, others go on"
    return Suspect(first.rank, CulpritState.SILENT, text)


def missing_suspect(watched: ProbedRanks, world: int | None, phase: JobPhase) -> Suspect | None:
    """Most ranks have started, and this one has never written a record."""
    if world is None or phase not in _BEFORE_STEPS:
        return None
    there = {rank.rank for rank in watched.beating}
    missing = [rank for rank in range(min(world, 2 * len(there))) if rank not in there]
    if not missing or world - len(there) >= len(there):
        return None
    text = f"probe: rank {missing[0]} never wrote a record, {len(there)} of {world} ranks did"
    return Suspect(missing[0], CulpritState.NEVER_JOINED, text)


def slowest(watched: ProbedRanks) -> list[RankState]:
    """Those with the fewest iterations; all of them where nobody is ahead."""
    known = [rank for rank in watched.beating if rank.iteration is not None]
    fewest = min((rank.iteration or 0 for rank in known), default=None)
    return [rank for rank in known if rank.iteration == fewest]


def behind_suspect(watched: ProbedRanks) -> Suspect | None:
    """Fewer iterations than most others."""
    late = slowest(watched)
    fewest = late[0].iteration if late else None
    others = [rank for rank in watched.beating if rank.iteration not in (None, fewest)]
    if not late or len(late) > len(others):
        return None
    last = _most_aside(late)
    most = max(rank.iteration or 0 for rank in others)
    text = f"probe: rank {last.rank} has finished {last.iteration} iterations, others {most}"
    return Suspect(last.rank, CulpritState.BEHIND, text)


def elsewhere_suspect(watched: ProbedRanks) -> Suspect | None:
    """As many iterations as the others, but not where they wait."""
    late = slowest(watched) or watched.beating
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
    """While most wait for data nobody is waited for in particular: that is the storage."""
    if phase == common or common == _FETCHING:
        return False
    return phase != _WAITING if common in _WORKING else True


def _most_aside(late: list[RankState]) -> RankState:
    """Of several that are behind: one that does not itself wait in a collective."""
    return min(late, key=lambda rank: (rank.phase == _WAITING, rank.rank))


def equal_suspect(watched: ProbedRanks, world: int | None) -> Suspect | None:
    beating = watched.beating
    if world is None or len(beating) < world or watched.silent:
        return None
    phases = Counter(rank.phase for rank in beating)
    common, count = phases.most_common(1)[0]
    if world == 1:
        text = f"probe: the only rank is in {common}"
        return Suspect(beating[0].rank, CulpritState.STUCK, text)
    text = f"probe: no rank is behind, {count} of {world} are in {common}"
    return Suspect(None, CulpritState.ALL_EQUAL, text)
