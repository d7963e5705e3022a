# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NCCL's RAS service (2.24 and newer), asked gently from the pod of a trainer.

Any process of the pod answers for the whole job, and asks all others for it. Asking has brought
trainers down: while communicators are made (nccl #1669, #1718, #2346) and, before 2.29.2, when a
rank is missing (#1762). So nobody is asked until the service has been there for a while and the
job has settled; older ones only while the job is silent, and no more once a rank was missing;
and text is asked for only where there is no JSON. Who listens is greeted, which is harmless.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from mwatch.model.nccl import Nccl, RasAnswer
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.nccl_ras_client import Address, Level, RasLink
from mwatch.sources.nccl_ras_counts import Counts, Told
from mwatch.sources.periodic import Periodic

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
        self._counts = Counts()
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
                    self._counts, self._is_calm = Counts(), True
                    return Ok(_Polled(None, ()))
                if self._danger(level) is not None:
                    return Ok(_Polled(self.nccl, ()))
                at, wall = self._clock(), self._wall()
                said = link.status(level, _GATHER_SECONDS)
        except ConnectionRefusedError:
            self._greeted_at, self._counts = None, Counts()
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
            self._counts = Counts()
        told: Told = self._counts.told(at, answer, self._world_size())
        self._nodes = answer.nodes or 1
        self._is_calm = told.is_calm
        return _Polled(told.nccl, tuple(Observed(wall, self._stream, sign) for sign in told.signs))

    def _is_asked(self, level: Level) -> bool:
        may_be = level is Level.MONITOR or self._asks_older or self._is_silent()
        return may_be and self._is_asker()

    def _has_settled(self) -> bool:
        since = self._greeted_at
        return since is not None and self._clock() - since >= self._settle and self._is_settled()

    def _danger(self, level: Level) -> str | None:
        """Newer ones can be asked at any time, for a person or before a restart."""
        if level is Level.MONITOR:
            return None
        if not self._has_settled():
            return f"RAS {_NOT_YET}"
        nccl = self.nccl
        return _IN_DANGER if nccl is not None and nccl.missing_ranks else None
