# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn the ends of the chains into ranks to blame, each with the reason as a bounded text.

Confidence depends on the available dumps: a rank whose dump shows that it waits for nothing is
proof; a rank without a dump may have joined, and may itself wait for another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from mwatch.flight_recorder.groups import coordinates
from mwatch.flight_recorder.waits import (
    Chains,
    End,
    Meeting,
    Node,
    RankPositions,
    is_strange,
    strange_records,
)
from mwatch.model.collective import BlamedRank, Dump, Operation
from mwatch.model.observation import SignState

_MAX_RANGES = 8
_MAX_LINKS = 16
_MAX_TIME = 253_402_300_000.0  # the year 9999
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
_SAME_MOMENT = 0.2  # seconds within which ranks of a ring stopped together


def ranks_text(ranks: Iterable[int]) -> str:
    """Write `rank 3`, `ranks 0-3,7`."""
    ordered = sorted(set(ranks))
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in spans[:_MAX_RANGES]]
    more = f" and {len(spans) - _MAX_RANGES} more" if len(spans) > _MAX_RANGES else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {','.join(shown)}{more}"


def waits_text(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def clock(at: float | None) -> str:
    """Write ` since 12:00:05 UTC`; nothing if the time is unknown."""
    if at is None or not 0 < at < _MAX_TIME:
        return ""
    return f" since {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def meeting_text(positions: RankPositions, meeting: Meeting) -> str:
    """Write `all_reduce #57 of TENSOR_MODEL_PARALLEL_GROUP 2 (ranks 0-3)`."""
    group = positions.group(meeting)
    if meeting.channel is not None:
        ends = positions.members(meeting)
        pair = f" from rank {ends[0]} to rank {ends[1]}" if len(ends) == 2 else ""
        return f"a send{pair} in {group.label}"
    there = positions.attending(meeting)
    kinds = sorted({operation.kind for operation in there.values()})
    kind = kinds[0] if kinds else "operation"
    return f"{kind} #{meeting.number} of {group.label} ({ranks_text(group.members)})"


def began(positions: RankPositions, meeting: Meeting) -> float | None:
    """Return the time when the first of the members that still wait joined."""
    there = positions.attending(meeting).values()
    return min((each.at for each in there if not each.is_done and each.at), default=None)


def last_text(positions: RankPositions, rank: int) -> str:
    last = last_operation(positions.dumps[rank])
    if last is None:
        return "it has recorded nothing"
    group = positions.groups.all[positions.groups.places[rank, last.group]]
    return f"the last it recorded is {last.kind} #{last.number} of {group.label}"


def last_operation(dump: Dump) -> Operation | None:
    return dump.operations[-1] if dump.operations else None


def chain_text(chains: Chains, way: Sequence[Node]) -> list[str]:
    positions = chains.positions
    found = []
    for node, following in pairwise(way):
        if not isinstance(node, int) or not isinstance(following, Meeting):
            continue
        text = f"rank {node} waits in {meeting_text(positions, following)}"
        after = way[way.index(following) + 1] if following != way[-1] else None
        if isinstance(after, int):
            text += f" for rank {after}"
        found.append(text)
    return found[-_MAX_LINKS:]


def blame(chains: Chains) -> list[BlamedRank]:
    """Return the ranks to blame: clear contradictions first, then by how many ranks wait."""
    found: list[BlamedRank] = []
    for end in chains.ends:
        found += _of_end(chains, end)
    if found:
        found += _lost(chains, chains.positions.groups.world - 1)
    positions = chains.positions
    idle = [each.rank for each in found if each.state is SignState.NEVER_JOINED]
    found.sort(key=lambda each: _order(each, _is_unexplained(positions, each, idle)))
    once = {each.rank: each for each in reversed(found)}
    placed = (
        each._replace(coordinates=coordinates(positions.groups, each.rank))
        for each in [each for each in found if once[each.rank] is each][:_MAX_BLAMED]
    )
    return _weighed(list(placed))


def _order(each: BlamedRank, is_unexplained: bool) -> tuple[bool, int, int]:
    is_plain = each.state is SignState.OUT_OF_STEP and each.confidence >= _OUT_OF_STEP
    proof = 1 if each.state is not SignState.STOPPED else 0 if is_unexplained else 2
    return not is_plain, -each.waiting, proof


def _is_unexplained(positions: RankPositions, each: BlamedRank, idle: list[int]) -> bool:
    """Whether a rank without a dump is not explained by an idle rank, one that never joined.

    That is so if they share no group except those of all ranks: the idle rank does not hold it up.
    With gloo, the idle rank may even wait for it without a record.
    """
    if each.state is not SignState.STOPPED or not idle:
        return False
    last = [last_operation(positions.dumps[rank]) for rank in idle]
    if not all(call is not None and call.may_have_failed for call in last):
        return False
    return not any(
        each.rank in group.members and not set(idle).isdisjoint(group.members)
        for group in positions.groups.all
        if len(group.members) < positions.groups.world
    )


def _weighed(found: list[BlamedRank]) -> list[BlamedRank]:
    """Divide the confidence among ranks that explain the wait equally well."""
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
    elif end.node in chains.positions.dumps:
        yield _never_joined(chains, end, end.node)
    else:
        yield _no_dump(chains, end, end.node)


def _at(chains: Chains, rank: int) -> list[Meeting]:
    """Return the operations in which others wait for the rank, earliest first."""
    found = [meeting for meeting, held in chains.held.items() if rank in held.by]
    positions = chains.positions
    return sorted(found, key=lambda each: began(positions, each) or float("inf"))


def _waiting_text(chains: Chains, meeting: Meeting) -> str:
    positions = chains.positions
    there = [rank for rank in positions.current if positions.meeting(rank) == meeting]
    return f"{waits_text(there)} in it{clock(began(positions, meeting))}"


def _never_joined(chains: Chains, end: End, rank: int) -> BlamedRank:
    positions = chains.positions
    meeting = _at(chains, rank)[0]
    is_unsure = chains.held[meeting].how == "unsure"
    text = (
        f"rank {rank} never joined {meeting_text(positions, meeting)}; "
        f"{_waiting_text(chains, meeting)}; {last_text(positions, rank)}"
    )
    confidence = _UNSURE if is_unsure else _PROVEN
    return BlamedRank(rank, SignState.NEVER_JOINED, text, len(end.waiting), confidence)


def _no_dump(chains: Chains, end: End, rank: int) -> BlamedRank:
    positions = chains.positions
    meeting = _at(chains, rank)[0]
    text = (
        f"rank {rank} {_why_no_dump(positions, rank)}, and others wait for it in "
        f"{meeting_text(positions, meeting)}: {_waiting_text(chains, meeting)}"
    )
    confidence = _sureness(positions, rank)
    if chains.held[meeting].how == "unsure":
        confidence = min(confidence, _UNSURE)
    return BlamedRank(rank, SignState.STOPPED, text, len(end.waiting), confidence)


def _why_no_dump(positions: RankPositions, rank: int) -> str:
    unanswered = positions.attendance.unanswered
    if unanswered is not None and rank in unanswered:
        return "did not answer when it was asked for a dump"
    return "left no dump"


def _sureness(positions: RankPositions, rank: int) -> float:
    """Return the confidence that this rank left no dump for a reason of its own."""
    attendance = positions.attendance
    if rank in attendance.answered:
        return _NOT_COME
    if attendance.unanswered is not None:
        return _UNANSWERED if rank in attendance.unanswered else _MOST_MISSING
    return _MOST_MISSING if 2 * len(positions.dumps) <= positions.groups.world else _NO_DUMP


def _inside(chains: Chains, end: End, meeting: Meeting) -> Iterator[BlamedRank]:
    positions = chains.positions
    step = chains.steps.get(meeting)
    waiting = len(end.waiting)
    if step is not None:
        label = positions.group(meeting).label
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
                f"rank {rank} has joined {meeting_text(positions, meeting)} and does not come out "
                f"of it{clock(began(positions, meeting))}, while others did"
            )
            yield BlamedRank(rank, SignState.STUCK, text, waiting, _INSIDE)


