# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run from its first second to the moment when nothing more is to be learnt from it."""

from __future__ import annotations

from collections.abc import Callable

from mwatch.engine.engine import Assessment
from mwatch.model.decision import Action
from mwatch.model.goodput import Spent
from mwatch.model.phase import JobPhase
from mwatch.state.goodput import ledger
from sim.judge import Judge
from sim.outcome import Outcome
from sim.plan import Plan
from sim.stage import Incident
from sim.watch import Watch
from sim.world import EPOCH

Story = Callable[[Watch, Assessment], None]
_MOST_SECONDS = 20_000.0
_AFTER_END = 15.0
_AFTER_DEATH = 150.0
_AFTER_WORD = 200.0
"""Seconds that a decision may take to become an action once the fault is known."""
_LONG_PHASE = 7400.0
"""Longer than the longest default deadline."""
_TRAINING_PATIENCE = 900.0
_YOUNG_PATIENCE = 4000.0
"""Of a log that has not yet shown how often it is written, or how long an evaluation takes: longer
than the defaults."""
_DULL_AFTER = 40.0
_QUIET = (JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP)


class Runner:
    def __init__(self, plan: Plan, story: Story | None = None) -> None:
        self.plan = plan
        self.watch = Watch(plan)
        self.judge = Judge(self.watch)
        self._story = story
        self._over_since: float | None = None
        self._changed_at = EPOCH
        self._last: tuple[object, ...] = ()
        self._has_stopped = False

    def run(self) -> Outcome:
        watch, outcome = self.watch, self.judge.outcome
        watch.begin()
        while not self._is_over():
            assessment = watch.tick(self._pace())
            self.judge.see(assessment)
            if self._story is not None:
                self._story(watch, assessment)
            decision = assessment.decision
            if watch.wants_act(decision):
                self.judge.acted(decision)
                watch.act(decision)
                self._has_stopped = decision.action is Action.STOP
            self._decision = decision
        outcome.seconds = watch.stage.now - EPOCH
        outcome.goodput_error = self._goodput_error()
        return outcome

    def _pace(self) -> int:
        """Seconds to the next look: one, unless nothing has changed for long. It is never far after
        an event, because of all that is written in between only the end is seen."""
        stage = self.watch.stage
        state = (stage.phase, stage.iteration, stage.attempt, stage.is_over, stage.crowd)
        if state != self._last:
            self._last, self._changed_at = state, stage.now
        dull = stage.now - self._changed_at
        if dull < _DULL_AFTER:
            return 1
        if stage.phase is JobPhase.TRAINING and dull < 8.0 * self.plan.shape.step_seconds:
            return 1
        quiet = self.watch.world.next_event - stage.now
        return int(min(3 if dull < 300.0 else 10, max(1.0, quiet)))

    def _is_over(self) -> bool:
        stage = self.watch.stage
        if self._has_stopped or stage.now - EPOCH > _MOST_SECONDS:
            return True
        if self.watch.world.is_idle and stage.attempt:
            return self._is_over_dead()
        self._over_since = None
        stuck = self._stuck()
        return stuck is not None and self._has_waited(stuck)

    def _is_over_dead(self) -> bool:
        stage = self.watch.stage
        if self._over_since is None:
            self._over_since = stage.now
        waited = stage.now - self._over_since
        if stage.has_finished and not stage.blinded:  # else nobody sees that it has
            return waited >= _AFTER_END and not self.watch.has_lines_to_come
        decision = self._decision
        if self.plan.acts and decision.action is not Action.NONE and decision.act_at:
            return stage.now > decision.act_at + _AFTER_DEATH
        return waited >= _AFTER_DEATH

    def _stuck(self) -> Incident | None:
        """The incident that holds the job up for good."""
        stage = self.watch.stage
        for incident in reversed(stage.incidents):
            if incident.attempt != stage.attempt or incident.fault.seconds is not None:
                continue
            if incident.fault.kind in ("hang", "hang_all", "lost_pod"):
                return incident
        return None

    def _has_waited(self, incident: Incident) -> bool:
        """Whether it is clear by now what becomes of a hang."""
        stage, decision = self.watch.stage, self._decision
        waited = stage.now - incident.at
        if not self.judge.is_detected(incident):
            in_training = incident.phase is JobPhase.TRAINING
            least = _TRAINING_PATIENCE if self.plan.eyes.probe else _YOUNG_PATIENCE
            patience = max(least, 20 * self.plan.shape.step_seconds)
            return waited > (patience if in_training else _LONG_PHASE)
        if self.plan.acts and decision.action is not Action.NONE:
            return decision.act_at is not None and stage.now > decision.act_at + _AFTER_WORD
        return waited > _AFTER_WORD + (self.judge.detected_after(incident) or 0.0)

    def _goodput_error(self) -> float | None:
        job, stage = self.watch.engine.job, self.watch.stage
        spent = ledger.time_spent(job, stage.now)
        wall = spent.wall_seconds
        if wall <= 0 or stage.blinded or self.plan.shape.flavour:
            return None  # other trainers print neither when steps begin nor how long they take
        booked, done = spent.seconds[Spent.TRAINING], stage.done
        least = done.good_seconds - done.doubtful_seconds
        most = (
            done.good_seconds
            + done.paused_seconds
            + done.unprinted_bad
            + done.like_their_neighbours
        )
        return (booked - min(max(booked, least), most)) / wall


def run(plan: Plan, story: Story | None = None) -> Outcome:
    return Runner(plan, story).run()
