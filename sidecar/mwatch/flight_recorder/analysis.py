# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Compare the flight recordings of a job to find a rank that never joined, is stuck or out of step.

Groups are compared one by one, then the chain of waiting ranks is followed to the rank that waits
for nothing. A recording shows what was called, not why a rank did not join or whether the job has
stopped. gloo's sends and receives are not recorded, so a rank in one seems to wait for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from mwatch.flight_recorder.blame import (
    began,
    blame,
    chain_text,
    clock,
    last_text,
    lost_alone,
    meeting_text,
    ranks_text,
    waits_text,
)
from mwatch.flight_recorder.groups import Groups, put_together
from mwatch.flight_recorder.waits import Chains, End, Meeting, RankPositions
from mwatch.model.collective import Analysis, Attendance, BlamedRank, Dump, GroupPlace, RankPlace
from mwatch.model.observation import Sign, SignSource, SignState

MAX_GROUPS = 32
MAX_SIGNS = 512
MAX_MISSING = 4096
_LEFT_BEHIND_SECONDS = 60.0  # a dump that ends this long before the others is from an earlier time
_SIGN_CONFIDENCE = 0.45  # below it a rank is shown to users but not reported to the engine
_TOGETHER = 0.5
_NO_ATTENDANCE = Attendance()
_STATES = {
    "absent": SignState.NEVER_JOINED,
    "gone": SignState.UNKNOWN,
    "unsure": SignState.UNKNOWN,
    "queued": SignState.STUCK,
    "inside": SignState.STUCK,
    "together": SignState.ALL_EQUAL,
}

_HOW = {
    "absent": "never joined",
    "gone": "no dump",
    "unsure": "no dump; may belong to it",
    "queued": "has it queued behind another",
    "inside": "does not come out",
}


def analyse(
    dumps: Mapping[int, Dump],
    world_size: int | None = None,
    attendance: Attendance = _NO_ATTENDANCE,
) -> Analysis:
    """Compare the dumps; `world_size` defaults to what the recordings show."""
    notes: list[str] = []
    ours = {rank: _with_others(dumps[rank], world_size) for rank in sorted(dumps)}
    while True:
        groups = put_together(ours, world_size)
        positions = RankPositions(ours, groups, attendance)
        left = _left_behind(positions)
        if not left:
            break
        notes.append(f"the dump of {ranks_text(left)} is of an earlier time and was left out")
        ours = {rank: dump for rank, dump in ours.items() if rank not in left}
    missing = tuple(rank for rank in range(min(groups.world, MAX_MISSING)) if rank not in ours)
    moments = (dump.last_at for dump in positions.dumps.values())
    last_at = max((at for at in moments if at is not None), default=None)
    places = {
        rank: RankPlace(rank, SignState.UNKNOWN, last_text(positions, rank))
        for rank in positions.dumps
    }
    unknown = Analysis(
        SignState.UNKNOWN, "", 0.0, (), (), (), places, (), missing, None, last_at, tuple(notes)
    )
    chains = Chains(positions)
    if positions.old:
        old = ranks_text(positions.old)
        summary = (
            f"the dumps are of different moments: the job went on after that of {old} was taken"
        )
        return unknown._replace(state=SignState.MOVING, summary=summary, confidence=0.6)
    if chains.ends:
        return _concluded(chains, unknown)
    if lost := lost_alone(chains):
        state, summary, confidence = lost[0].state, lost[0].text, lost[0].confidence
        blamed = tuple(lost)
        return unknown._replace(
            state=state, summary=summary, confidence=confidence, blamed=blamed, since=last_at
        )
    return _no_rank_waits(positions, unknown)


def _with_others(dump: Dump, world_size: int | None) -> Dump:
    """Leave out collectives of a rank with itself, because no other rank can be missing in them."""
    alone = {
        name
        for name, group in dump.groups.items()
        if world_size == 1 or (group.ranks is not None and len(group.ranks) == 1)
    }
    if not alone:
        return dump
    return dump._replace(
        groups={name: group for name, group in dump.groups.items() if name not in alone},
        operations=tuple(each for each in dump.operations if each.group not in alone),
    )


def _left_behind(positions: RankPositions) -> frozenset[int]:
    newest = max((dump.last_at or 0.0 for dump in positions.dumps.values()), default=0.0)
    return frozenset(
        rank
        for rank in positions.old
        if newest - (positions.dumps[rank].last_at or newest) > _LEFT_BEHIND_SECONDS
    )


