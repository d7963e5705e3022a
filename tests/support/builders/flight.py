# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Flight-recorder dumps of jobs that are played here: ranks, groups, and one that does not come.

Every rank runs the same program: it hands operations over, in order and at most `ahead` of them
at a time, and an operation ends when it is the oldest open one of all its members. The dumps are
what torch would write then; how they are spelt is in `flight_format`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.builders.flight_format import entry, in_batch

T0 = 1_794_000_000.0


@dataclass(frozen=True)
class Call:
    """One line of a rank's program."""

    group: str
    """The kind of group: `tp`, `dp`, `pp`, `world`."""
    kind: str = "all_reduce"
    sizes: tuple[int, ...] = (8,)
    to: int | None = None
    """Of a send or receive: the other rank."""


DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "world": "default_pg",
}


def layout(tp: int = 1, pp: int = 1, dp: int = 1) -> dict[str, list[tuple[int, ...]]]:
    """Megatron's groups, in the order in which it makes them."""
    world = tp * pp * dp
    stage = tp * dp
    return {
        "world": [tuple(range(world))],
        "tp": [tuple(range(first, first + tp)) for first in range(0, world, tp)],
        "dp": [
            tuple(range(first + place, first + stage, tp))
            for first in range(0, world, stage)
            for place in range(tp)
        ],
        "pp": [tuple(range(place, world, stage)) for place in range(stage)],
    }


@dataclass
class Played:
    """One operation of one rank, handed over."""

    call: Call
    name: str
    number: int
    at: float
    is_done: bool = False


@dataclass
class Flight:
    groups: Mapping[str, Sequence[tuple[int, ...]]]
    library: str = "nccl"
    ahead: int = 1
    described: bool = True
    batched: bool = False
    """Sends and receives are handed over as batches of one, as Megatron does."""
    stops: dict[int, int] = field(default_factory=dict)
    """By rank: how many calls it makes before it stops for good."""
    instead: dict[tuple[int, int], Call] = field(default_factory=dict)
    """By rank and place: what it calls there instead."""
    log: dict[int, list[Played]] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return len(self.groups["world"][0])

    def __post_init__(self) -> None:
        self._done = dict.fromkeys(range(self.world), 0)
        self._places: dict[tuple[int, str], tuple[str, tuple[int, ...]]] = {}
        number = 0
        for kind, made in self.groups.items():
            for group in made:
                for rank in group:
                    self._places[rank, kind] = (str(number), group)
                number += 1

    def members(self, rank: int, kind: str) -> tuple[int, ...]:
        return self._places[rank, kind][1]

    def name(self, rank: int, kind: str) -> str:
        """Numbered in the order in which the groups were made, as torch does."""
        return self._places[rank, kind][0]

    def play(self, program: Callable[[int], Sequence[Call]]) -> Flight:
        """Until nobody gets any further."""
        programs = {rank: list(program(rank)) for rank in range(self.world)}
        for (rank, place), call in self.instead.items():
            programs[rank][place] = call
        self.log = {rank: [] for rank in programs}
        counts: dict[tuple[int, str, bool], int] = defaultdict(int)
        now, moved = T0, True
        while moved:
            moved = False
            now += 0.01
            for rank, calls in programs.items():
                moved |= self._hand_over(rank, calls, counts, now)
            for rank in programs:
                moved |= self._finish(rank)
        return self

    def _hand_over(
        self,
        rank: int,
        calls: Sequence[Call],
        counts: dict[tuple[int, str, bool], int],
        now: float,
    ) -> bool:
        made = self.log[rank]
        is_full = len(made) - self._done[rank] >= self.ahead
        if is_full or len(made) >= min(len(calls), self.stops.get(rank, len(calls))):
            return False
        call = calls[len(made)]
        name = self.name(rank, call.group)
        key = (rank, name, call.to is not None)
        counts[key] += 1
        made.append(Played(call, name, counts[key], now + rank * 1e-4))
        return True

    def head(self, rank: int) -> Played | None:
        made, place = self.log[rank], self._done[rank]
        return made[place] if place < len(made) else None

    def _finish(self, rank: int) -> bool:
        ours = self.head(rank)
        if ours is None:
            return False
        others: tuple[int, ...]
        if ours.call.to is not None:
            others = (rank, ours.call.to)
        else:
            others = self.members(rank, ours.call.group)
        theirs = [self.head(other) for other in others]
        if not all(each is not None and self._matches(ours, each) for each in theirs):
            return False
        if ours.call.to is not None and not self._are_ends_of_one(rank, ours, theirs[1]):
            return False
        for other, each in zip(others, theirs, strict=True):
            assert each is not None
            each.is_done = True
            self._done[other] += 1
        return True

    def _are_ends_of_one(self, rank: int, ours: Played, theirs: Played | None) -> bool:
        return theirs is not None and theirs.call.to == rank and theirs.call.kind != ours.call.kind

    def _matches(self, ours: Played, theirs: Played) -> bool:
        if ours.call.to is not None:
            return theirs.call.to is not None and theirs.name == ours.name
        same = (theirs.name, theirs.number, theirs.call.kind, theirs.call.sizes)
        return same == (ours.name, ours.number, ours.call.kind, ours.call.sizes)

    def dump(self, rank: int, *, buffer: int = 2000, version: str = "2.10") -> dict[str, Any]:
        """As torch would give it to Python."""
        made = self.log[rank][-buffer:]
        first = len(self.log[rank]) - len(made)
        if self.library == "gloo":  # which does not record sends and receives
            made = [each for each in made if each.call.to is None]
        head = next((each for each in made if not each.is_done), None)
        entries: list[dict[str, Any]] = []
        for each in made:
            number = first + len(entries)
            found = entry(self, rank, each, number, version, is_head=each is head)
            is_batch = self.batched and each.call.to is not None
            entries += in_batch(found, each.is_done) if is_batch else [found]
        return {
            "version": version,
            "pg_config": self._config(rank),
            "comm_lib_version": "",
            "pg_status": {},
            "entries": entries,
        }

    def description(self, kind: str) -> str:
        return DESCRIPTIONS[kind] if self.described else "undefined"

    def _config(self, rank: int) -> dict[str, dict[str, str]]:
        if self.library == "gloo":
            return {"": {"name": "", "desc": "", "ranks": "[]"}}
        found = {}
        for kind in self.groups:
            name = self.name(rank, kind)
            ranks = ", ".join(map(str, self.members(rank, kind)))
            found[name] = {"name": name, "desc": self.description(kind), "ranks": f"[{ranks}]"}
        return found


def steps(count: int, *, with_world: bool = True) -> Callable[[int], list[Call]]:
    """Two tensor-parallel all-reduces and one data-parallel one a step."""

    def program(rank: int) -> list[Call]:
        step = [Call("tp"), Call("tp", sizes=(16,)), Call("dp", sizes=(32,))]
        return (step * 2 + [Call("world", sizes=(1,))] * with_world) * (count // 2)

    return program


def pipeline(flight: Flight, count: int) -> Callable[[int], list[Call]]:
    """Each stage receives, works, sends on, and does its data-parallel all-reduce."""

    def program(rank: int) -> list[Call]:
        line = flight.members(rank, "pp")
        place = line.index(rank)
        step = [Call("tp")]
        if place:
            step.insert(0, Call("pp", "recv", to=line[place - 1]))
        if place + 1 < len(line):
            step.append(Call("pp", "send", to=line[place + 1]))
        return [*step, Call("dp", sizes=(32,))] * count

    return program
