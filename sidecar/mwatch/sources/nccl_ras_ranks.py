# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which global rank a rank of a communicator is, and whom the others wait for.

RAS numbers ranks inside a communicator. Only in one as large as the world is that the global
rank; in a smaller one a rank is found by its process, where the answer has processes (JSON) and
some communicator of the world's size. Where neither is so, nobody is named.
"""

from __future__ import annotations

from collections.abc import Iterable

from mwatch.model.nccl import Communicator, RasAnswer

_MAX_NAMED = 8


class Names:
    def __init__(self, answer: RasAnswer, world_size: int | None) -> None:
        self.world_size = world_size
        whole = (each for each in answer.told if each.size == world_size)
        world = next((each for each in whole if each.processes), None)
        self._by_process: dict[str, int] = {}
        if world is not None:
            self._by_process = {process: rank for rank, process in world.processes.items()}
            if len(self._by_process) < len(world.processes):
                self._by_process = {}  # two ranks in one process: not told apart

    def of(self, each: Communicator, rank: int, process: str | None) -> int | None:
        if rank < 0:
            return None
        if each.size == self.world_size:
            return rank
        return None if process is None else self._by_process.get(process)


def last_ones(names: Names, unequal: Iterable[Communicator]) -> dict[int, str]:
    """Ranks that are behind somewhere, and ahead of nobody anywhere: those wait themselves."""
    behind: dict[int, str] = {}
    waiting: set[int] = set()
    for each in unequal:
        most, least = max(each.begun.values()), min(each.begun.values())
        for rank, count in each.begun.items():
            known = names.of(each, rank, each.processes.get(rank))
            if known is None:
                continue
            if count > least:
                waiting.add(known)
            if count < most:
                words = f"has begun {most - count} fewer collectives than others of {each.size}"
                behind.setdefault(known, words)
    found = sorted(behind.keys() - waiting)
    if names.world_size is None or 2 * len(found) > names.world_size:
        return {}
    return {rank: behind[rank] for rank in found[:_MAX_NAMED]}