def _concluded(chains: Chains, unknown: Analysis) -> Analysis:
    positions = chains.positions
    blamed = blame(chains)
    end = _end_of(chains, blamed[0]) if blamed else chains.ends[0]
    way = chains.path(end)
    links = chain_text(chains, way)
    if blamed:
        first = blamed[0]
        state, summary, confidence = first.state, first.text, first.confidence
        links.append(first.text)
    else:
        assert isinstance(end.node, Meeting)  # a rank, or a ring of them, would have been blamed
        state, confidence = SignState.ALL_EQUAL, _TOGETHER
        summary = (
            f"every member has joined {meeting_text(positions, end.node)} and none comes out of it"
            f"{clock(began(positions, end.node))}: look at the fabric"
        )
        links.append(summary)
    return unknown._replace(
        state=state,
        summary=summary,
        confidence=confidence,
        blamed=tuple(blamed),
        chain=tuple(links),
        chain_ranks=tuple(node for node in way if isinstance(node, int)),
        ranks=_places(chains, blamed),
        groups=_groups(chains),
        since=None if end.since == float("inf") else end.since,
    )


def _end_of(chains: Chains, first: BlamedRank) -> End:
    """Return the end that the first blamed rank belongs to."""
    for end in chains.ends:
        held = chains.held.get(end.node) if isinstance(end.node, Meeting) else None
        step = chains.steps.get(end.node) if isinstance(end.node, Meeting) else None
        there = {end.node, *end.ring, *(held.by if held else ()), *(step.ranks if step else ())}
        if first.rank in there and len(end.waiting) == first.waiting:
            return end
    return chains.ends[0]


def _places(chains: Chains, blamed: list[BlamedRank]) -> dict[int, RankPlace]:
    positions = chains.positions
    blamed_by_rank = {each.rank: each for each in reversed(blamed)}
    found = {}
    for rank in sorted({*positions.dumps, *blamed_by_rank}):
        meeting = positions.meeting(rank) if rank in positions.dumps else None
        if rank in blamed_by_rank:
            state, text = blamed_by_rank[rank].state, blamed_by_rank[rank].text
        elif meeting is not None:
            others = [each for each in chains.held[meeting].by if each != rank]
            text = f"rank {rank} waits in {meeting_text(positions, meeting)}"
            text += f" for {ranks_text(others)}" if others else ""
            state, text = SignState.STUCK, text + clock(positions.current[rank].at)
        else:
            state, text = SignState.UNKNOWN, f"waits in nothing; {last_text(positions, rank)}"
        found[rank] = RankPlace(rank, state, text)
    return found


def _groups(chains: Chains) -> tuple[GroupPlace, ...]:
    positions = chains.positions
    found = []
    for meeting, held in list(chains.held.items())[:MAX_GROUPS]:
        group = positions.group(meeting)
        state = SignState.OUT_OF_STEP if meeting in chains.steps else _STATES[held.how]
        there = [rank for rank in positions.current if positions.meeting(rank) == meeting]
        text = f"{waits_text(there)} in {meeting_text(positions, meeting)}"
        if held.by:
            text += f" for {ranks_text(held.by)} ({_HOW[held.how]})"
        found.append(GroupPlace(group.name, group.description, group.members, state, text))
    return tuple(found)


def _no_rank_waits(positions: RankPositions, unknown: Analysis) -> Analysis:
    count = len(positions.dumps)
    if not count:
        return unknown._replace(summary="there is no dump that can be read")
    if positions.groups.world == 1:
        summary = "the only rank waits for no other: look at its stack"
        return unknown._replace(summary=summary, confidence=0.1)
    summary = f"no rank waits in a recorded operation, by the dumps of {count} ranks"
    if unknown.missing or not _are_level(positions.groups, positions):
        return unknown._replace(summary=summary, confidence=0.1)
    summary += ", and all have done as much: look at what they do outside of collectives"
    return unknown._replace(state=SignState.ALL_EQUAL, summary=summary, confidence=0.3)


def _are_level(groups: Groups, positions: RankPositions) -> bool:
    last: dict[int, set[int]] = {}
    for rank, dump in positions.dumps.items():
        for name, group in dump.groups.items():
            if not group.has_p2p:
                last.setdefault(groups.places[rank, name], set()).add(group.last)
    return all(len(numbers) == 1 for numbers in last.values())


def signs(analysis: Analysis) -> list[Sign]:
    """Return the signs for the engine.

    Waiting ranks are reported only together with a blamed one; otherwise one of them would be taken
    for the culprit.
    """
    if len(analysis.ranks) + len(analysis.missing) == 1:
        return []  # a single rank cannot wait for another one
    named = [each for each in analysis.blamed if each.confidence >= _SIGN_CONFIDENCE]
    source = SignSource.FLIGHT_RECORDER
    if not named:
        state = SignState.FLAT if analysis.blamed else analysis.state
        return [Sign(source, state, None, analysis.summary)]
    first = named[0]
    found = [Sign(source, first.state, first.rank, first.text)]
    if first.state is SignState.STUCK:
        return found
    blamed = {each.rank for each in analysis.blamed}
    for place in analysis.ranks.values():
        if place.state is SignState.STUCK and place.rank not in blamed:
            found.append(Sign(source, place.state, place.rank, place.text))
        if len(found) >= MAX_SIGNS:
            break
    return found
