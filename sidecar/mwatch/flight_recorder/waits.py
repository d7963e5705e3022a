# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Follow which rank waits for which to the ends: ranks or operations that wait for nothing.

A rank is at its oldest operation that is not done. An operation is held up by members that have not
reached it, else by those that have it queued behind an older one, else by those without a dump. An
end that many ranks wait for is to blame; a ring of ranks that wait for each other is also an end.
Members that call another operation, size or type are out of step. The majority is taken as right;
in a tie, groups of the same kind decide, then each rank's own history.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.flight_recorder.dump import UNKNOWN_PEER
from mwatch.flight_recorder.groups import Groups, ProcessGroup
from mwatch.model.collective import Attendance, Dump, Operation

_TOGETHER = frozenset(
    {
        "all_reduce", "all_reduce_barrier", "barrier", "all_gather", "_all_gather_base",
        "all_gather_single", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
        "allreduce_coalesced", "all_to_all", "all_to_all_single",
    }
)  # fmt: skip
"""Operations that end for no member before every member has joined."""
_LOOKED_BACK = 32
_CONTEXT = 8
Call = tuple[str, str]  # what is called, and its sizes and types
_MOMENT_SECONDS = 5.0  # clocks of machines differ, and every rank stops within a step


class Meeting(NamedTuple):
    """An operation that several ranks join."""

    group: int  # index of the group
    number: int
    channel: tuple[int, int] | None  # sender and receiver of a transfer, as indices in the group


class Blocked(NamedTuple):
    by: tuple[int, ...]  # ranks that are waited for; empty if all members have joined
    how: str  # `absent`, `gone`, `queued`, `inside`, `unsure` or `together`


class RankPositions:
    def __init__(self, dumps: Mapping[int, Dump], groups: Groups, attendance: Attendance) -> None:
        self.dumps = dumps
        self.attendance = attendance
        self.groups = groups
        self.current: dict[int, Operation] = {}
        """The operation that each rank waits in; other ranks wait in no recorded operation."""
        self._numbered: dict[int, dict[int, dict[int, Operation]]] = defaultdict(dict)
        self._sent: dict[tuple[int, tuple[int, int]], dict[int, Operation]] = defaultdict(dict)
        """The oldest transfer that is not done, by channel and rank."""
        self._ended: dict[int, int] = {}
        """Highest number done on any rank, by group, of operations that end together."""
        for rank, dump in dumps.items():
            self._learn(rank, dump)
        self.old = frozenset(rank for rank in dumps if self._is_old(rank))
        """Ranks whose dump was taken earlier than those of others."""

    def _learn(self, rank: int, dump: Dump) -> None:
        places = self.groups.places
        for operation in dump.operations:
            key = places[rank, operation.group]
            if operation.peer is not None:
                if not operation.is_done:
                    self._sent[key, operation.peer].setdefault(rank, operation)
            else:
                self._numbered[key].setdefault(rank, {})[operation.number] = operation
                has_failed = operation.may_have_failed and operation is dump.operations[-1]
                if operation.is_done and operation.kind in _TOGETHER and not has_failed:
                    self._ended[key] = max(self._ended.get(key, 0), operation.number)
            if not operation.is_done and rank not in self.current:
                self.current[rank] = operation

    def _is_old(self, rank: int) -> bool:
        """Whether others finished an operation this rank has not reached, so its dump is older."""
        return any(
            self._ended.get(place := self.groups.places[rank, name], 0) > group.last
            and not self.groups.all[place].has_p2p
            and (group.last or not self.dumps[rank].has_wrapped)
            for name, group in self.dumps[rank].groups.items()
        )

    def group(self, meeting: Meeting) -> ProcessGroup:
        return self.groups.all[meeting.group]

    def meeting(self, rank: int) -> Meeting | None:
        operation = self.current.get(rank)
        if operation is None:
            return None
        place = self.groups.places[rank, operation.group]
        return Meeting(place, 0 if operation.peer else operation.number, operation.peer)

    def attending(self, meeting: Meeting) -> dict[int, Operation]:
        """Return the members that have called the operation, with their record of it."""
        if meeting.channel is not None:
            return self._sent[meeting.group, meeting.channel]
        found = {}
        for rank, numbered in self._numbered[meeting.group].items():
            operation = numbered.get(meeting.number)
            if operation is not None:
                found[rank] = operation
        return found

    def numbers(self, group: int) -> Mapping[int, Mapping[int, Operation]]:
        return self._numbered[group]

    def members(self, meeting: Meeting) -> tuple[int, ...]:
        ranks = self.group(meeting).members
        if meeting.channel is None:
            return ranks
        if meeting.channel == UNKNOWN_PEER or max(meeting.channel) >= len(ranks):
            return tuple(self.attending(meeting))
        return tuple(ranks[place] for place in meeting.channel)

    def has_come(self, rank: int, meeting: Meeting) -> bool:
        if meeting.channel is not None:
            return rank in self._sent[meeting.group, meeting.channel]
        numbered = self._numbered[meeting.group].get(rank)
        if not numbered:
            return False
        if self.group(meeting).has_p2p:  # batched sends are also numbered, differently per rank
            return any(not operation.is_done for operation in numbered.values())
        return max(numbered) >= meeting.number

    def held(self, meeting: Meeting) -> Blocked:
        members = self.members(meeting)
        absent = [
            rank
            for rank in members
            if rank in self.dumps and rank not in self.old and not self.has_come(rank, meeting)
        ]
        if absent:
            return Blocked(tuple(absent), "absent")
        there = self.attending(meeting)
        queued = [
            rank
            for rank, operation in there.items()
            if not operation.is_done and self.current[rank].record < operation.record
        ]
        if queued:
            return Blocked(tuple(queued), "queued")
        gone = [rank for rank in members if rank not in self.dumps]
        if gone:
            return Blocked(tuple(gone), "gone")
        return self._all_there(meeting, there)

    def _all_there(self, meeting: Meeting, there: Mapping[int, Operation]) -> Blocked:
        inside = _odd_ones(there)
        if inside:
            return Blocked(inside, "inside")
        possible = self.group(meeting).possible
        others = [rank for rank in possible if rank not in self.dumps]
        if not others:
            others = [rank for rank in possible if rank not in self.current]
        if others:
            return Blocked(tuple(sorted(others)), "unsure")
        return Blocked((), "together")


