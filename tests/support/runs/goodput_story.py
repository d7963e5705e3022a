# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job with noise, saves, evaluations and faults, told to the fold, and the truth about it.

Much smaller than the simulator in `tests/sim`: one pod, no findings, no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from mwatch.model.event import Arguments, Checkpoint, Iteration, Phase, Validation
from mwatch.model.goodput import Spent
from mwatch.model.job import Job
from mwatch.model.observation import AttemptStart, Beat, Observed, ProcessExit
from mwatch.state.fold import fold
from mwatch.state.goodput import ledger

POD = "pod-0"
START = 1_700_000_000.0


class Blow(NamedTuple):
    """What befalls the job in the step that would finish `iteration`."""

    iteration: int
    kind: str
    """`crash`, `hang` or `stall` (which heals)."""
    seconds: float = 0.0
    """From the hang to its end, or what the stall took."""


@dataclass
class Told:
    """How a job is seen."""

    interval: int = 10
    has_first_line: bool = True
    """core_v0.16 to v0.19: the first iteration is printed, and counted again in the next line."""
    whole_seconds: bool = False
    stamped_saves: bool = True
    """Before core_v0.16 the lines of a save have no time of their own."""
    probe: bool = False
    judges: bool = True
    """Hangs are found, after two intervals or ten seconds."""
    sees_end: bool = True
    """The parent tells when the command ended; a recorded log does not."""


@dataclass
class World:
    total: int = 2000
    step: float = 1.0
    sigma: float = 0.04
    tail: float = 0.0
    """Share of steps that take three times as long."""
    slow_from: int = 0
    slow_to: int = 0
    save_every: int = 200
    save: float = 8.0
    evaluate_every: int = 300
    evaluate: float = 12.0
    first: float = 25.0
    start: float = 30.0
    load: float = 10.0
    restart: float = 20.0
    blows: tuple[Blow, ...] = ()


class Run:
    """Plays a world to a job; `good` is the truth: first-time iterations at usual speed."""

    def __init__(self, world: World, told: Told, seed: int = 1) -> None:
        self.world, self.told, self.chance = world, told, Random(seed)
        self.job = Job("run", {})
        self.now = START
        self.good = 0.0
        self.best = 0
        self.saved = 0
        self.blows = list(world.blows)
        self.carried = START
        self.asks: Callable[[float], None] = lambda good: None
        """Called in the middle of everything that takes time, with the good time up to then."""
        self._beaten = 0.0

    def play(self) -> Job:
        number, is_done = 1, False
        while not is_done:
            is_done = self._attempt(number)
            number += 1
            self.now += 0.0 if is_done else self.world.restart
        return self.job

    @property
    def error(self) -> float:
        """Of what was booked as good, as a share of wall time."""
        booked = self.job.ledger.booked
        wall = self.now - START
        return abs(booked[Spent.TRAINING] - self.good) / wall

    def tell(self, what: Any, *, stamped: bool = True) -> None:
        if stamped:
            self.carried = float(int(self.now)) if self.told.whole_seconds else self.now
        fold(self.job, Observed(max(self.carried, self.job.now), POD, what))

    def pass_time(self, seconds: float, iteration: int | None, place: str) -> None:
        """Beats come once a second, whatever happens."""
        until = self.now + seconds
        if not self.told.probe:
            self.now += seconds / 2
            self.asks(self.good)
        while self.told.probe and self._beaten + 1.0 <= until:
            self._beaten = max(self._beaten + 1.0, self.now)
            self.now = self._beaten
            self.tell(Beat(0, 8, iteration, place, str(self.now), 7, None))
            self.asks(self.good)
        self.now = until

    def _attempt(self, number: int) -> bool:
        world = self.world
        self._beaten = self.now
        if self.told.sees_end:
            self.tell(AttemptStart(number, self.saved or None, 8))
        self.tell(_arguments(self.told.interval, world))
        self.pass_time(world.start, None, "starting")
        if self.saved:
            self.tell(_checkpoint("load", "begin", self.saved))
            self.pass_time(world.load, None, "loading")
            self.tell(_checkpoint("load", "end", self.saved), stamped=False)
        self.tell(Phase("first-step", "mark", "", None, None, "log", 1))
        return self._train()

    def _train(self) -> bool:
        world = self.world
        taken: list[float] = []
        first = self.saved + 1
        for iteration in range(first, world.total + 1):
            usual = world.step * self.chance.lognormvariate(0.0, world.sigma)
            usual *= 3.0 if self.chance.random() < world.tail else 1.0
            seconds = usual * (2.0 if world.slow_from <= iteration < world.slow_to else 1.0)
            seconds += world.first if iteration == first else 0.0
            blow = next((each for each in self.blows if each.iteration == iteration), None)
            if blow is not None:
                self.blows.remove(blow)
                if blow.kind != "stall":
                    self._end(blow, iteration, seconds)
                    return False
                seconds += blow.seconds
            self.pass_time(seconds, iteration - 1, "training")
            taken.append(seconds)
            if iteration > self.best:
                self.best, self.good = iteration, self.good + usual
            self._report(iteration, first, taken)
            self._aside(iteration)
        self.tell(ProcessExit(0, None, None))
        return True

    def _report(self, iteration: int, first: int, taken: list[float]) -> None:
        told = self.told
        is_first = told.has_first_line and iteration == first
        if is_first or iteration % told.interval == 0:
            mean = sum(taken) / len(taken)
            self.tell(_line(iteration, self.world.total, mean, len(taken), is_first))
            if not is_first:
                taken.clear()

    def _aside(self, iteration: int) -> None:
        world, stamped = self.world, self.told.stamped_saves
        if world.evaluate_every and iteration % world.evaluate_every == 0:
            self.pass_time(world.evaluate, iteration, "evaluating")
            self.tell(Validation(iteration, None, {}, {}, None, None, "log", 1, "megatron"),
                      stamped=self.told.probe)  # fmt: skip
        if world.save_every and iteration % world.save_every == 0:
            self.tell(_checkpoint("save", "begin", iteration), stamped=stamped)
            self.pass_time(world.save, iteration, "saving")
            self.tell(_checkpoint("save", "end", iteration), stamped=stamped)
            self.saved = iteration

    def _end(self, blow: Blow, iteration: int, seconds: float) -> None:
        self.pass_time(seconds * self.chance.random(), iteration - 1, "training")
        if blow.kind == "hang":
            hung_at = self.now
            self.pass_time(blow.seconds, iteration - 1, "collective")
            limit = 10.0 if self.told.probe else 2 * self.told.interval * self.world.step
            if self.told.judges:
                found = (hung_at if self.told.probe else self.job.attempt.line_at or 0.0) + limit
                ledger.stall_judged(self.job, detected_at=found, decided_at=found + 5)
        if self.told.sees_end:
            self.tell(ProcessExit(137, "SIGKILL", None))


