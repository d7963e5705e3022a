# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Follows who waits for whom to the ends: the ranks, or operations, that wait for nothing.

An end that many wait for is to blame. Ranks that wait for each other in a ring are an end too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.parse.flight_steps import OutOfStep, out_of_step
from mwatch.parse.flight_waits import Held, Meeting, Standing

Node = int | Meeting
"""A rank, or an operation."""
Edges = Mapping[Node, Sequence[Node]]
_MOMENT_SECONDS = 5.0
"""Clocks of machines differ, and within a step everybody comes to a stop."""


class End(NamedTuple):
    node: Node
    ring: tuple[int, ...]
    """The ranks that wait for each other; empty where it is no ring."""
    waiting: frozenset[int]
    """Ranks that come to this end, at whatever distance."""
    since: float
    """When the first of them began to wait."""


class Chains:
    """The whole of who waits for whom."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.held: dict[Meeting, Held] = {}
        self.steps: dict[Meeting, OutOfStep] = {}
        self.next: dict[Node, tuple[Node, ...]] = {}
        for rank in sorted(standing.current):
            self._add(rank)
        self._before: dict[Node, list[Node]] = defaultdict(list)
        for node, following in self.next.items():
            for other in following:
                self._before[other].append(node)
        ends = list(self._ends())
        first = min((end.since for end in ends), default=0.0)
        self.ends = sorted(ends, key=lambda end: _order(end, first))

    def _add(self, rank: int) -> None:
        meeting = self.standing.meeting(rank)
        self.next[rank] = () if meeting is None else (meeting,)
        if meeting is None or meeting in self.held:
            return
        step = out_of_step(self.standing, meeting)
        held = self.standing.held(meeting)
        self.held[meeting] = held
        if step is not None:
            self.steps[meeting] = step
        is_end = step is not None or held.how in ("inside", "together")
        self.next[meeting] = () if is_end else held.by
        for other in self.next[meeting]:
            if isinstance(other, int):
                self.next.setdefault(other, ())

    def _ends(self) -> Iterator[End]:
        for ring in _final_rings(self.next, self._before):
            waiting = _reached(ring, self._before) - (set(ring) if len(ring) == 1 else set())
            ranks = frozenset(node for node in waiting if isinstance(node, int))
            if not ranks:
                continue
            in_ring = tuple(sorted(node for node in ring if isinstance(node, int)))
            yield End(ring[0], in_ring if len(ring) > 1 else (), ranks, self._since(ranks))

    def _since(self, ranks: Iterable[int]) -> float:
        began = (self.standing.current[rank].at for rank in ranks if rank in self.standing.current)
        return min((at for at in began if at is not None), default=float("inf"))

    def path(self, end: End) -> list[Node]:
        """A longest of the shortest ways to it: from somebody far away, to the end."""
        came_from: dict[Node, Node | None] = {end.node: None}
        queue = deque([end.node])
        last: Node = end.node
        while queue:
            node = queue.popleft()
            last = node if isinstance(node, int) else last
            for other in self._before.get(node, ()):
                if other not in came_from:
                    came_from[other] = node
                    queue.append(other)
        way: list[Node] = []
        at: Node | None = last
        while at is not None:
            way.append(at)
            at = came_from[at]
        return way


def _order(end: End, first: float) -> tuple[int, float, int]:
    """By how many wait; then by who was waited for first, unless that is within a moment."""
    rank = end.node if isinstance(end.node, int) else min(end.waiting)
    later = end.since - first
    return -len(end.waiting), later if later > _MOMENT_SECONDS else 0.0, rank


def _reached(starts: Iterable[Node], edges: Edges) -> set[Node]:
    found = set(starts)
    queue = deque(found)
    while queue:
        for other in edges.get(queue.popleft(), ()):
            if other not in found:
                found.add(other)
                queue.append(other)
    return found


def _final_rings(edges: Edges, before: Edges) -> Iterator[list[Node]]:
    """Nodes that lead to each other and to nothing else; a lone end is one of them."""
    ends: list[Node] = [node for node, following in edges.items() if not following]
    yield from ([node] for node in ends)
    open_nodes = dict.fromkeys(edges)
    _drop(open_nodes, _reached(ends, before))
    while open_nodes:
        ring = _ring(next(iter(open_nodes)), edges, before)
        yield ring
        _drop(open_nodes, _reached(ring, before))


def _drop(nodes: dict[Node, None], gone: Iterable[Node]) -> None:
    for node in gone:
        nodes.pop(node, None)


def _ring(node: Node, edges: Edges, before: Edges) -> list[Node]:
    """From a node that comes to no lone end: what it leads to shrinks until all lead back."""
    while True:
        ahead = _reached([node], edges)
        astray = ahead - _reached([node], before)
        if not astray:
            return sorted(ahead, key=_by_rank)
        node = min(astray, key=_by_rank)


def _by_rank(node: Node) -> tuple[int, ...]:
    """Ranks first, so that a ring is named by its lowest."""
    if isinstance(node, int):
        return (0, node)
    return (1, node.group, node.number, *(node.channel or ()))
