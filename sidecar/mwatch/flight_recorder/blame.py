# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turns the ends of the chains into ranks to blame, with the reason in words.

How sure that is depends on what is missing: a rank with a dump of its own that waits for nobody
is proof; a rank without one may have joined, and may itself wait for another without one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mwatch.flight_recorder.chain import Chains, End, is_strange, strange_records
from mwatch.flight_recorder.groups import coordinates
from mwatch.flight_recorder.text import (
    began,
    clock,
    last_operation,
    last_text,
    meeting_text,
    ranks_text,
    waits,
)
from mwatch.flight_recorder.waits import Meeting, RankPositions
from mwatch.model.collective import BlamedRank
from mwatch.model.observation import SignState

_PROVEN = 0.95
_UNANSWERED = 0.9
_NO_DUMP = 0.85
_UNSURE = 0.6
_MOST_MISSING = 0.4
_NOT_COME = 0.3
_OUT_OF_STEP = 0.9
_INSIDE = 0.75
_RING = 0.5
_LOST = 0.7
_MAX_COMPARED = 64
_MAX_BLAMED = 16
_SAME_MOMENT = 0.2
"""Seconds within which ranks of a ring stopped together."""


def blame(chains: Chains) -> list[BlamedRank]:
    """A plain contradiction comes first, then those that more ranks wait for."""
    found: list[BlamedRank] = []
    for end in chains.ends:
        found += _of_end(chains, end)
    if found:
        found += _lost(chains, chains.standing.groups.world - 1)
    standing = chains.standing
    idle = [each.rank for each in found if each.state is SignState.NEVER_JOINED]
    found.sort(key=lambda each: _order(each, _is_unexplained(standing, each, idle)))
    once = {each.rank: each for each in reversed(found)}
    placed = (
        each._replace(coordinates=coordinates(standing.groups, each.rank))
        for each in [each for each in found if once[each.rank] is each][:_MAX_BLAMED]
    )
    return _weighed(list(placed))


def _order(each: BlamedRank, is_unexplained: bool) -> tuple[bool, int, int]:
    is_plain = each.state is SignState.OUT_OF_STEP and each.confidence >= _OUT_OF_STEP
    proof = 1 if each.state is not SignState.STOPPED else 0 if is_unexplained else 2
    return not is_plain, -each.waiting, proof


def _is_unexplained(standing: RankPositions, each: BlamedRank, idle: list[int]) -> bool:
    """A rank without a dump that shares no group, short of all ranks, with one that waits in
    nothing: it is not that one which keeps it. With gloo the latter may wait for it unrecorded."""
    if each.state is not SignState.STOPPED or not idle:
        return False
    if not all(_is_of_gloo(standing, rank) for rank in idle):
        return False
    return not any(
        each.rank in group.members and not set(idle).isdisjoint(group.members)
        for group in standing.groups.all
        if len(group.members) < standing.groups.world
    )


def _is_of_gloo(standing: RankPositions, rank: int) -> bool:
    last = last_operation(standing.dumps[rank])
    return last is not None and last.may_have_failed


def _weighed(found: list[BlamedRank]) -> list[BlamedRank]:
    """Several that explain as much share the certainty."""
    alike = [each.rank for each in found if _is_like(each, found[0])]
    if len(alike) < 2:
        return found
    share = len(alike) ** 0.5
    message = f"{ranks_text(alike)} cannot be distinguished; "
    return [
        each._replace(confidence=round(each.confidence / share, 2), text=message + each.text)
        if _is_like(each, found[0])
        else each
        for each in found
    ]


def _is_like(one: BlamedRank, other: BlamedRank) -> bool:
    return one.waiting == other.waiting and one.state is other.state


def _of_end(chains: Chains, end: End) -> Iterator[BlamedRank]:
    if end.ring:
        yield from _ring(chains, end)
    elif isinstance(end.node, Meeting):
        yield from _inside(chains, end, end.node)
    elif end.node in chains.standing.dumps:
        yield _never_joined(chains, end, end.node)
    else:
        yield _no_dump(chains, end, end.node)


def _at(chains: Chains, rank: int) -> list[Meeting]:
    """Where it is waited for, the earliest first."""
    found = [meeting for meeting, held in chains.held.items() if rank in held.by]
    standing = chains.standing
    return sorted(found, key=lambda each: began(standing, each) or float("inf"))


def _waiting_text(chains: Chains, meeting: Meeting) -> str:
    standing = chains.standing
    there = [rank for rank in standing.current if standing.meeting(rank) == meeting]
    return f"{waits(there)} in it{clock(began(standing, meeting))}"


def _never_joined(chains: Chains, end: End, rank: int) -> BlamedRank:
    standing = chains.standing
    meeting = _at(chains, rank)[0]
    is_unsure = chains.held[meeting].how == "unsure"
    text = (
        f"rank {rank} never joined {meeting_text(standing, meeting)}; "
        f"{_waiting_text(chains, meeting)}; {last_text(standing, rank)}"
    )
    confidence = _UNSURE if is_unsure else _PROVEN
    return BlamedRank(rank, SignState.NEVER_JOINED, text, len(end.waiting), confidence)


def _no_dump(chains: Chains, end: End, rank: int) -> BlamedRank:
    standing = chains.standing
    meeting = _at(chains, rank)[0]
    text = (
        f"rank {rank} {_why_no_dump(standing, rank)}, and others wait for it in "
        f"{meeting_text(standing, meeting)}: {_waiting_text(chains, meeting)}"
    )
    confidence = _sureness(standing, rank)
    if chains.held[meeting].how == "unsure":
        confidence = min(confidence, _UNSURE)
    return BlamedRank(rank, SignState.STOPPED, text, len(end.waiting), confidence)


