# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many streams, one story: what all pods saw, in the order of one clock.

Lazy: it holds one observation of each stream. The order within a stream is never changed: where
its times step back, what follows waits for nothing. It cannot know which of two things of the
same moment came first; an iteration line does, for what a pod does at an iteration follows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from mwatch.model.event import Batch, Iteration
from mwatch.model.observation import Observed

_LINES = frozenset({Iteration, Batch})


class _Head:
    """The next observation of one stream."""

    __slots__ = ("_items", "_offset", "_order", "at", "key", "observed")

    def __init__(self, order: int, items: Iterator[Observed], offset: float) -> None:
        self._order = order
        self._items = items
        self._offset = offset
        self.at = -math.inf
        """For the order only: times of a stream never step back."""

    def advance(self) -> bool:
        observed = next(self._items, None)
        if observed is None:
            return False
        at = observed.at + self._offset
        if math.isnan(at):
            at = self.at
        self.at = max(self.at, at)
        self.observed = observed if at == observed.at else observed._replace(at=at)
        self.key = (self.at, type(observed.what) not in _LINES, self._order)
        return True

    def __lt__(self, other: _Head) -> bool:
        return self.key < other.key


def merge(
    streams: Mapping[str, Iterable[Observed]], offsets: Mapping[str, float]
) -> Iterator[Observed]:
    """`offsets`: seconds to add to the times of a stream; 0 of one that is not named."""
    heads = [
        _Head(order, iter(items), offsets.get(name, 0.0))
        for order, (name, items) in enumerate(streams.items())
    ]
    waiting = [head for head in heads if head.advance()]
    heapify(waiting)
    while waiting:
        first = waiting[0]
        yield first.observed
        if first.advance():
            heapreplace(waiting, first)
        else:
            heappop(waiting)
