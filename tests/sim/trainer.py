# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of the training job, as a generator that yields the seconds it takes.

It prints what Megatron prints, from the ranks that print it, and does what Megatron does: the
first step is slow, the first save is slow, an evaluation is silent until its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from mwatch.model.phase import JobPhase
from sim import lines, wreckage
from sim.ailments import Ailments
from sim.curve import Curve, Weights
from sim.faults import Died, Fault
from sim.meter import Meter
from sim.saver import Saver
from sim.shape import Shape
from sim.stage import Incident, Posture, Stage

Strike = Callable[["Trainer", Fault], Iterator[float]]
_BUSY = Posture("training")


class Trainer:
    def __init__(
        self,
        stage: Stage,
        curve: Curve,
        chance: Random,
        faults: list[Fault],
        strike: Strike,
        *,
        resume_from: int | None,
        is_lost: bool = False,
    ) -> None:
        """`is_lost`: --load finds an empty folder, though there are checkpoints."""
        self.stage = stage
        self.shape: Shape = stage.shape
        self.curve = curve
        self.chance = chance
        self.weights = Weights()
        self.strike = strike
        self._pending = [each for each in faults if each.attempt in (None, stage.attempt)]
        self.ailments = Ailments(
            self, [each for each in self._pending if each.kind in Ailments.KINDS]
        )
        self.saver = Saver(self)
        self.meter = Meter(self.shape)
        self.resume_from = resume_from
        self.is_lost = is_lost
        self.terminate_at: float | None = None
        """SIGTERM has come."""
        self.began_at = stage.now
        self.restarts_left = 0
        """Of torchrun, inside the container."""
        self.relaunches = False
        """torchrun starts the workers once more by itself."""

    def life(self) -> Iterator[float]:
        """Returns when nothing of the attempt is left."""
        stage = self.stage
        stage.phase, stage.iteration, stage.is_over = JobPhase.STARTING, None, False
        stage.odd.clear()
        stage.done.start_attempt()
        try:
            yield from self._start()
            yield from self._train()
        except Died:
            pass
        stage.is_over = True

    def note(self, fault: Fault) -> None:
        """The fault has struck."""
        stage = self.stage
        known = stage.incidents[-1] if stage.incidents else None
        if known is not None and known.fault is fault and known.attempt == stage.attempt:
            return
        iteration = self.weights.iteration + (stage.phase is JobPhase.TRAINING)
        if fault.kind in Ailments.KINDS:
            iteration = max(self.weights.iteration, fault.iteration)
        stage.incidents.append(Incident(fault, stage.now, stage.attempt, stage.phase, iteration))

    def healed(self, fault: Fault) -> None:
        for incident in self.stage.incidents:
            if incident.fault is fault and incident.attempt == self.stage.attempt:
                incident.healed_at = self.stage.now

    def note_pause(self, seconds: float) -> None:
        """Shorter than what counts as a stall (DESIGN 5), it is a long step and no more."""
        if seconds < max(5.0, 3.0 * self.shape.step_seconds):
            self.stage.done.paused_seconds += seconds

    def spend(
        self, seconds: float, phase: JobPhase, crowd: Posture | None = None, part: int = 0
    ) -> Iterator[float]:
        """Time passes in a phase; a fault that is due falls into it."""
        stage = self.stage
        stage.phase = phase
        stage.crowd = crowd or _BUSY
        if self._pending:
            for fault in [each for each in self._pending if self._is_due(each, phase, part)]:
                self._pending.remove(fault)
                offset = seconds * fault.share
                seconds -= offset
                yield offset
                yield from self.strike(self, fault)
                stage.phase, stage.crowd = phase, crowd or _BUSY
        yield seconds

    def _is_due(self, fault: Fault, phase: JobPhase, part: int) -> bool:
        if fault.phase is not phase or fault.kind in Ailments.KINDS:
            return False
        if phase is JobPhase.STARTING:
            return fault.part == part
        return fault.iteration <= self.weights.iteration + (phase is JobPhase.TRAINING)

    def mark(self, text: str) -> None:
        self.stage.say(0, lines.marker(self.stage.shown, self.shape.release, text))

    def _start(self) -> Iterator[float]:
        stage, shape = self.stage, self.shape
        quiet = Posture("starting", uses_gpu=False, collective="none")
        parts = (0.35, 0.25, 0.4)
        yield from self.spend(shape.start_seconds * parts[0], JobPhase.STARTING, quiet, 0)
        stage.say(0, *lines.opening(shape))
        stage.say(0, "> initializing torch distributed ...")
        yield from self.spend(shape.start_seconds * parts[1], JobPhase.STARTING, quiet, 1)
        self.mark("after megatron is initialized")
        if shape.loads:
            yield from self._load()
        self.mark("after model, optimizer, and learning rate scheduler are built")
        stage.say(0, "> building train, validation, and test datasets ...")
        yield from self.spend(shape.start_seconds * parts[2], JobPhase.STARTING, quiet, 2)
        self.mark("after dataloaders are built")
        stage.say(0, "done with setup ...", "training ...")
        self.mark("before the start of training step")

    def _load(self) -> Iterator[float]:
        stage, shape, number = self.stage, self.shape, self.resume_from
        entry = None if number is None or self.is_lost else stage.folder.saved.get(number)
        if entry is None:
            if self.is_lost and stage.folder.fit():
                self.note(Fault("random", JobPhase.LOADING))
            stage.say(0, *lines.no_checkpoint())
            return
        stage.say(0, lines.loading(shape, entry.iteration))
        seconds = shape.load_seconds * self.chance.lognormvariate(0.0, 0.1)
        reading = Posture("loading", uses_gpu=False, burns_cpu=False, collective="none")
        yield from self.spend(seconds, JobPhase.LOADING, reading)
        if entry.is_corrupt or not entry.is_complete:
            stage.folder.failed_loads.add(entry.iteration)
            yield from self.strike(self, Fault("bad_checkpoint", JobPhase.LOADING))
        stage.say(0, lines.loaded(shape, entry.iteration))
        self.weights = entry.weights.copy()

    def _train(self) -> Iterator[float]:
        stage, shape = self.stage, self.shape
        stage.iteration = self.weights.iteration
        first = self.weights.iteration + 1
        while self.weights.iteration < shape.total:
            yield from self.saver.finalize_if_done()
            yield from self._step(is_first=self.weights.iteration + 1 == first)
            iteration = self.weights.iteration
            if shape.eval_interval and iteration % shape.eval_interval == 0:
                yield from self._evaluate(iteration, shape.eval_seconds)
            if shape.save_interval and iteration % shape.save_interval == 0:
                yield from self.saver.save()
            if (reason := self._wants_out(iteration)) is not None:
                yield from self._leave(reason, iteration)
                return
        yield from self._finish()

    def _step(self, *, is_first: bool) -> Iterator[float]:
        stage, shape = self.stage, self.shape
        began = stage.now
        usual, tail = self._step_seconds()
        slow = self.ailments.slowness(self.weights.iteration + 1)
        if self.ailments.is_much_slower:  # lost or worked: both are true of such a step
            stage.done.paused_seconds += usual * (slow - 1.0)
        if is_first:
            compiling = shape.first_step_seconds * self.chance.lognormvariate(0.0, 0.1)
            yield from self.spend(compiling, JobPhase.FIRST_STEP)
            yield usual * slow
        else:
            yield from self.spend(usual * slow, JobPhase.TRAINING)
        result = self.ailments.compute()
        self.meter.add(result, stage.now - began)
        stage.iteration = self.weights.iteration
        done = stage.done
        if not is_first:
            done.steps.append(usual)
        is_sound = not result.is_skipped and math.isfinite(result.loss)
        if is_first and is_sound and self.weights.iteration > done.best:
            done.first_steps.append((len(done.steps), usual))
        doubtful = usual if is_first else tail
        done.add(self.weights.iteration, usual, is_sound=is_sound, doubtful=doubtful)
        report = self.meter.report(self.weights, result)
        if report is not None:
            done.printed(report.loss)
            last = shape.world_size - 1
            if shape.flavour:
                stage.say_step(last, *lines.foreign_line(stage.shown, shape, report))
            else:
                stage.say(last, lines.iteration_line(stage.shown, shape, report))
        self.ailments.after_step()

    def _step_seconds(self) -> tuple[float, float]:
        """Of one step, and how much of that is of the heavy tail."""
        shape = self.shape
        share = shape.batch_at(self.weights.iteration) / shape.batch
        seconds = shape.step_seconds * share * self.chance.lognormvariate(0.0, shape.step_sigma)
        if shape.tail_share and self.chance.random() < shape.tail_share:
            longer = seconds * self.chance.uniform(1.5, shape.tail_factor)
            return longer, longer - seconds
        return seconds, 0.0

    def _evaluate(self, iteration: int, seconds: float, where: str = "") -> Iterator[float]:
        stage, shape = self.stage, self.shape
        last = shape.world_size - 1
        took = seconds * self.chance.lognormvariate(0.0, 0.15)
        evaluating = self.ailments.evaluating()
        began = stage.now
        if where:
            stage.say(0, "Evaluating on 32 samples", "Evaluating iter 1/2")
        yield from self.spend(took, JobPhase.EVALUATING, evaluating)
        spent = (stage.now - began) * 1000.0
        head = "INFO:megatron.core.timers:" if shape.release.has_micros else ""
        stage.say(last, f"{head}(min, max) time across ranks (ms):")
        stage.say(
            last,
            f"    evaluate .......................................: ({spent:.2f}, {spent:.2f})",
        )
        loss = self.ailments.validation(iteration)
        stage.say(last, *lines.validation(iteration, loss, where))

    def _wants_out(self, iteration: int) -> str | None:
        shape = self.shape
        if self.terminate_at is not None and self.stage.now >= self.terminate_at:
            return "after receiving SIGTERM."
        minutes = (self.stage.now - self.began_at) / 60.0
        if shape.exit_minutes is not None and minutes > shape.exit_minutes:
            return f"after {minutes} minutes"
        if shape.exit_interval and iteration % shape.exit_interval == 0:
            return f"at iteration {iteration}"
        return None

    def _leave(self, reason: str, iteration: int) -> Iterator[float]:
        """The trainer saves and says good-bye."""
        shape = self.shape
        if shape.save_interval and iteration % shape.save_interval:
            yield from self.saver.save(must_end=True)
        yield from self.saver.finalize_all()
        self.mark(f"exiting program {reason}")
        yield from self._goodbye()
        self.stage.has_finished = "SIGTERM" not in reason

    def _finish(self) -> Iterator[float]:
        shape, iteration = self.shape, self.weights.iteration
        yield from self.saver.finalize_all()
        self.mark("after training is done")
        if shape.save_interval and iteration % shape.save_interval:
            yield from self.saver.save(must_end=True)
        if shape.eval_interval:
            yield from self._evaluate(iteration, shape.eval_seconds, " on validation set")
        yield from self._goodbye()
        self.stage.has_finished = True

    def _goodbye(self) -> Iterator[float]:
        stage = self.stage
        yield from self.spend(
            self.chance.uniform(1.0, 6.0), JobPhase.STOPPING, Posture("stopping", uses_gpu=False)
        )
        for rank in range(0, self.shape.world_size, self.shape.pod_ranks):
            stage.say(rank, wreckage.destroyed(stage.now, rank))
        stage.crowd = Posture("stopping", writes=False, is_alive=False, uses_gpu=False)
        for pod in range(self.shape.pods):
            stage.end_pod(pod, 0, later=self.chance.uniform(0.2, 3.0))
