# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines from the pods to the real parser: late, by skewed clocks, now and then lost."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from random import Random

from mwatch.model.observation import Observed
from mwatch.parse.reader import Reader
from sim.eyes import Eyes
from sim.stage import Stage
from support.builders.events import grammar

_SETTLES_AFTER = 2.0
"""Seconds of silence after which an open block is taken as ended, as a tailer does."""
_KEPT_LINES = 4096


class _Tail:
    """One pod's log file and the sidecar that reads it."""

    def __init__(self, name: str, skew: float) -> None:
        self.name = name
        self.skew = skew
        self.reader = Reader(grammar(faults=True), f"{name}.log")
        self.waiting: list[tuple[float, int, str]] = []
        self.times: deque[tuple[int, float]] = deque(maxlen=_KEPT_LINES)
        self.fed = 0
        self.last_at: float | None = None

    def read(self, now: float) -> Iterator[Observed]:
        due: list[str] = []
        while self.waiting and self.waiting[0][0] <= now:
            at, _, text = heapq.heappop(self.waiting)
            due.append(text)
            self.fed += 1
            self.times.append((self.fed, at))
        if due:
            self.last_at = now
            events = self.reader.feed(("\n".join(due) + "\n").encode())
        elif self.last_at is not None and now - self.last_at >= _SETTLES_AFTER:
            self.last_at = None
            events = self.reader.settle()
        else:
            return
        when = dict(self.times) if events else {}
        for event in events:
            yield Observed(when.get(event.line, now) + self.skew, self.name, event)


class Delivery:
    def __init__(self, stage: Stage, eyes: Eyes, names: list[str], chance: Random) -> None:
        self._stage = stage
        self._eyes = eyes
        self._chance = chance
        self._tails = [_Tail(name, eyes.skew(pod)) for pod, name in enumerate(names)]
        self._order = count()
        self._began = stage.now

    @property
    def is_under_way(self) -> bool:
        """Lines that were printed have not been read yet."""
        return any(tail.waiting for tail in self._tails)

    def read(self) -> Iterator[Observed]:
        """What the sidecars have read of the logs by now."""
        self._collect()
        for tail in self._tails:
            yield from tail.read(self._stage.now)

    def _collect(self) -> None:
        eyes = self._eyes
        for pod, lines in self._stage.printed.items():
            tail = self._tails[pod]
            for at, text in lines:
                if " elapsed time per " in text and self._chance.random() < eyes.lost_share:
                    continue
                arrives = self._arrival(pod, at)
                heapq.heappush(tail.waiting, (arrives, next(self._order), text))
        self._stage.printed.clear()

    def _arrival(self, pod: int, at: float) -> float:
        arrives = at + self._eyes.delay(pod)
        if self._eyes.gap is not None:
            held, since, length = self._eyes.gap
            if held == pod and since <= at - self._began < since + length:
                return self._began + since + length
        return arrives
