# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are busy and get nowhere: they wait for another one with all of a core.

No GPU works, and whoever is busy is known to wait in a collective. What all signs say together is
judged once, for each of many thousand ranks asks for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from mwatch.decide import silence
from mwatch.model.job import Job, RankState, SignSeen
from mwatch.model.observation import SignSource, SignState
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

COLLECTIVES = frozenset({SignSource.NCCL_RAS, SignSource.FLIGHT_RECORDER})
SPINNING_PHASES = frozenset({JobPhase.TRAINING, JobPhase.EVALUATING})
"""In the others a busy CPU does real work: it compiles, reads or writes."""
_IN_LINE = frozenset({SignState.ALL_EQUAL, SignState.FLAT})
_WAITING = "collective"
"""Where the probe sees a rank that waits for others."""


class Spinning:
    def __init__(self, job: Job, signs: Sequence[SignSeen], settings: Settings) -> None:
        self._attempt = job.attempt
        self._signs = signs
        self._stands = silence.step_seconds(job, settings)

    def only_spins(self, moving: SignSeen) -> bool:
        """`moving`: a sign that says so."""
        if moving.sign.source is not SignSource.CPU_TIME or not self._rest:
            return False
        if self._are_in_line:
            return True
        ranks = self._ranks(moving)
        return bool(ranks) and all(map(self._waits, ranks))

    @cached_property
    def _rest(self) -> bool:
        """All GPUs, as far as they are seen, in a phase in which they should work."""
        if self._attempt.phase not in SPINNING_PHASES:
            return False
        of_gpus = (seen for seen in self._signs if seen.sign.source is SignSource.GPU_ACTIVITY)
        states = [seen.sign.state for seen in of_gpus]
        return SignState.MOVING not in states and states.count(SignState.FLAT) * 2 > len(states)

    @cached_property
    def _are_in_line(self) -> bool:
        return any(
            seen.sign.source in COLLECTIVES and seen.sign.state in _IN_LINE for seen in self._signs
        )

    @cached_property
    def _by_stream(self) -> dict[str, list[RankState]]:
        found: dict[str, list[RankState]] = defaultdict(list)
        for rank in self._attempt.ranks.values():
            found[rank.stream].append(rank)
        return found

    def _ranks(self, moving: SignSeen) -> list[RankState]:
        """Whom it speaks of: one rank, or all of its pod."""
        if moving.sign.rank is None:
            return self._by_stream.get(moving.stream, [])
        rank = self._attempt.ranks.get(moving.sign.rank)
        return [] if rank is None else [rank]

    def _waits(self, rank: RankState) -> bool:
        return rank.phase == _WAITING and rank.at - rank.moved_at >= self._stands
