# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, by the recordings of the ranks: one node per rank and per operation.

A rank stands at its oldest operation that is not over: what it handed over after that comes
later in the same queue. An operation is held up by members that have not handed it over, else
by those that have it queued behind an older one, else by those that left no dump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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
"""None of these ends for one member before every member has come."""


class Meeting(NamedTuple):
    """An operation as a place where ranks meet."""

    group: int
    """Its place among the groups."""
    number: int
    channel: tuple[int, int] | None
    """From and to of a send or receive, as places in the group."""


class Blocked(NamedTuple):
    """Why a meeting does not end."""

    by: tuple[int, ...]
    """Ranks that are waited for; empty: all members are there."""
    how: str
    """`absent`, `gone`, `queued`, `inside`, `unsure` or `together`."""


class RankPositions:
    """Where every rank of a job stands."""

    def __init__(self, dumps: Mapping[int, Dump], groups: Groups, attendance: Attendance) -> None:
        self.dumps = dumps
        self.attendance = attendance
        self.groups = groups
        self.current: dict[int, Operation] = {}
        """By rank: what it waits in. A rank that is not here waits in nothing that is recorded."""
        self._numbered: dict[int, dict[int, dict[int, Operation]]] = defaultdict(dict)
        self._sent: dict[tuple[int, tuple[int, int]], dict[int, Operation]] = defaultdict(dict)
        """By channel and rank: the oldest that is not over."""
        self._ended: dict[int, int] = {}
        """The highest number that is over somewhere, of those that end together."""
        for rank, dump in dumps.items():
            self._learn(rank, dump)
        self.old = frozenset(rank for rank in dumps if self._is_old(rank))
        """Ranks whose dump was taken before that of others."""

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
        """Others got out of what this one has not come to: it has, since its dump was taken."""
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
        """Members that have handed it over, with their record of it."""
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
        if self.group(meeting).has_p2p:  # batches of sends count too, and not alike on all ranks
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
        queued = [rank for rank, operation in there.items() if self._is_queued(rank, operation)]
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

    def _is_queued(self, rank: int, operation: Operation) -> bool:
        if operation.is_done:
            return False
        return self.current[rank].record < operation.record


def _odd_ones(there: Mapping[int, Operation]) -> tuple[int, ...]:
    """The few that do not come out of it while most did, or whose device has not begun it."""
    out = {rank for rank, each in there.items() if each.is_done}
    begun = out | {rank for rank, each in there.items() if each.is_started}
    for further in (out, begun):
        rest = tuple(rank for rank in there if rank not in further)
        if 0 < len(rest) < len(further):
            return rest
    return ()
