# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Completes groups of which only some members were seen.

Megatron cuts its ranks into groups of equal size with equal distances between their members, for
tensor, context, data and pipeline parallelism alike, and makes them in the order of their first
ranks. So the members that were seen often leave one cut only. Where they leave several, or
none, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

Cell = frozenset[int]
_MAX_WORLD = 1 << 15
"""Above it a cut is not looked for: so many ranks without recorded groups are not gloo's."""


def complete(seen: Sequence[Collection[int]], world: int) -> list[Cell | None]:
    """Of each group its members by the only cut that is left; None where there is none or more.

    `seen` is in the order in which the groups were made, as far as their names tell it.
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
    """Whether a world of this size explains what was seen."""
    if _is_whole(seen, world):
        return True
    return any(_allows(seen, size, distance) for size, distance in _cuts(world))


def _is_whole(seen: Sequence[Collection[int]], world: int) -> bool:
    """Every rank was seen, in groups of one size: there is nothing to complete."""
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
    """No group is spread over two cells, and no two are in one."""
    block = size * distance
    taken: set[tuple[int, int]] = set()
    for group in seen:
        cells = {(rank // block, rank % distance) for rank in group}
        if len(cells) > 1 or not cells.isdisjoint(taken):
            return False
        taken |= cells
    return True