def _ring(chains: Chains, end: End) -> Iterator[BlamedRank]:
    """Blame ranks that wait for each other: the one that deviates from its own history, else the
    one that stopped first, else all of them."""
    positions = chains.positions
    waiting = len(end.waiting)
    around = f"{ranks_text(end.ring)} wait for each other"
    strange = _strangest(chains, end.ring)
    if strange is not None:
        where = _where(chains, strange)
        text = f"rank {strange} is out of step: {around}, and it came to {where} out of its order"
        yield BlamedRank(strange, SignState.OUT_OF_STEP, text, waiting, _OUT_OF_STEP - 0.1)
        return
    last = {rank: positions.dumps[rank].last_at or 0.0 for rank in end.ring}
    first, second = sorted(last.values())[:2]
    if second - first > _SAME_MOMENT:
        rank = min(end.ring, key=lambda each: last[each])
        text = f"rank {rank} stopped first: {around}, and {last_text(positions, rank)}"
        yield BlamedRank(rank, SignState.NEVER_JOINED, text, waiting, _RING)
        return
    for rank in end.ring:
        text = f"rank {rank} is out of step: {around}, and it is in {_where(chains, rank)}"
        yield BlamedRank(rank, SignState.OUT_OF_STEP, text, waiting, _RING)


def _strangest(chains: Chains, ring: tuple[int, ...]) -> int | None:
    """Return the rank of the ring with the most calls it had not made before; None in a tie."""
    if len(ring) > _MAX_COMPARED:
        return None
    counts = {rank: len(strange_records(chains.positions, rank)) for rank in ring}
    most = max(counts.values())
    found = [rank for rank, count in counts.items() if count == most]
    return found[0] if most and len(found) == 1 else None


