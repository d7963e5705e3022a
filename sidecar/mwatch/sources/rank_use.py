# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What each rank uses of its machine: its own process and all below it.

CPU time only ever grows: that of a data loader that has ended is still counted. Memory is a sum
of what each process holds, and pages that several share are counted for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Key = tuple[int, int]
"""Pid and start: a pid alone may be used again."""


class Process(NamedTuple):
    pid: int
    parent: int | None
    started: int
    rank: int | None
    is_rank: bool
    name: str
    state: str
    cpu_seconds: float | None
    resident_bytes: float | None = None
    threads: int | None = None

    @property
    def key(self) -> Key:
        return self.pid, self.started


class Use(NamedTuple):
    cpu_seconds: float | None = None
    resident_bytes: float | None = None
    threads: int | None = None
    """Of its main process."""


class RankUse:
    def __init__(self) -> None:
        self._known: dict[Key, float] = {}
        self._spent: dict[int, float] = {}
        self.ranks: dict[int, Use] = {}

    def saw(self, found: Mapping[int, Sequence[Process]]) -> None:
        """Of each rank that lives: its main process first, then those below it."""
        self.ranks = {rank: self._use(rank, every) for rank, every in found.items()}
        there = {each.key for every in found.values() for each in every}
        self._known = {key: spent for key, spent in self._known.items() if key in there}

    def _use(self, rank: int, every: Sequence[Process]) -> Use:
        for each in every:
            if each.cpu_seconds is None:
                continue
            more = each.cpu_seconds - self._known.get(each.key, 0.0)
            self._known[each.key] = each.cpu_seconds
            self._spent[rank] = self._spent.get(rank, 0.0) + max(more, 0.0)
        held = [each.resident_bytes for each in every if each.resident_bytes is not None]
        return Use(self._spent.get(rank), sum(held) if held else None, every[0].threads)
