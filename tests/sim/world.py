# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: launches attempts, lets time pass, kills when told to."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from sim.curve import Curve, Scaler, Weights
from sim.dying import DEAD
from sim.plan import Plan
from sim.stage import Stage
from sim.strikes import strike
from sim.trainer import Trainer

EPOCH = 1_790_000_000.0
_NEVER = float("inf")


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.shape = plan.shape
        self.stage = Stage(plan.shape, EPOCH)
        self.chance = Random(f"{plan.seed}/world")
        self.curve = Curve(plan.shape, plan.seed)
        self.curve.spikes.update(plan.spikes)
        self._trainer: Trainer | None = None
        self._life: Iterator[float] = iter(())
        self._wake = _NEVER
        self._next: tuple[float, int | None, int] | None = None
        """A launch to come: when, from which checkpoint, restarts that torchrun has left."""
        self.launched: list[tuple[float, int | None]] = []
        """Attempts that were started since this was last read: when, and resumed from what."""
        self.by_torchrun = False
        """The last launch was torchrun's own: no wrapper noticed it."""
        self._has_loaded = False
        self._fill_folder()

    def _fill_folder(self) -> None:
        shape, folder = self.shape, self.stage.folder
        every = shape.save_interval or shape.first
        for back in (2, 1, 0):
            iteration = shape.first - back * every
            if iteration <= 0:
                continue
            scaler = Scaler(scale=self.curve.limit, growth=self.plan.growth)
            weights = Weights(iteration, iteration * shape.batch, iteration, scaler)
            entry = folder.begin(weights, EPOCH - 600.0 * (back + 1))
            entry.written_at = entry.began_at + 5.0
            entry.is_corrupt = back == 0 and self.plan.spoiled_first

    def launch(self, at: float, resume_from: int | None, restarts_left: int) -> None:
        self._next = (at, resume_from, restarts_left)

    @property
    def next_event(self) -> float:
        """When something happens next, as far as that is settled."""
        return self._wake if self._next is None else min(self._wake, self._next[0])

    def advance(self, until: float) -> None:
        """Everything that happens up to `until` happens."""
        while True:
            if self._next is not None and self._next[0] <= min(until, self._wake):
                self._begin(*self._next)
            elif self._wake <= until:
                self._resume()
            else:
                break
        self.stage.now = until

    def _begin(self, at: float, resume_from: int | None, restarts_left: int) -> None:
        stage = self.stage
        self._next = None
        stage.now = at
        stage.attempt += 1
        stage.lost_pods.clear()
        newer = [number for number in stage.folder.saved if number > (resume_from or 0)]
        if newer:
            stage.folder.roll_back(resume_from or 0)
        self._trainer = trainer = Trainer(
            stage, self.curve, self.chance, list(self.plan.faults), strike,
            resume_from=resume_from, is_lost=stage.attempt in self.plan.lost_attempts,
        )  # fmt: skip
        trainer.restarts_left = restarts_left
        self._life, self._wake = trainer.life(), at
        self.launched.append((at, resume_from))
        self._has_loaded = self._has_loaded or resume_from is not None

    def _resume(self) -> None:
        self.stage.now = self._wake
        try:
            self._wake += next(self._life)
        except StopIteration:
            self._wake = _NEVER
            self._relaunch()

    def _relaunch(self) -> None:
        """By torchrun inside the container, or by the cluster's own operator."""
        trainer, stage = self._trainer, self.stage
        assert trainer is not None
        self.by_torchrun = trainer.relaunches
        if trainer.relaunches:
            wait = self.chance.uniform(3.0, 8.0)
            self.launch(stage.now + wait, self.newest(), trainer.restarts_left - 1)
        elif self.plan.relaunched_by == "operator" and not stage.has_finished:
            self.launch(stage.now + self.chance.uniform(10.0, 30.0), self.newest(), 0)

    def newest(self) -> int | None:
        """What the tracker file names."""
        fit = self.stage.folder.fit()
        return fit[-1] if fit else None

    def kill(self) -> None:
        """SIGKILL to all processes of the job; what was half written stays half written."""
        stage = self.stage
        self._life, self._wake, self._next = iter(()), _NEVER, None
        stage.is_over, stage.crowd = True, DEAD
        stage.odd.clear()
        stage.ended.clear()  # what becomes of deleted pods is known to be of the old attempt

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing is going to."""
        return self._next is None and self.stage.is_over

    def restart_cost(self) -> float:
        """What a restart costs this job now: start, load, first step, and the lost steps.

        As far as it can be known: a load that was never seen costs nothing yet, and a tenth is
        left for what differs from one start to the next.
        """
        shape, stage = self.shape, self.stage
        fit = stage.folder.fit()
        lost = (stage.iteration or 0) - (fit[-1] if fit else 0)
        again = max(0, lost) * shape.step_seconds
        load = shape.load_seconds if self._has_loaded else 0.0
        return 0.9 * (shape.start_seconds + load + shape.first_step_seconds + again)
