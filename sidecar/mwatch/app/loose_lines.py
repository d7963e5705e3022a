# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Places lines without a time that come from pods which print no iteration lines.

Up to core_v0.15 rank 0 prints checkpoint lines without a time, hours after its last stamp. Alone
they tell only an order; beside the pod that prints iteration lines they tell more: a save at
iteration N begins when N is done and is over before the next iterations begin. Anything else
without a time happened at the latest just before the pod's next stamp, and the last words of a
pod when the others fell silent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from mwatch.app.stamps import is_stamped
from mwatch.app.step_clock import took
from mwatch.model.event import Checkpoint, Iteration, Phase
from mwatch.model.observation import Observed

MAX_WAITING = 20_000
"""Of one pod; more than that are let go as they come."""
_NEVER = float("inf")


class _Save(NamedTuple):
    iteration: int
    begins: bool
    observed: Observed


def place(merged: Iterable[Observed], ends: Mapping[str, float | None]) -> Iterator[Observed]:
    """`ends`: the pods that print no iteration lines, each with the moment when the others that
    were there with it fell silent; None: at the end of all."""
    waiting = _Waiting(ends)
    for observed in merged:
        at, stream, what = observed
        if at > waiting.next_end:
            yield from waiting.ended(at)
        if isinstance(what, Iteration):
            yield from waiting.over_before(observed, what)
            yield observed
            yield from waiting.done(at, what.iteration)
        elif stream in ends and not is_stamped(what):
            yield from waiting.add(observed)
        else:
            yield from waiting.flush(stream, at)
            if isinstance(what, Phase) and what.name == "starting":
                waiting.iteration = 0  # what was done before counts for nothing now
            yield observed
    yield from waiting.rest()


class _Waiting:
    """Lines whose time is not known yet, by pod, in their order; saves apart from the rest."""

    def __init__(self, ends: Mapping[str, float | None]) -> None:
        self._ends = ends
        self._saves: dict[str, deque[_Save]] = {}
        self._others: dict[str, deque[Observed]] = {}
        self._at = 0.0
        self.iteration = 0
        """The last one that is known to be done in this attempt."""
        self.next_end = _NEVER

    def add(self, observed: Observed) -> Iterator[Observed]:
        self._at = max(self._at, observed.at)
        name, what = observed.stream, observed.what
        if isinstance(what, Checkpoint) and what.op == "save" and what.iteration is not None:
            saves = self._saves.setdefault(name, deque())
            saves.append(_Save(what.iteration, what.edge in ("begin", "mark"), observed))
            if len(saves) > MAX_WAITING:
                yield self._now(saves.popleft().observed)
            yield from self._begun()
        else:
            others = self._others.setdefault(name, deque())
            others.append(observed)
            if len(others) > MAX_WAITING:
                yield self._now(others.popleft())
        self.next_end = min(self.next_end, self._end(name))

    def done(self, at: float, iteration: int) -> Iterator[Observed]:
        self._at, self.iteration = max(self._at, at), iteration
        yield from self._begun()

    def over_before(self, observed: Observed, line: Iteration) -> Iterator[Observed]:
        """What was saved before these iterations began."""
        if self._saves:
            self._at = max(self._at, observed.at - took(line))
            self.iteration = max(self.iteration, line.iteration - (line.covers or 1))
            yield from self._let_go(lambda saves: len(saves))

    def ended(self, at: float) -> Iterator[Observed]:
        for name in [name for name in self._names() if self._end(name) < at]:
            yield from self.flush(name, max(self._at, self._end(name)))

    def flush(self, stream: str, at: float) -> Iterator[Observed]:
        """All that waits, for no more will be learnt about it."""
        self._at = max(self._at, at)
        saves, others = self._saves.pop(stream, None), self._others.pop(stream, None)
        if saves or others:
            yield from (self._now(save.observed) for save in saves or ())
            yield from map(self._now, others or ())
            self.next_end = min(map(self._end, self._names()), default=_NEVER)

    def rest(self) -> Iterator[Observed]:
        for name in self._names():
            yield from self.flush(name, self._at)

    def _begun(self) -> Iterator[Observed]:
        """Saves that have begun, and with each those before it."""
        yield from self._let_go(
            lambda saves: 1 + max((i for i, save in enumerate(saves) if save.begins), default=-1)
        )

    def _let_go(self, count: Callable[[list[_Save]], int]) -> Iterator[Observed]:
        for name, saves in list(self._saves.items()):
            done = list(takewhile(lambda save: save.iteration <= self.iteration, saves))
            for _ in range(count(done)):
                yield self._now(saves.popleft().observed)
            if not saves:
                del self._saves[name]

    def _names(self) -> list[str]:
        return [*dict.fromkeys((*self._saves, *self._others))]

    def _now(self, observed: Observed) -> Observed:
        return observed._replace(at=max(self._at, observed.at))

    def _end(self, name: str) -> float:
        end = self._ends.get(name)
        return _NEVER if end is None else end