def _odd_ones(there: Mapping[int, Operation]) -> tuple[int, ...]:
    """Return the minority that has not finished, or not begun on the device, while most have."""
    out = {rank for rank, each in there.items() if each.is_done}
    begun = out | {rank for rank, each in there.items() if each.is_started}
    for further in (out, begun):
        rest = tuple(rank for rank in there if rank not in further)
        if 0 < len(rest) < len(further):
            return rest
    return ()


class OutOfStep(NamedTuple):
    ranks: tuple[int, ...]  # the ranks that deviate; all members if that is unknown
    is_clear: bool
    number: int
    theirs: str
    others: str


def out_of_step(positions: RankPositions, meeting: Meeting) -> OutOfStep | None:
    if meeting.channel is not None:
        return _differ(positions, meeting, positions.attending(meeting), 0)
    numbered = positions.numbers(meeting.group)
    if not positions.group(meeting).has_p2p:
        for number in range(max(1, meeting.number - _LOOKED_BACK), meeting.number):
            there = {rank: calls[number] for rank, calls in numbered.items() if number in calls}
            if len({each.kind for each in there.values()}) > 1:
                return _differ(positions, meeting, there, number)
    return _differ(positions, meeting, positions.attending(meeting), meeting.number)


def _differ(
    positions: RankPositions, meeting: Meeting, there: Mapping[int, Operation], number: int
) -> OutOfStep | None:
    is_p2p = meeting.channel is not None
    calls = {rank: _call(each, is_p2p) for rank, each in there.items()}
    if len(set(calls.values())) < 2:
        return None
    usual = _usual(positions, meeting, calls, number)
    if usual is not None:
        odd = tuple(sorted(rank for rank, call in calls.items() if call != usual))
        return OutOfStep(odd, True, number, _call_text(calls[odd[0]]), _call_text(usual))
    strange = tuple(sorted(rank for rank in calls if is_strange(positions, rank, there[rank])))
    is_clear = 0 < len(strange) < len(calls)
    odd = strange if is_clear else tuple(sorted(calls))
    other = next(call for rank, call in sorted(calls.items()) if call != calls[odd[0]])
    return OutOfStep(odd, is_clear, number, _call_text(calls[odd[0]]), _call_text(other))


