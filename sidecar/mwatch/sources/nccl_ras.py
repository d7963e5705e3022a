# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NCCL's RAS service (2.24 and newer), asked gently from the pod of a trainer.

Any process of the pod answers for the whole job, and asks all others for it. Asking has brought
trainers down: while communicators are made (nccl #1669, #1718, #2346) and, before 2.29.2, when a
rank is missing (#1762). So nobody is asked until the service has been there for a while and the
job has settled; older ones only while the job is silent, and no more once a rank was missing;
and text is asked for only where there is no JSON. Who listens is greeted, which is harmless.

Which global rank a rank of a communicator is, and whom the others wait for.

RAS numbers ranks inside a communicator. Only in one as large as the world is that the global
rank; in a smaller one a rank is found by its process, where the answer has processes (JSON) and
some communicator of the world's size. Where neither is so, nobody is named.

What successive answers of NCCL's RAS say together: whether the counts move.

One answer says little: ranks of a healthy job differ at most moments, and those of a job that
hangs inside a collective are all equal. So nothing is claimed before the third answer with the
same counts, nor before they have stood for twice as long as the counts of this job usually do.
Collectives inside CUDA graphs are not counted: frozen counts alone prove nothing.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mwatch import stats
from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.hardware import Communicator, Nccl, RasAnswer
from mwatch.sources.base.worker import Periodic
from mwatch.sources.nccl_client import Address, RasLink, RasProtocol

_MAX_NAMED = 8


class Names:
    def __init__(self, answer: RasAnswer, world_size: int | None) -> None:
        self.world_size = world_size
        whole = (each for each in answer.told if each.size == world_size)
        world = next((each for each in whole if each.processes), None)
        self._by_process: dict[str, int] = {}
        if world is not None:
            self._by_process = {process: rank for rank, process in world.processes.items()}
            if len(self._by_process) < len(world.processes):
                self._by_process = {}  # two ranks in one process: not told apart

    def of(self, each: Communicator, rank: int, process: str | None) -> int | None:
        if rank < 0:
            return None
        if each.size == self.world_size:
            return rank
        return None if process is None else self._by_process.get(process)


def last_ones(names: Names, unequal: Iterable[Communicator]) -> dict[int, str]:
    """Ranks that are behind somewhere, and ahead of nobody anywhere: those wait themselves."""
    behind: dict[int, str] = {}
    waiting: set[int] = set()
    for each in unequal:
        most, least = max(each.begun.values()), min(each.begun.values())
        for rank, count in each.begun.items():
            known = names.of(each, rank, each.processes.get(rank))
            if known is None:
                continue
            if count > least:
                waiting.add(known)
            if count < most:
                words = f"has begun {most - count} fewer collectives than others of {each.size}"
                behind.setdefault(known, words)
    found = sorted(behind.keys() - waiting)
    if names.world_size is None or 2 * len(found) > names.world_size:
        return {}
    return {rank: behind[rank] for rank in found[:_MAX_NAMED]}


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


class RasReport(NamedTuple):
    nccl: Nccl
    signs: tuple[Sign, ...]
    is_calm: bool
    """The counts move, or nothing of them is told, and nobody is missing."""


class RasCounts:
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

    def told(self, at: float, answer: RasAnswer, world_size: int | None) -> RasReport:
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
        return RasReport(nccl, tuple(signs), (moved or is_equal) and not missing)

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


PERIOD_SECONDS = 15.0
SOON_SECONDS = 10.0
"""Where the counts stand, or somebody is missing; never more often."""
MOST_SECONDS = 60.0
_PER_NODE_SECONDS = 0.5
"""Each question goes to all processes of the job, and where nobody says who asks, each pod has a
sidecar that does."""
_SOON_PER_NODE_SECONDS = 0.125
_TOO_LONG_SECONDS = 600.0
"""Until a job is asked again whose answer we cannot hold; it costs the job as much as any."""
_JITTER = 0.2
SETTLE_SECONDS = 120.0
POLL_SECONDS = 12.0
_LIMIT_SECONDS = 30.0
_GATHER_SECONDS = 3
_EXTRA_SECONDS = 5
"""RAS takes so much longer than it was told for the whole of an answer."""

_NOT_YET = "is there, and is not asked before the job has settled"
_IN_DANGER = "a rank is missing, and NCCL before 2.29.2 may crash when asked then (nccl #1762)"

Read = Callable[[str], RasAnswer]


def _always() -> bool:
    return True


def _never() -> bool:
    return False


def _unknown() -> int | None:
    return None


class _Polled(NamedTuple):
    nccl: Nccl | None
    said: tuple[Observed, ...]


class NcclRas:
    def __init__(
        self,
        address: Address,
        stream: str,
        read_answer: Read,
        *,
        world_size: Callable[[], int | None] = _unknown,
        is_settled: Callable[[], bool] = _always,
        is_silent: Callable[[], bool] = _never,
        is_asker: Callable[[], bool] = _always,
        asks_older: bool = False,
        settle_seconds: float = SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`is_settled`: this attempt is past its first steps, and makes no communicators;
        `is_silent`: its progress is overdue; `is_asker`: this pod asks for the whole job, which
        one of many should do; `asks_older`: NCCL before 2.29.2 at all times."""
        self._address = address
        self._stream = stream
        self._read_answer = read_answer
        self._world_size = world_size
        self._is_settled = is_settled
        self._is_silent = is_silent
        self._is_asker = is_asker
        self._asks_older = asks_older
        self._settle = settle_seconds
        self._clock = clock
        self._wall = wall
        self._greeted_at: float | None = None
        self._counts = RasCounts()
        self._is_calm, self._is_too_long, self._nodes = True, False, 1
        self._polls: Periodic[_Polled] = Periodic(
            "mwatch-nccl-ras",
            self._poll,
            period=self._period,
            limit_seconds=_LIMIT_SECONDS,
            clock=clock,
        )

    @property
    def nccl(self) -> Nccl | None:
        """As last told; None while nothing is."""
        last = self._polls.last
        return last.value.nccl if isinstance(last, Ok) else None

    def read(self) -> Reading[tuple[Observed, ...]]:
        """Never waits: tells what the last answer said, once, and asks again when it is time."""
        return self._said(self._polls.news())

    def read_now(self, seconds: float) -> Reading[tuple[Observed, ...]]:
        """Asks at once; waits for the answer, for at most so long."""
        return self._said(self._polls.news_now(seconds))

    def _said(self, news: Reading[_Polled] | None) -> Reading[tuple[Observed, ...]]:
        last = self._polls.last
        if not isinstance(last, Ok):
            return last
        return Ok(() if news is None else last.value.said)

    def raw(self, seconds: float) -> str:
        """A fresh answer as it came, for an evidence bundle; waits. OSError says why there is
        none: nobody listens, it takes too long, or to ask would endanger the job."""
        gather = max(1, int(seconds) - _EXTRA_SECONDS - 1)
        try:
            with RasLink(self._address, seconds, self._clock) as link:
                level = link.level()
                danger = self._danger(level)
                if danger is not None:
                    raise OSError(danger)
                said = link.status(level, gather)
        except ValueError as error:
            raise OSError(str(error)) from None
        if not said.text:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return said.text if said.is_whole else f"{said.text}\n[cut short]\n"

    def _period(self) -> float:
        usual = min(max(PERIOD_SECONDS, _PER_NODE_SECONDS * self._nodes), MOST_SECONDS)
        soon = min(max(SOON_SECONDS, _SOON_PER_NODE_SECONDS * self._nodes), usual)
        seconds = usual if self._is_calm else soon
        if self._is_too_long:
            seconds = _TOO_LONG_SECONDS
        return seconds * random.uniform(1.0, 1.0 + _JITTER)

    def _poll(self) -> Reading[_Polled]:
        host, port = self._address
        try:
            with RasLink(self._address, POLL_SECONDS, self._clock) as link:
                level = link.level()
                if self._greeted_at is None:
                    self._greeted_at = self._clock()
                if not self._has_settled():
                    return Absent(f"RAS {_NOT_YET}")
                if not self._is_asked(level):
                    self._counts, self._is_calm = RasCounts(), True
                    return Ok(_Polled(None, ()))
                if self._danger(level) is not None:
                    return Ok(_Polled(self.nccl, ()))
                at, wall = self._clock(), self._wall()
                said = link.status(level, _GATHER_SECONDS)
        except ConnectionRefusedError:
            self._greeted_at, self._counts = None, RasCounts()
            self._is_calm, self._is_too_long = True, False
            return Absent(
                f"nobody listens at {host}:{port}: no NCCL job yet, NCCL before 2.24, "
                "or NCCL_RAS_ENABLE=0"
            )
        self._is_too_long = said.is_too_long
        if not said.is_whole:
            return Failed(f"the answer was cut off after {len(said.text)} characters")
        return Ok(self._told(at, wall, self._read_answer(said.text)))

    def _told(self, at: float, wall: float, answer: RasAnswer) -> _Polled:
        if self._counts.is_of_another(answer):
            self._counts = RasCounts()
        told: RasReport = self._counts.told(at, answer, self._world_size())
        self._nodes = answer.nodes or 1
        self._is_calm = told.is_calm
        return _Polled(told.nccl, tuple(Observed(wall, self._stream, sign) for sign in told.signs))

    def _is_asked(self, level: RasProtocol) -> bool:
        may_be = level is RasProtocol.MONITOR or self._asks_older or self._is_silent()
        return may_be and self._is_asker()

    def _has_settled(self) -> bool:
        since = self._greeted_at
        return since is not None and self._clock() - since >= self._settle and self._is_settled()

    def _danger(self, level: RasProtocol) -> str | None:
        """Newer ones can be asked at any time, for a person or before a restart."""
        if level is RasProtocol.MONITOR:
            return None
        if not self._has_settled():
            return f"RAS {_NOT_YET}"
        nccl = self.nccl
        return _IN_DANGER if nccl is not None and nccl.missing_ranks else None
