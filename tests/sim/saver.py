# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Saves, synchronous and asynchronous, as rank 0 tells of them and as the folder shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mwatch.model.phase import JobPhase
from sim import lines
from sim.folder import Saved
from sim.stage import Posture

if TYPE_CHECKING:
    from sim.trainer import Trainer

_WRITING = Posture("saving", uses_gpu=False, burns_cpu=False, collective="none")
_FINALIZING = Posture("async-finalize", uses_gpu=False, burns_cpu=False, collective="none")


class Saver:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._saves = 0
        self._queued: list[tuple[Saved, float]] = []
        """Asynchronous saves, and when each will be on disk."""

    def save(self, *, must_end: bool = False) -> Iterator[float]:
        """`must_end`: the process is about to leave."""
        trainer = self._trainer
        stage, shape, chance = trainer.stage, trainer.shape, trainer.chance
        iteration = trainer.weights.iteration
        if trainer.ailments.loses_saves(iteration):
            return
        entry = stage.folder.begin(trainer.weights, stage.now)
        stage.say(0, lines.saving(stage.shown, shape, iteration))
        seconds = shape.save_seconds * chance.lognormvariate(0.0, 0.15)
        seconds *= 1.0 if self._saves else shape.first_save_factor
        began = stage.now
        if shape.is_async:
            yield from trainer.spend(min(seconds, 0.05 * seconds + 0.3), JobPhase.SAVING, _WRITING)
            stage.say(0, lines.queued(stage.shown, shape, iteration))
            self._queued.append((entry, stage.now + seconds))
        else:
            yield from trainer.spend(seconds, JobPhase.SAVING, _WRITING)
            self._complete(entry)
        self._saves += 1
        self._timer((stage.now - began) * 1000.0)
        if must_end:
            yield from self.finalize_all()

    def _complete(self, entry: Saved) -> None:
        stage = self._trainer.stage
        entry.written_at = stage.now
        entry.is_corrupt = self._trainer.ailments.spoils(entry.iteration)
        stage.say(0, lines.saved(stage.shown, self._trainer.shape, entry.iteration))

    def _timer(self, milliseconds: float) -> None:
        trainer = self._trainer
        last = trainer.shape.world_size - 1
        head = "INFO:megatron.core.timers:" if trainer.shape.release.has_micros else ""
        name = "    save-checkpoint ................................: "
        trainer.stage.say(last, f"{head}(min, max) time across ranks (ms):")
        trainer.stage.say(last, f"{name}({milliseconds:.2f}, {milliseconds:.2f})")

    def finalize_if_done(self) -> Iterator[float]:
        """At the start of an iteration: an asynchronous save that is on disk is told of."""
        now = self._trainer.stage.now
        while self._queued and self._queued[0][1] <= now:
            self._complete(self._queued.pop(0)[0])
        yield from ()

    def finalize_all(self) -> Iterator[float]:
        trainer = self._trainer
        if not self._queued:
            return
        trainer.stage.say(
            0, "Unfinalized async checkpoint saves. Finalizing them synchronously now."
        )
        until = self._queued[-1][1]
        wait = max(0.1, until - trainer.stage.now)
        yield from trainer.spend(wait, JobPhase.ASYNC_FINALIZE, _FINALIZING)
        while self._queued:
            self._complete(self._queued.pop(0)[0])
