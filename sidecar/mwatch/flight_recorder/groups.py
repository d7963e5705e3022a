# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The process groups of a job, assembled from the recordings of its ranks.

NCCL records the members of a group. gloo does not; for gloo, the members are the ranks that
recorded in it, completed where possible. Megatron splits its ranks into groups of equal size with
equal distances, created in the order of their first ranks, so the members seen often leave only one
possible split. If several or none are possible, nothing is guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.model.collective import Dump

Cell = frozenset[int]
_MAX_WORLD = 1 << 15  # no split is searched for above this: jobs that large do not use gloo
MAX_WORLD = 1 << 20
_DEFAULT = "default_pg"
_FIRST = "0"  # torch numbers groups as they are created: the first holds all ranks
Ranks = tuple[int, ...]
_DIMENSIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
"""Parallel dimensions by Megatron's group descriptions."""


def complete(seen: Sequence[Collection[int]], world: int) -> list[Cell | None]:
    """Return the members of each group by the only possible split; None if there is not exactly
    one.

    `seen` is in the order in which the groups were created, as far as their names show it.
    """
    if _is_whole(seen, world):
        return [frozenset(group) for group in seen]
    ways = [
        [_cell(min(group), size, distance) if group else None for group in seen]
        for size, distance in _cuts(world)
        if _allows(seen, size, distance)
    ]
    ways = [cells for cells in ways if _is_in_order(cells)] or ways
    if not ways:
        return [None] * len(seen)
    return [found[0] if len(set(found)) == 1 else None for found in zip(*ways, strict=True)]


def fits(seen: Sequence[Collection[int]], world: int) -> bool:
    """Whether a world of this size explains the members seen."""
    if _is_whole(seen, world):
        return True
    return any(_allows(seen, size, distance) for size, distance in _cuts(world))


def _is_whole(seen: Sequence[Collection[int]], world: int) -> bool:
    """Whether every rank was seen in groups of one size, so nothing has to be completed."""
    sizes = {len(group) for group in seen}
    return len(sizes) == 1 and sizes != {1} and sum(map(len, seen)) == world


def _cuts(world: int) -> Iterator[tuple[int, int]]:
    if world > _MAX_WORLD:
        return
    for size in range(2, world + 1):
        if world % size == 0:
            blocks = world // size
            yield from ((size, each) for each in range(1, blocks + 1) if blocks % each == 0)


def _cell(rank: int, size: int, distance: int) -> Cell:
    block = size * distance
    first = rank - rank % block + rank % distance
    return frozenset(range(first, first + block, distance))


def _is_in_order(cells: Sequence[Cell | None]) -> bool:
    first = [min(cell) for cell in cells if cell]
    return first == sorted(first)