def _where(chains: Chains, rank: int) -> str:
    meeting = chains.positions.meeting(rank)
    assert meeting is not None  # a ring is made of ranks that wait
    return meeting_text(chains.positions, meeting)


def lost_alone(chains: Chains) -> list[BlamedRank]:
    """Blame the only rank without a dump if no rank waits: the others may have stopped when it
    died."""
    missing = chains.positions.groups.world - len(chains.positions.dumps)
    found = list(_lost(chains, _MAX_COMPARED)) if missing == 1 else []
    return [each._replace(confidence=_RING) for each in found]


def _lost(chains: Chains, largest: int) -> Iterator[BlamedRank]:
    """Blame a rank without a dump if several ranks stopped right after an operation with it.

    When a member dies, gloo ends the operation for the others. `largest`: size limit of the group.
    """
    positions = chains.positions
    partners: dict[int, list[int]] = defaultdict(list)
    for rank, dump in positions.dumps.items():
        last = last_operation(dump)
        if rank in positions.current or last is None or not last.may_have_failed:
            continue
        group = positions.groups.all[positions.groups.places[rank, last.group]]
        for other in group.members if len(group.members) <= min(largest, _MAX_COMPARED) else ():
            if other not in positions.dumps:
                partners[other].append(rank)
    for rank, left in partners.items():
        if len(left) > 1:
            yield _lost_or_provoked(chains, rank, left, len(left) + len(positions.current))


def _lost_or_provoked(chains: Chains, rank: int, left: list[int], waiting: int) -> BlamedRank:
    """Blame the lost rank, or the one other rank whose last call was new, which brought it down."""
    after = f"{ranks_text(left)} stopped right after an operation with it"
    positions = chains.positions
    odd = [
        each for each in left if is_strange(positions, each, positions.dumps[each].operations[-1])
    ]
    if len(odd) == 1:
        text = (
            f"rank {odd[0]} is out of step: rank {rank} left no dump, {after}, and what rank "
            f"{odd[0]} did last it had not done before ({last_text(positions, odd[0])})"
        )
        return BlamedRank(odd[0], SignState.OUT_OF_STEP, text, waiting, _LOST)
    return BlamedRank(
        rank, SignState.STOPPED, f"rank {rank} left no dump, and {after}", waiting, _LOST
    )
