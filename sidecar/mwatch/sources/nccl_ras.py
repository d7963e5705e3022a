# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Polls NCCL's RAS service (2.24 and newer) and reports whether collectives still make progress.

Any process of the pod answers for the whole job, by querying all others. Polling has brought
trainers down: while communicators are created (nccl #1669, #1718, #2346) and, before 2.29.2, when a
rank is missing (#1762). So the service is polled only after it has been up for a while and the job
has settled; versions before 2.29.2 only while the job is silent, and not once a rank was missing.
Text is requested only where JSON is not supported. The greeting itself is harmless.

One answer proves little: the counts of a healthy job's ranks differ most of the time, and those of
ranks that hang inside a collective are all equal. So a stall is reported only after three answers
with the same counts, and after twice the time for which the counts of this job usually stand still.
Collectives inside CUDA graphs are not counted.
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
from mwatch.model.snapshot.pod import Communicator, Nccl, RasAnswer
from mwatch.sources.background import BackgroundSource, Observations
from mwatch.sources.nccl_client import Address, RasLink, RasProtocol

_MAX_NAMED = 8


class Names:
    """Maps ranks of a communicator to global ranks.

    RAS numbers ranks within a communicator; these are global ranks only if it is as large as the
    world. In a smaller one a rank is found by its process, if the answer names processes (JSON).
    """

    def __init__(self, answer: RasAnswer, world_size: int | None) -> None:
        self.world_size = world_size
        whole = (each for each in answer.reported if each.size == world_size)
        world = next((each for each in whole if each.processes), None)
        self._by_process: dict[str, int] = {}
        if world is not None:
            self._by_process = {process: rank for rank, process in world.processes.items()}
            if len(self._by_process) < len(world.processes):
                self._by_process = {}  # two ranks in one process are ambiguous

    def of(self, each: Communicator, rank: int, process: str | None) -> int | None:
        if rank < 0:
            return None
        if each.size == self.world_size:
            return rank
        return None if process is None else self._by_process.get(process)


def last_ones(names: Names, unequal: Iterable[Communicator]) -> dict[int, str]:
    """Return the ranks that are behind in some communicator and ahead in none."""
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
"""Limit for counts that never moved: the collectives may be rare."""
_GAP_SECONDS = 180.0
"""After a longer gap between answers, the time of a change is unknown."""
_STILLS = 32
_USUAL_SHARE = 0.9
_STILL_FACTOR = 2.0


class _Known(NamedTuple):
    begun: Mapping[int, int]
    since: float
    answers: int


class RasReport(NamedTuple):
    nccl: Nccl
    signs: tuple[Sign, ...]
    is_calm: bool
    """Whether the counts move or none are reported, and no rank is missing."""


class RasCounts:
    """Compares successive answers of one job; another job needs a new object."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last_at: float | None = None
        self._still_since = 0.0
        self._answers = 0
        self._stills: deque[float] = deque(maxlen=_STILLS)
        self._has_moved = False
        self._behind: set[int] = set()
        self._dead: set[int] = set()

    def is_of_another_job(self, answer: RasAnswer) -> bool:
        """Return whether every communicator is new: after a restart, or at a shared address."""
        hashes = {each.hash for each in answer.reported}
        return answer.counts_all and bool(self._known) and not hashes & self._known.keys()

    def report(self, at: float, answer: RasAnswer, world_size: int | None) -> RasReport:
        """`at` is monotonic; without `world_size`, the number of GPUs in the answer is used."""
        moved = self._follow(at, answer)
        state, words = self._state(at, answer, moved)
        names = Names(answer, answer.gpus if world_size is None else world_size)
        unequal = [each for each in answer.reported if self._stays_unequal(each)]
        signs = [Sign(SignSource.NCCL_RAS, state, None, words)]
        signs += self._late(names, unequal if state is SignState.FLAT else [])
        signs += self._gone(names, answer) if self._answers > 1 else []
        missing = missing_ranks(answer)
        nccl = Nccl(answer.communicators, missing, len(unequal), _operations(answer))
        is_equal = not answer.counts_all and not any(each.begun for each in answer.reported)
        return RasReport(nccl, tuple(signs), (moved or is_equal) and not missing)

    def _follow(self, at: float, answer: RasAnswer) -> bool:
        last_at = -math.inf if self._last_at is None else self._last_at
        is_first = at - last_at > _GAP_SECONDS
        self._last_at = at
        before, self._known = {} if is_first else self._known, {}
        moved = False
        for each in answer.reported:
            known = before.get(each.hash)
            if known is None or _differ(known.begun, each.begun):
                moved = moved or answer.counts_all or bool(each.begun)
                self._known[each.hash] = _Known(each.begun, at, 1)
            else:
                begun = {**known.begun, **each.begun}
                self._known[each.hash] = _Known(begun, known.since, known.answers + 1)
        if not answer.counts_all:  # a difference that is no longer reported has closed
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
            is_used = any(any(each.begun.values()) for each in answer.reported)
            what = f"no collective was begun in {answer.communicators} communicators"
        else:
            stuck = [
                self._known[each.hash] for each in answer.reported if self._stays_unequal(each)
            ]
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
        """Report each dead rank once, and only if no collective was begun since the last answer:
        RAS never revokes a death, and uses another network than the job, which may still run."""
        found: list[Sign] = []
        for each in answer.reported:
            for lost in each.missing:
                rank = names.of(each, lost.rank, lost.process) if lost.is_dead else None
                if rank is not None and rank not in self._dead:
                    self._dead.add(rank)
                    words = "not reached by any other process for a minute"
                    found.append(Sign(SignSource.NCCL_RAS, SignState.DEAD, rank, words))
        return found


def missing_ranks(answer: RasAnswer) -> int:
    """Count the missing ranks: each may be in several communicators, and is not always named."""
    named = {lost.process for each in answer.reported for lost in each.missing if lost.process}
    return max([len(named), *(each.missing_count for each in answer.reported)])


def _differ(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    if now and not before.keys() & now.keys():
        return True
    return any(before[rank] != value for rank, value in now.items() if rank in before)


def _operations(answer: RasAnswer) -> int | None:
    if not answer.counts_all:
        return None
    return sum(min(each.begun.values(), default=0) for each in answer.reported)


PERIOD_SECONDS = 15.0
SOON_SECONDS = 10.0
"""Shortest period: used while the counts stand still or a rank is missing."""
MOST_SECONDS = 60.0
_PER_NODE_SECONDS = 0.5
"""Least period per node: a poll reaches all processes of the job, and each sidecar may poll."""
_SOON_PER_NODE_SECONDS = 0.125
_TOO_LONG_SECONDS = 600.0
"""Period for a job whose answer is too large to hold."""
_JITTER = 0.2
SETTLE_SECONDS = 120.0
POLL_SECONDS = 12.0
_LIMIT_SECONDS = 30.0
_GATHER_SECONDS = 3
_EXTRA_SECONDS = 5
"""RAS takes this much longer than its TIMEOUT for a whole answer."""

_NOT_YET = "RAS is up, and is not polled before the job has settled"
_IN_DANGER = "a rank is missing, and NCCL before 2.29.2 may crash if polled (nccl #1762)"

Read = Callable[[str], RasAnswer]


class NcclRas(BackgroundSource):
    def __init__(
        self,
        address: Address,
        stream: str,
        read_answer: Read,
        *,
        world_size: Callable[[], int | None] = lambda: None,
        is_settled: Callable[[], bool] = lambda: True,
        is_silent: Callable[[], bool] = lambda: False,
        is_asker: Callable[[], bool] = lambda: True,
        settle_seconds: float = SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`is_settled`: the attempt is past its first steps and creates no communicators.
        `is_silent`: the progress of the job is overdue. `is_asker`: this pod polls for the job."""
        super().__init__(
            "mwatch-nccl-ras",
            self._poll,
            period=self._poll_period,
            limit_seconds=_LIMIT_SECONDS,
            clock=clock,
        )
        self._address = address
        self._stream = stream
        self._read_answer = read_answer
        self._world_size = world_size
        self._is_settled = is_settled
        self._is_silent = is_silent
        self._is_asker = is_asker
        self._settle = settle_seconds
        self._wall = wall
        self._greeted_at: float | None = None
        self._nccl: Nccl | None = None
        self._counts = RasCounts()
        self._is_calm, self._is_too_long, self._nodes = True, False, 1

    @property
    def nccl(self) -> Nccl | None:
        return self._nccl if self.is_up else None

    def raw(self, seconds: float) -> str:
        """Wait for a new answer and return it unparsed, for evidence. Raise OSError if no process
        listens, if it takes too long, or if polling would endanger the job."""
        gather = max(1, int(seconds) - _EXTRA_SECONDS - 1)
        try:
            with RasLink(self._address, seconds, self._clock) as link:
                level = link.level()
                danger = self._danger(level)
                if danger is not None:
                    raise OSError(danger)
                answer = link.status(level, gather)
        except ValueError as error:
            raise OSError(str(error)) from None
        if not answer.text:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return answer.text if answer.is_whole else f"{answer.text}\n[cut short]\n"

    def _poll_period(self) -> float:
        usual = min(max(PERIOD_SECONDS, _PER_NODE_SECONDS * self._nodes), MOST_SECONDS)
        soon = min(max(SOON_SECONDS, _SOON_PER_NODE_SECONDS * self._nodes), usual)
        seconds = usual if self._is_calm else soon
        if self._is_too_long:
            seconds = _TOO_LONG_SECONDS
        return seconds * random.uniform(1.0, 1.0 + _JITTER)

    def _poll(self) -> Reading[Observations]:
        host, port = self._address
        try:
            with RasLink(self._address, POLL_SECONDS, self._clock) as link:
                level = link.level()
                if self._greeted_at is None:
                    self._greeted_at = self._clock()
                if not self._has_settled():
                    return Absent(_NOT_YET)
                if not self._is_asked(level):
                    self._counts, self._is_calm, self._nccl = RasCounts(), True, None
                    return Ok(())
                if self._danger(level) is not None:
                    self._nccl = self.nccl
                    return Ok(())
                at, wall = self._clock(), self._wall()
                answer = link.status(level, _GATHER_SECONDS)
        except ConnectionRefusedError:
            self._greeted_at, self._counts = None, RasCounts()
            self._is_calm, self._is_too_long = True, False
            return Absent(
                f"no process listens at {host}:{port}: no NCCL job yet, NCCL before 2.24, "
                "or NCCL_RAS_ENABLE=0"
            )
        self._is_too_long = answer.is_too_long
        if not answer.is_whole:
            return Failed(f"the answer was cut off after {len(answer.text)} characters")
        return Ok(self._observations(at, wall, self._read_answer(answer.text)))

    def _observations(self, at: float, wall: float, answer: RasAnswer) -> Observations:
        if self._counts.is_of_another_job(answer):
            self._counts = RasCounts()
        report = self._counts.report(at, answer, self._world_size())
        self._nodes = answer.nodes or 1
        self._is_calm, self._nccl = report.is_calm, report.nccl
        return tuple(Observed(wall, self._stream, sign) for sign in report.signs)

    def _is_asked(self, level: RasProtocol) -> bool:
        may_be = level is RasProtocol.MONITOR or self._is_silent()
        return may_be and self._is_asker()

    def _has_settled(self) -> bool:
        since = self._greeted_at
        return since is not None and self._clock() - since >= self._settle and self._is_settled()

    def _danger(self, level: RasProtocol) -> str | None:
        if level is RasProtocol.MONITOR:
            return None
        if not self._has_settled():
            return _NOT_YET
        nccl = self.nccl
        return _IN_DANGER if nccl is not None and nccl.missing_ranks else None
