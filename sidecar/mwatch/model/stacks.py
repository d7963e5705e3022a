# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The merged stacks of many ranks: how many are at the same place, and which rank differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mwatch.model.observation import RankStack, StackKind

MAX_GROUPS = 8
_MAX_SPANS = 6
_MAX_CALLS = 12


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads are at the same place."""

    count: int
    ranks: str  # `0-16,18-2047`
    kind: StackKind
    what: str = ""
    place: str = ""
    frames: tuple[str, ...] = ()  # of its lowest rank, innermost first
    first: int = 0  # its lowest rank

    @property
    def text(self) -> str:
        """`2047 ranks (0-16,18-2047): all_reduce, called from training.py:3532 in train_step`."""
        who = f"rank {self.ranks}" if self.count == 1 else f"{self.count} ranks ({self.ranks})"
        return f"{who}: {standing(self.what, self.place)}"


def standing(what: str, place: str) -> str:
    if not place:
        return what or "unknown"
    return f"`{what}`, called from {place}" if what else place


def grouped(stacks: Iterable[RankStack]) -> tuple[StackGroup, ...]:
    """Merge stacks by what the ranks do and where, the largest group first.

    Beyond `MAX_GROUPS` only the largest and the smallest are kept: the odd one out matters.
    """
    by_place: dict[tuple[StackKind, str, str], list[RankStack]] = {}
    for each in stacks:
        by_place.setdefault((each.kind, each.what, each.place), []).append(each)
    groups = []
    for (kind, what, place), there in by_place.items():
        ranks = sorted(each.rank for each in there)
        lowest = min(there, key=lambda each: each.rank)
        groups.append(
            StackGroup(len(ranks), spans(ranks), kind, what, place, lowest.frames, ranks[0])
        )
    groups.sort(key=lambda each: (-each.count, each.first))
    half = MAX_GROUPS // 2
    kept = groups if len(groups) <= MAX_GROUPS else [*groups[:half], *groups[-half:]]
    return tuple(kept)


def odd_one_out(groups: Sequence[StackGroup]) -> StackGroup | None:
    """Return the group of one rank that does not wait in a collective while all others do."""
    if len(groups) < 2:
        return None
    away = [each for each in groups if each.kind is not StackKind.COLLECTIVE]
    waiting = sum(each.count for each in groups if each.kind is StackKind.COLLECTIVE)
    return away[0] if len(away) == 1 and away[0].count == 1 and waiting else None


def tree(groups: Sequence[StackGroup]) -> list[str]:
    """Draw the groups as one tree of calls, outermost first, with the number of ranks in each.

    Calls that all ranks of a branch share are one line.
    """
    paths = [(each, _path(each)) for each in groups]
    return list(_branch(paths, 0, ""))


def _path(group: StackGroup) -> list[str]:
    """Return its calls, outermost first; a C function is in no Python stack, but may be known."""
    is_shown = not group.what or any(group.what == _function(call) for call in group.frames[:2])
    return [*reversed(group.frames), *([] if is_shown else [group.what])]


def _function(call: str) -> str:
    return call.partition(" ")[0]


def _branch(paths: list[tuple[StackGroup, list[str]]], depth: int, indent: str) -> Iterable[str]:
    """Yield the lines of groups whose first `depth` calls are the same."""
    if not paths:
        return
    shared = depth
    shortest = min(len(path) for _, path in paths)
    while shared < shortest and len({path[shared] for _, path in paths}) == 1:
        shared += 1
    count = sum(group.count for group, _ in paths)
    ranks = paths[0][0].ranks if len(paths) == 1 else ""
    who = f"{count} rank{'s' * (count > 1)}" + (f" ({ranks})" if ranks else "")
    yield f"{indent}{who}: {_calls(paths[0][1][depth:shared])}"
    below: dict[str | None, list[tuple[StackGroup, list[str]]]] = {}
    for group, path in paths if len(paths) > 1 else ():
        below.setdefault(path[shared] if shared < len(path) else None, []).append((group, path))
    for call, inner in below.items():
        # Groups whose path ends here have no more calls to compare.
        for part in [[each] for each in inner] if call is None else [inner]:
            yield from _branch(part, shared, f"{indent}  ")


def _calls(calls: Sequence[str]) -> str:
    """Leave out the middle of a long path."""
    if len(calls) > _MAX_CALLS:
        calls = [*calls[:2], "…", *calls[2 - _MAX_CALLS + 1 :]]
    return " → ".join(calls) or "here"


def spans(ranks: Sequence[int]) -> str:
    """Write sorted ranks as `0-3,7`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in found[:_MAX_SPANS]]
    more = f" and {len(found) - _MAX_SPANS} more" if len(found) > _MAX_SPANS else ""
    return ",".join(shown) + more
