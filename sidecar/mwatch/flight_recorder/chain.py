# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Follows who waits for whom to the ends: the ranks, or operations, that wait for nothing.

An end that many wait for is to blame. Ranks that wait for each other in a ring are an end too.

Who is out of step: members that call another operation, or with another size or type.

Most are right. Where two stand against two, the groups of the same kind decide, then each
rank's own past: who does now what it has not done before at this point.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.flight_recorder.waits import Blocked, Meeting, RankPositions
from mwatch.model.collective import Operation

_LOOKED_BACK = 32
_CONTEXT = 8

Call = tuple[str, str]
"""What is called, and with what."""


class OutOfStep(NamedTuple):
    ranks: tuple[int, ...]
    """Who deviates; all members where that cannot be told."""
    is_clear: bool
    number: int
    theirs: str
    others: str


def out_of_step(standing: RankPositions, meeting: Meeting) -> OutOfStep | None:
    if meeting.channel is not None:
        return _differ(standing, meeting, standing.attending(meeting), 0)
    numbered = standing.numbers(meeting.group)
    if not standing.group(meeting).has_p2p:
        for number in range(max(1, meeting.number - _LOOKED_BACK), meeting.number):
            there = {rank: calls[number] for rank, calls in numbered.items() if number in calls}
            if len({each.kind for each in there.values()}) > 1:
                return _differ(standing, meeting, there, number)
    return _differ(standing, meeting, standing.attending(meeting), meeting.number)


def _differ(
    standing: RankPositions, meeting: Meeting, there: Mapping[int, Operation], number: int
) -> OutOfStep | None:
    is_p2p = meeting.channel is not None
    calls = {rank: _call(each, is_p2p) for rank, each in there.items()}
    if len(set(calls.values())) < 2:
        return None
    usual = _usual(standing, meeting, calls, number)
    if usual is not None:
        odd = tuple(sorted(rank for rank, call in calls.items() if call != usual))
        return OutOfStep(odd, True, number, _words(calls[odd[0]]), _words(usual))
    strange = tuple(sorted(rank for rank in calls if is_strange(standing, rank, there[rank])))
    is_clear = 0 < len(strange) < len(calls)
    odd = strange if is_clear else tuple(sorted(calls))
    other = next(call for rank, call in sorted(calls.items()) if call != calls[odd[0]])
    return OutOfStep(odd, is_clear, number, _words(calls[odd[0]]), _words(other))


def _call(operation: Operation, is_p2p: bool) -> Call:
    return ("" if is_p2p else operation.kind, operation.shape)


def _words(call: Call) -> str:
    return " of ".join(each for each in call if each) or "another one"


def _usual(
    standing: RankPositions, meeting: Meeting, calls: Mapping[int, Call], number: int
) -> Call | None:
    most = _most(calls.values())
    if most is not None or meeting.channel is not None:
        return most
    description = standing.group(meeting).description
    alike: list[Call] = []
    for place, group in enumerate(standing.groups.all):
        if description and group.description == description and place != meeting.group:
            alike += (
                _call(calls[number], False)
                for calls in standing.numbers(place).values()
                if number in calls
            )
    most = _most(alike)
    return most if most in calls.values() else None


def _most(calls: Iterable[Call]) -> Call | None:
    """What more than half call."""
    counts = Counter(calls)
    if not counts:
        return None
    call, count = counts.most_common(1)[0]
    return call if 2 * count > counts.total() else None


def is_strange(standing: RankPositions, rank: int, operation: Operation) -> bool:
    """Whether the rank's own past made another call likely at this point."""
    return operation.record in strange_records(standing, rank)


def strange_records(standing: RankPositions, rank: int) -> set[int]:
    """Calls that never before followed what the rank had done just before, by the longest
    stretch of that which it had done earlier at all."""
    calls = [
        (standing.groups.places[rank, each.group], each.kind, each.shape)
        for each in standing.dumps[rank].operations
    ]
    followed: dict[tuple[object, ...], set[object]] = defaultdict(set)
    found = set()
    for place, operation in enumerate(standing.dumps[rank].operations):
        stretches = [
            tuple(calls[place - length : place]) for length in range(min(_CONTEXT, place), 0, -1)
        ]
        known = next((stretch for stretch in stretches if stretch in followed), None)
        if known is not None and calls[place] not in followed[known]:
            found.add(operation.record)
        for stretch in stretches:
            followed[stretch].add(calls[place])
    return found


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

    def __init__(self, standing: RankPositions) -> None:
        self.standing = standing
        self.held: dict[Meeting, Blocked] = {}
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
