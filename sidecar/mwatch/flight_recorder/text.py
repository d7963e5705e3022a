# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Says in words where ranks wait and for whom. Every text is bounded, however wide the job is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from mwatch.flight_recorder.chain import Chains, Node
from mwatch.flight_recorder.waits import Meeting, RankPositions
from mwatch.model.collective import Dump, Operation

_MAX_RANGES = 8
_MAX_LINKS = 16
_MAX_TIME = 253_402_300_000.0  # the year 9999


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3,7`."""
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


def waits(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def clock(at: float | None) -> str:
    """` since 12:00:05 UTC`; nothing where the moment is not known."""
    if at is None or not 0 < at < _MAX_TIME:
        return ""
    return f" since {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def meeting_text(standing: RankPositions, meeting: Meeting) -> str:
    """`all_reduce #57 of TENSOR_MODEL_PARALLEL_GROUP 2 (ranks 0-3)`."""
    group = standing.group(meeting)
    if meeting.channel is not None:
        ends = standing.members(meeting)
        pair = f" from rank {ends[0]} to rank {ends[1]}" if len(ends) == 2 else ""
        return f"a send{pair} in {group.label}"
    there = standing.attending(meeting)
    kinds = sorted({operation.kind for operation in there.values()})
    kind = kinds[0] if kinds else "operation"
    return f"{kind} #{meeting.number} of {group.label} ({ranks_text(group.members)})"


def began(standing: RankPositions, meeting: Meeting) -> float | None:
    """When the first member came that still waits."""
    there = standing.attending(meeting).values()
    return min((each.at for each in there if not each.is_done and each.at), default=None)


def last_text(standing: RankPositions, rank: int) -> str:
    """What the rank did last, by its own recording."""
    last = last_operation(standing.dumps[rank])
    if last is None:
        return "it has recorded nothing"
    group = standing.groups.all[standing.groups.places[rank, last.group]]
    return f"the last it recorded is {last.kind} #{last.number} of {group.label}"


def last_operation(dump: Dump) -> Operation | None:
    return dump.operations[-1] if dump.operations else None


def chain_text(chains: Chains, way: Sequence[Node]) -> list[str]:
    """One sentence for each link of the way."""
    standing = chains.standing
    found = []
    for node, following in pairwise(way):
        if not isinstance(node, int) or not isinstance(following, Meeting):
            continue
        text = f"rank {node} waits in {meeting_text(standing, following)}"
        after = way[way.index(following) + 1] if following != way[-1] else None
        if isinstance(after, int):
            text += f" for rank {after}"
        found.append(text)
    return found[-_MAX_LINKS:]