def _arguments(interval: int, world: World) -> Arguments:
    fields: dict[str, Any] = dict.fromkeys(Arguments._fields)
    fields |= {"world_size": 8, "log_interval": interval, "train_iters": world.total,
               "extra": {}, "file": "log", "line": 1}  # fmt: skip
    return Arguments(**fields)


def _checkpoint(op: Any, edge: Any, iteration: int) -> Checkpoint:
    return Checkpoint(op, edge, iteration, "/ck", False, "", None, None, "log", 1)


def _line(iteration: int, total: int, seconds: float, covers: int, is_first: bool) -> Iteration:
    fields: dict[str, Any] = dict.fromkeys(Iteration._fields)
    fields |= {"iteration": iteration, "total_iterations": total, "elapsed_ms": seconds * 1000.0,
               "losses": {"lm loss": 2.0}, "extra": {}, "covers": covers,
               "first_of_process": is_first, "global_batch_size": 32, "file": "log",
               "line": iteration, "flavour": "megatron"}  # fmt: skip
    return Iteration(**fields)


def hard_worlds(seed: int) -> Iterator[tuple[World, Told]]:
    """A world of chance, as each kind of watcher sees it."""
    chance = Random(seed)
    total = chance.choice([1500, 3000])
    step = chance.choice([0.3, 1.0, 6.0])
    blows = tuple(
        Blow(chance.randrange(50, total), chance.choice(["crash", "hang", "stall"]),
             chance.uniform(30.0, 120.0) * max(1.0, step))
        for _ in range(chance.randrange(4))
    )  # fmt: skip
    world = World(
        total, step, chance.choice([0.01, 0.08]), chance.choice([0.0, 0.01]),
        save_every=chance.choice([100, 170, 500]), save=chance.uniform(0.5, 20.0),
        evaluate_every=chance.choice([0, 100, 450]), evaluate=chance.uniform(2.0, 30.0),
        first=chance.uniform(2.0, 60.0), blows=blows,
    )  # fmt: skip
    if chance.random() < 0.25:
        world.slow_from = chance.randrange(200, total)
        world.slow_to = world.slow_from + chance.randrange(50, 1000)
    interval = chance.choice([1, 5, 10, 50, 100])
    for probe in (False, True):
        yield (
            world,
            Told(
                interval,
                has_first_line=chance.random() < 0.5,
                whole_seconds=not probe and chance.random() < 0.5,
                stamped_saves=probe or chance.random() < 0.5,
                probe=probe,
                sees_end=probe or chance.random() < 0.5,
            ),
        )