def _why_no_dump(standing: RankPositions, rank: int) -> str:
    unanswered = standing.attendance.unanswered
    if unanswered is not None and rank in unanswered:
        return "did not answer when it was asked for a dump"
    return "left no dump"


def _sureness(standing: RankPositions, rank: int) -> float:
    """That it is this rank which left no dump for a reason of its own."""
    attendance = standing.attendance
    if rank in attendance.answered:
        return _NOT_COME
    if attendance.unanswered is not None:
        return _UNANSWERED if rank in attendance.unanswered else _MOST_MISSING
    return _MOST_MISSING if 2 * len(standing.dumps) <= standing.groups.world else _NO_DUMP


def _inside(chains: Chains, end: End, meeting: Meeting) -> Iterator[BlamedRank]:
    standing = chains.standing
    step = chains.steps.get(meeting)
    waiting = len(end.waiting)
    if step is not None:
        label = standing.group(meeting).label
        where = f"#{step.number} of {label}" if step.number else f"a transfer of {label}"
        for rank in step.ranks:
            text = (
                f"rank {rank} is out of step: it called {step.theirs} as {where}, "
                f"others {step.others}"
            )
            confidence = _OUT_OF_STEP if step.is_clear else _OUT_OF_STEP / 2
            yield BlamedRank(rank, SignState.OUT_OF_STEP, text, waiting, confidence)
    elif chains.held[meeting].how == "inside":
        for rank in chains.held[meeting].by:
            text = (
                f"rank {rank} has joined {meeting_text(standing, meeting)} and does not come out "
                f"of it{clock(began(standing, meeting))}, while others did"
            )
            yield BlamedRank(rank, SignState.STUCK, text, waiting, _INSIDE)


def _ring(chains: Chains, end: End) -> Iterator[BlamedRank]:
    """They wait for each other. Who broke with its own past is out of step; else the one that
    stopped first is taken, or all of them."""
    standing = chains.standing
    waiting = len(end.waiting)
    around = f"{ranks_text(end.ring)} wait for each other"
    strange = _strangest(chains, end.ring)
    if strange is not None:
        where = _where(chains, strange)
        text = f"rank {strange} is out of step: {around}, and it came to {where} out of its order"
        yield BlamedRank(strange, SignState.OUT_OF_STEP, text, waiting, _OUT_OF_STEP - 0.1)
        return
    last = {rank: standing.dumps[rank].last_at or 0.0 for rank in end.ring}
    first, second = sorted(last.values())[:2]
    if second - first > _SAME_MOMENT:
        rank = min(end.ring, key=lambda each: last[each])
        text = f"rank {rank} stopped first: {around}, and {last_text(standing, rank)}"
        yield BlamedRank(rank, SignState.NEVER_JOINED, text, waiting, _RING)
        return
    for rank in end.ring:
        text = f"rank {rank} is out of step: {around}, and it is in {_where(chains, rank)}"
        yield BlamedRank(rank, SignState.OUT_OF_STEP, text, waiting, _RING)


def _strangest(chains: Chains, ring: tuple[int, ...]) -> int | None:
    """The one rank of the ring that did most often what it had not done before."""
    if len(ring) > _MAX_COMPARED:
        return None
    counts = {rank: len(strange_records(chains.standing, rank)) for rank in ring}
    most = max(counts.values())
    found = [rank for rank, count in counts.items() if count == most]
    return found[0] if most and len(found) == 1 else None


def _where(chains: Chains, rank: int) -> str:
    meeting = chains.standing.meeting(rank)
    assert meeting is not None  # a ring is made of ranks that wait
    return meeting_text(chains.standing, meeting)


def lost_alone(chains: Chains) -> list[BlamedRank]:
    """Nobody waits, and one rank left no dump: the others may have stopped because it died."""
    missing = chains.standing.groups.world - len(chains.standing.dumps)
    found = list(_lost(chains, _MAX_COMPARED)) if missing == 1 else []
    return [each._replace(confidence=_RING) for each in found]


def _lost(chains: Chains, largest: int) -> Iterator[BlamedRank]:
    """A rank without a dump, where several stopped right after an operation with it: gloo ends
    an operation for those that are left when one of them dies. `largest`: of its group."""
    standing = chains.standing
    partners: dict[int, list[int]] = defaultdict(list)
    for rank, dump in standing.dumps.items():
        last = last_operation(dump)
        if rank in standing.current or last is None or not last.may_have_failed:
            continue
        group = standing.groups.all[standing.groups.places[rank, last.group]]
        for other in group.members if len(group.members) <= min(largest, _MAX_COMPARED) else ():
            if other not in standing.dumps:
                partners[other].append(rank)
    for rank, left in partners.items():
        if len(left) > 1:
            yield _lost_or_provoked(chains, rank, left, len(left) + len(standing.current))


def _lost_or_provoked(chains: Chains, rank: int, left: list[int], waiting: int) -> BlamedRank:
    """Where just one of those that are left did what it never had, it brought the other down."""
    after = f"{ranks_text(left)} stopped right after an operation with it"
    standing = chains.standing
    odd = [each for each in left if is_strange(standing, each, standing.dumps[each].operations[-1])]
    if len(odd) == 1:
        text = (
            f"rank {odd[0]} is out of step: rank {rank} left no dump, {after}, and what rank "
            f"{odd[0]} did last it had not done before ({last_text(standing, odd[0])})"
        )
        return BlamedRank(odd[0], SignState.OUT_OF_STEP, text, waiting, _LOST)
    return BlamedRank(
        rank, SignState.STOPPED, f"rank {rank} left no dump, and {after}", waiting, _LOST
    )
