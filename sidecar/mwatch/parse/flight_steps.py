# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who is out of step: members that call another operation, or with another size or type.

Most are right. Where two stand against two, the groups of the same kind decide, then each
rank's own past: who does now what it has not done before at this point.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mwatch.model.collective import Operation
from mwatch.parse.flight_waits import Meeting, Standing

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


def out_of_step(standing: Standing, meeting: Meeting) -> OutOfStep | None:
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
    standing: Standing, meeting: Meeting, there: Mapping[int, Operation], number: int
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
    standing: Standing, meeting: Meeting, calls: Mapping[int, Call], number: int
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


def is_strange(standing: Standing, rank: int, operation: Operation) -> bool:
    """Whether the rank's own past made another call likely at this point."""
    return operation.record in strange_records(standing, rank)


def strange_records(standing: Standing, rank: int) -> set[int]:
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
