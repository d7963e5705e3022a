# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What successive answers of NCCL's RAS say together: whether the counts move.

One answer says little: ranks of a healthy job differ at most moments, and those of a job that
hangs inside a collective are all equal. So nothing is claimed before the third answer with the
same counts, nor before they have stood for twice as long as the counts of this job usually do.
Collectives inside CUDA graphs are not counted: frozen counts alone prove nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from mwatch import stats
from mwatch.model.nccl import Communicator, Nccl, RasAnswer
from mwatch.model.observation import Sign, SignSource, SignState
from mwatch.sources.nccl_ras_ranks import Names, last_ones

LASTING_ANSWERS = 3
_LEAST_SECONDS = 15.0
_UNPROVEN_SECONDS = 60.0
"""Where nobody has seen these counts move, they may be of collectives that are rarely used."""
_GAP_SECONDS = 180.0
"""After a longer time without an answer, what moved may have moved long ago."""
_STILLS = 32
_USUAL_SHARE = 0.9
_STILL_FACTOR = 2.0


class _Known(NamedTuple):
    begun: Mapping[int, int]
    since: float
    answers: int
    """How many in a row had these counts."""


class Told(NamedTuple):
    nccl: Nccl
    signs: tuple[Sign, ...]
    is_calm: bool
    """The counts move, or nothing of them is told, and nobody is missing."""


class Counts:
    """Of one job: `is_of_another` says when a new one is needed."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last_at: float | None = None
        self._still_since = 0.0
        self._answers = 0
        self._stills: deque[float] = deque(maxlen=_STILLS)
        self._has_moved = False
        self._behind: set[int] = set()
        self._dead: set[int] = set()

    def is_of_another(self, answer: RasAnswer) -> bool:
        """After a restart, or where two jobs share the address, every communicator is new."""
        hashes = {each.hash for each in answer.told}
        return answer.counts_all and bool(self._known) and not hashes & self._known.keys()

    def told(self, at: float, answer: RasAnswer, world_size: int | None) -> Told:
        """`at` is monotonic; `world_size` None: as many as RAS knows GPUs."""
        moved = self._follow(at, answer)
        state, words = self._state(at, answer, moved)
        names = Names(answer, answer.gpus if world_size is None else world_size)
        unequal = [each for each in answer.told if self._stays_unequal(each)]
        signs = [Sign(SignSource.NCCL_RAS, state, None, words)]
        signs += self._late(names, unequal if state is SignState.FLAT else [])
        signs += self._gone(names, answer) if self._answers > 1 else []
        missing = missing_ranks(answer)
        nccl = Nccl(answer.communicators, missing, len(unequal), _operations(answer))
        is_equal = not answer.counts_all and not any(each.begun for each in answer.told)
        return Told(nccl, tuple(signs), (moved or is_equal) and not missing)

    def _follow(self, at: float, answer: RasAnswer) -> bool:
        """Whether something was begun since the last answer."""
        last_at = -math.inf if self._last_at is None else self._last_at
        is_first = at - last_at > _GAP_SECONDS
        self._last_at = at
        before, self._known = {} if is_first else self._known, {}
        moved = False
        for each in answer.told:
            known = before.get(each.hash)
            if known is None or _differ(known.begun, each.begun):
                moved = moved or answer.counts_all or bool(each.begun)
                self._known[each.hash] = _Known(each.begun, at, 1)
            else:
                begun = {**known.begun, **each.begun}
                self._known[each.hash] = _Known(begun, known.since, known.answers + 1)
        if not answer.counts_all:  # a difference that is no longer told was made up for
            moved = moved or any(
                known.begun for hash, known in before.items() if hash not in self._known
            )
        if moved and not is_first:
            self._stills.append(last_at - self._still_since)
            self._has_moved = True
        if moved or is_first:
            self._still_since, self._answers = at, 0
        self._answers += 1
        return moved and not is_first

    def _state(self, at: float, answer: RasAnswer, moved: bool) -> tuple[SignState, str]:
        if moved:
            return SignState.MOVING, "collectives are begun"
        if answer.counts_all:
            answers, since = self._answers, self._still_since
            is_used = any(any(each.begun.values()) for each in answer.told)
            what = f"no collective was begun in {answer.communicators} communicators"
        else:
            stuck = [self._known[each.hash] for each in answer.told if self._stays_unequal(each)]
            is_used = bool(stuck)
            answers = max((each.answers for each in stuck), default=0)
            since = min((each.since for each in stuck), default=at)
            what = f"ranks are apart in {len(stuck)} of {answer.communicators} communicators"
        still = at - since
        words = f"{what} for {still:.0f} s"
        if is_used and answers >= LASTING_ANSWERS and still >= self._limit():
            return SignState.FLAT, words
        return SignState.UNKNOWN, words

    def _limit(self) -> float:
        if not self._has_moved:
            return _UNPROVEN_SECONDS
        usual = stats.quantile(self._stills, _USUAL_SHARE) if self._stills else 0.0
        return max(_LEAST_SECONDS, _STILL_FACTOR * usual)

    def _stays_unequal(self, each: Communicator) -> bool:
        known = self._known[each.hash]
        is_unequal = len(set(each.begun.values())) > 1
        return is_unequal and each.is_settled and known.answers >= LASTING_ANSWERS

    def _late(self, names: Names, unequal: list[Communicator]) -> list[Sign]:
        late = last_ones(names, unequal)
        signs = [
            Sign(SignSource.NCCL_RAS, SignState.BEHIND, rank, words)
            for rank, words in sorted(late.items())
        ]
        signs += [
            Sign(SignSource.NCCL_RAS, SignState.UNKNOWN, rank, "no longer behind the others")
            for rank in sorted(self._behind - late.keys())
        ]
        self._behind = set(late)
        return signs

    def _gone(self, names: Names, answer: RasAnswer) -> list[Sign]:
        """Once for each: RAS never takes it back, and its network is not that of the job, which
        may go on. So only where nothing has moved since the last answer."""
        found: list[Sign] = []
        for each in answer.told:
            for lost in each.missing:
                rank = names.of(each, lost.rank, lost.process) if lost.is_dead else None
                if rank is not None and rank not in self._dead:
                    self._dead.add(rank)
                    words = "not reached by any other process for a minute"
                    found.append(Sign(SignSource.NCCL_RAS, SignState.DEAD, rank, words))
        return found


def missing_ranks(answer: RasAnswer) -> int:
    """Each rank is in several communicators, and not always named."""
    named = {lost.process for each in answer.told for lost in each.missing if lost.process}
    return max([len(named), *(each.missing_count for each in answer.told)])


def _differ(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """A rank that is no longer told has not moved by that."""
    if now and not before.keys() & now.keys():
        return True
    return any(before[rank] != value for rank, value in now.items() if rank in before)


def _operations(answer: RasAnswer) -> int | None:
    if not answer.counts_all:
        return None
    return sum(min(each.begun.values(), default=0) for each in answer.told)