def _call(operation: Operation, is_p2p: bool) -> Call:
    return ("" if is_p2p else operation.kind, operation.shape)


def _call_text(call: Call) -> str:
    return " of ".join(each for each in call if each) or "another one"


def _usual(
    positions: RankPositions, meeting: Meeting, calls: Mapping[int, Call], number: int
) -> Call | None:
    most = _most(calls.values())
    if most is not None or meeting.channel is not None:
        return most
    description = positions.group(meeting).description
    alike: list[Call] = []
    for place, group in enumerate(positions.groups.all):
        if description and group.description == description and place != meeting.group:
            alike += (
                _call(calls[number], False)
                for calls in positions.numbers(place).values()
                if number in calls
            )
    most = _most(alike)
    return most if most in calls.values() else None


def _most(calls: Iterable[Call]) -> Call | None:
    counts = Counter(calls)
    if not counts:
        return None
    call, count = counts.most_common(1)[0]
    return call if 2 * count > counts.total() else None


def is_strange(positions: RankPositions, rank: int, operation: Operation) -> bool:
    """Whether the rank's own history made another call likely here."""
    return operation.record in strange_records(positions, rank)


def strange_records(positions: RankPositions, rank: int) -> set[int]:
    """Return the records of calls that never followed the same preceding calls before.

    The longest stretch of preceding calls that occurred earlier is compared.
    """
    calls = [
        (positions.groups.places[rank, each.group], each.kind, each.shape)
        for each in positions.dumps[rank].operations
    ]
    followed: dict[tuple[object, ...], set[object]] = defaultdict(set)
    found = set()
    for place, operation in enumerate(positions.dumps[rank].operations):
        stretches = [
            tuple(calls[place - length : place]) for length in range(min(_CONTEXT, place), 0, -1)
        ]
        known = next((stretch for stretch in stretches if stretch in followed), None)
        if known is not None and calls[place] not in followed[known]:
            found.add(operation.record)
        for stretch in stretches:
            followed[stretch].add(calls[place])
    return found


Node = int | Meeting  # a rank or an operation
Edges = Mapping[Node, Sequence[Node]]


class End(NamedTuple):
    node: Node
    ring: tuple[int, ...]  # ranks that wait for each other; empty if the end is not a ring
    waiting: frozenset[int]  # ranks that lead to this end, at any distance
    since: float  # when the first of them began to wait


class Chains:
    def __init__(self, positions: RankPositions) -> None:
        self.positions = positions
        self.held: dict[Meeting, Blocked] = {}
        self.steps: dict[Meeting, OutOfStep] = {}
        self.next: dict[Node, tuple[Node, ...]] = {}
        for rank in sorted(positions.current):
            self._add(rank)
        self._before: dict[Node, list[Node]] = defaultdict(list)
        for node, following in self.next.items():
            for other in following:
                self._before[other].append(node)
        ends = list(self._ends())
        first = min((end.since for end in ends), default=0.0)
        self.ends = sorted(ends, key=lambda end: _end_order(end, first))

    def _add(self, rank: int) -> None:
        meeting = self.positions.meeting(rank)
        self.next[rank] = () if meeting is None else (meeting,)
        if meeting is None or meeting in self.held:
            return
        step = out_of_step(self.positions, meeting)
        held = self.positions.held(meeting)
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
        began = (
            self.positions.current[rank].at for rank in ranks if rank in self.positions.current
        )
        return min((at for at in began if at is not None), default=float("inf"))

    def path(self, end: End) -> list[Node]:
        """Return the shortest path to the end from one of the farthest ranks."""
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


def _end_order(end: End, first: float) -> tuple[int, float, int]:
    """Sort key: most waiting ranks first, then the earliest; nearly equal times count as equal."""
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
    """Yield sets of nodes that lead only to each other; a single end is such a set."""
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
    """Find a ring from a node that reaches no single end.

    Move to nodes that do not lead back until all reachable nodes lead back.
    """
    while True:
        ahead = _reached([node], edges)
        astray = ahead - _reached([node], before)
        if not astray:
            return sorted(ahead, key=_by_rank)
        node = min(astray, key=_by_rank)


def _by_rank(node: Node) -> tuple[int, ...]:
    """Sort key: ranks first, so that a ring is named after its lowest rank."""
    if isinstance(node, int):
        return (0, node)
    return (1, node.group, node.number, *(node.channel or ()))