def _allows(seen: Sequence[Collection[int]], size: int, distance: int) -> bool:
    """Whether no group spans two cells and no cell contains two groups."""
    block = size * distance
    taken: set[tuple[int, int]] = set()
    for group in seen:
        cells = {(rank // block, rank % distance) for rank in group}
        if len(cells) > 1 or not cells.isdisjoint(taken):
            return False
        taken |= cells
    return True


class Key(NamedTuple):
    """Key of a group. Names are reused, so it includes the ranks where they were recorded."""

    name: str
    description: str
    ranks: Ranks


class ProcessGroup(NamedTuple):
    name: str
    description: str
    members: Ranks  # in the order of the group if that was recorded, else by rank
    possible: frozenset[int]  # other ranks that may belong to it
    has_p2p: bool

    @property
    def label(self) -> str:
        return f"{self.description} {self.name}" if self.description else f"group {self.name}"


class Groups(NamedTuple):
    all: Sequence[ProcessGroup]
    places: Mapping[tuple[int, str], int]
    """Index in `all`, by rank and the rank's name for the group."""
    world: int


class _Seen:
    def __init__(self) -> None:
        self.recorded: set[int] = set()
        self.has_p2p = False
        self.is_waited_in = False

    @property
    def is_cut_short(self) -> bool:
        """Whether another member was not seen, since a rank does not wait for itself."""
        return self.is_waited_in and len(self.recorded) == 1


def put_together(dumps: Mapping[int, Dump], world: int | None) -> Groups:
    keys = _keys(dumps)
    groups: dict[Key, _Seen] = defaultdict(_Seen)
    for rank, dump in dumps.items():
        for name, group in dump.groups.items():
            seen = groups[keys[rank, name]]
            seen.has_p2p |= group.has_p2p
            if group.last or group.has_p2p:
                seen.recorded.add(rank)
        first = next((each for each in dump.operations if not each.is_done), None)
        if first is not None:
            groups[keys[rank, first.group]].is_waited_in = True
    size = _world(dumps, groups, world)
    found: dict[Key, ProcessGroup] = {}
    for key, seen in groups.items():
        if key.ranks:
            found[key] = ProcessGroup(
                key.name, key.description, key.ranks, frozenset(), seen.has_p2p
            )
    for family in _families(groups):
        found.update(_complete(family, groups, size))
    order = {key: place for place, key in enumerate(found)}
    places = {where: order[key] for where, key in keys.items()}
    return Groups(tuple(found.values()), places, size)


def _keys(dumps: Mapping[int, Dump]) -> dict[tuple[int, str], Key]:
    """Return one key per group, even if its members use different names for it.

    Where ranks name the groups of the same members differently, the names correspond in order.
    """
    names: dict[tuple[str, Ranks], dict[int, list[str]]] = defaultdict(dict)
    keys: dict[tuple[int, str], Key] = {}
    for rank, dump in dumps.items():
        for name, group in dump.groups.items():
            keys[rank, name] = Key(name, group.description, group.ranks or ())
            if group.ranks:
                names[group.description, group.ranks].setdefault(rank, []).append(name)
    for (description, ranks), by_rank in names.items():
        lists = {rank: sorted(found, key=_natural) for rank, found in by_rank.items()}
        first = lists[min(lists)]
        if all(found == first for found in lists.values()):
            continue
        for rank, found in lists.items():
            if len(found) == len(first):
                for own, other in zip(found, first, strict=True):
                    keys[rank, own] = Key(other, description, ranks)
    return keys


def _natural(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdecimal() and len(name) < 10 else (1 << 30, name)


def _world(dumps: Mapping[int, Dump], groups: Mapping[Key, _Seen], world: int | None) -> int:
    """Return the world size: as given, else the smallest one that explains incomplete groups."""
    named = max((max(key.ranks) for key in groups if key.ranks), default=-1)
    least = max(named, *dumps, 0) + 1
    if world is not None and world >= least:
        return min(world, MAX_WORLD)
    if named >= 0:
        return min(least, MAX_WORLD)
    cut = [
        [groups[key].recorded for key in family]
        for family in _families(groups)
        if len({len(groups[key].recorded) for key in family}) > 1
        or any(groups[key].is_cut_short for key in family)
    ]
    for size in range(least, min(2 * least, MAX_WORLD) + 1):
        if all(fits(family, size) for family in cut):
            return size
    return min(least, MAX_WORLD)


def _families(groups: Mapping[Key, _Seen]) -> Iterator[list[Key]]:
    """Yield families: groups of one kind without recorded members that have no rank in common.

    Groups without a description are distinguished by the order of creation.
    """
    by_description: dict[str, list[Key]] = defaultdict(list)
    for key in groups:
        if not key.ranks:
            by_description[key.description].append(key)
    for alike in by_description.values():
        family: list[Key] = []
        taken: set[int] = set()
        for key in sorted(alike, key=lambda key: _natural(key.name)):
            if taken & groups[key].recorded:
                yield family
                family, taken = [], set()
            family.append(key)
            taken |= groups[key].recorded
        yield family


def _complete(
    family: list[Key], groups: Mapping[Key, _Seen], world: int
) -> Iterator[tuple[Key, ProcessGroup]]:
    recorded = [groups[key].recorded for key in family]
    cells = complete(recorded, world)
    taken = set().union(*recorded)
    for key, seen, cell in zip(family, recorded, cells, strict=True):
        name, description, _ = key
        members, possible = frozenset(seen), frozenset[int]()
        if _DEFAULT in (name, description) or name == _FIRST:
            members = frozenset(range(world))
        elif cell is not None:
            members = cell
        else:
            possible = frozenset(range(world)) - taken
        ranks = tuple(sorted(members))
        yield key, ProcessGroup(name, description, ranks, possible, groups[key].has_p2p)


def coordinates(groups: Groups, rank: int) -> dict[str, int]:
    found = {}
    for group in groups.all:
        name = _DIMENSIONS.get(group.description)
        if name and not group.possible and rank in group.members:
            found[name] = group.members.index(rank)
    return found
