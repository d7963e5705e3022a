# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The closed loop: the world moves, the engine is told what its eyes see, and acts.

Once a second, as the sidecar does. In long stretches in which nothing changes, less often: a
record that says what the last one said tells the engine only that it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mwatch.engine.engine import Assessment, Engine
from mwatch.model.decision import Action, Decision
from mwatch.model.observation import (
    AttemptStart,
    Observed,
    ProcessExit,
    Source,
    SourceStatusChange,
    StoredCheckpoint,
    StoredCheckpoints,
)
from sim.delivery import Delivery
from sim.eyes import probed_ranks
from sim.plan import Plan
from sim.probe import Probe
from sim.shape import SAVE_DIR
from sim.witnesses import Witnesses
from sim.world import World
from support.builders.job import entries

_FOLDER_PERIOD = 20.0


class Watch:
    """What watches one run, judges it and acts on it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan)
        self.stage = self.world.stage
        self.engine = Engine("run", entries())
        chance = Random(f"{plan.seed}/eyes")
        self._chance = chance
        self.names = [f"pod-{number}" for number in self._numbers(chance)]
        wanted = {fault.rank for fault in plan.faults}
        ranks = probed_ranks(plan.shape, wanted)
        self._delivery = Delivery(self.stage, plan.eyes, self.names, chance)
        self._probe = Probe(self.stage, plan.eyes, ranks, chance)
        self._witnesses = Witnesses(self.stage, plan.eyes, ranks, chance)
        self._folder_at = 0.0
        self._token = 1
        self._starts: list[Observed] = []
        self._told_blind = False

    def _numbers(self, chance: Random) -> list[int]:
        """Which pod has rank 0 is decided by who comes first, not by its name."""
        numbers = list(range(self.plan.shape.pods))
        if chance.random() < 0.5:
            chance.shuffle(numbers)
        return numbers

    @property
    def has_lines_to_come(self) -> bool:
        return self._delivery.is_under_way and not self.stage.blinded

    def begin(self) -> None:
        first = self.plan.shape.first or None
        self.world.launch(self.stage.now, first, self.plan.shape.max_restarts)

    def tick(self, seconds: float) -> Assessment:
        self.world.advance(self.stage.now + seconds)
        for observed in self._seen(seconds):
            self.engine.observe(observed)
        return self.engine.evaluate(self.stage.now)

    def _seen(self, seconds: float) -> Iterator[Observed]:
        """What was new in these seconds, in the order in which it reaches the engine."""
        stage, eyes = self.stage, self.plan.eyes
        blinded = stage.blinded
        self._note_launches()
        if "all" in blinded or "quiet" in blinded:
            yield from self._go_blind()
            return
        yield from self._due_starts()
        yield from self._delivery.read()
        yield from self._exits()
        if eyes.probe and "probe" not in blinded:
            yield from self._probe.read(self.names, self._token, seconds)
        if eyes.has_witness:
            yield from self._witnesses.read(self.names)
        if eyes.folder and stage.now >= self._folder_at:
            self._folder_at = stage.now + _FOLDER_PERIOD
            yield self._folder()

    def _go_blind(self) -> Iterator[Observed]:
        self.stage.printed.clear()
        self.stage.ended.clear()
        if "all" in self.stage.blinded and not self._told_blind:
            self._told_blind = True
            for sight in Source:
                change = SourceStatusChange(sight, False, "the sidecar does not answer")
                yield Observed(self.stage.now, self.names[0], change)

    def _note_launches(self) -> None:
        """Wrappers tell of a start, pod by pod; torchrun's own restarts they do not see."""
        for at, resume_from in self.world.launched:
            self._token = self._next_token()
            if self.world.by_torchrun or not (self.plan.eyes.exits or self.engine.record.acts):
                continue
            told = AttemptStart(self._token, resume_from, self.plan.shape.world_size)
            for pod, name in enumerate(self.names):
                when = at + self._chance.uniform(0.0, 2.0)
                self._starts.append(Observed(when + self.plan.eyes.skew(pod), name, told))
        self.world.launched.clear()

    def _next_token(self) -> int:
        job = self.engine.job
        return job.attempt.number + 1 if job.has_started else 1

    def _due_starts(self) -> Iterator[Observed]:
        starts, self._starts = self._starts, []
        yield from sorted(starts, key=lambda each: each.at)

    def _exits(self) -> Iterator[Observed]:
        stage, eyes = self.stage, self.plan.eyes
        due = [each for each in stage.ended if each.at <= stage.now]
        stage.ended = [each for each in stage.ended if each.at > stage.now]
        if not eyes.exits:
            return
        for each in due:
            gone = ProcessExit(each.code, each.signal, each.reason)
            yield Observed(each.at + eyes.skew(each.pod), self.names[each.pod], gone)

    def _folder(self) -> Observed:
        there = tuple(
            StoredCheckpoint(
                number,
                "complete" if entry.is_complete else "incomplete",
                None if entry.is_complete else "metadata.json is missing",
                400_000_000,
                entry.changed_at,
            )
            for number, entry in sorted(self.stage.folder.saved.items())
        )
        return Observed(self.stage.now, self.names[0], StoredCheckpoints(SAVE_DIR, there))

    def wants_act(self, decision: Decision) -> bool:
        if decision.action is Action.NONE or not self.plan.acts:
            return False
        is_due = decision.act_at is None or self.stage.now >= decision.act_at
        return is_due and self.engine.record.of_attempt(decision.attempt) is None

    def act(self, decision: Decision) -> None:
        """Carry it out: kill, and for a restart launch what was chosen."""
        self.engine.record_action(decision, self.stage.now)
        self.world.kill()
        self.world.by_torchrun = False
        if decision.action is Action.RESTART:
            wait = self.world.chance.uniform(3.0, 12.0)
            shape = self.plan.shape
            resume_from = self.resume_of(decision)
            self.world.launch(self.stage.now + wait, resume_from, shape.max_restarts)

    def resume_of(self, decision: Decision) -> int | None:
        """Nothing chosen and nothing forbidden: the trainer loads what its tracker names."""
        if decision.resume_from is None and decision.quarantine_from is None:
            return self.world.newest()
        return decision.resume_from
