# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Was it right to act, and from the right checkpoint? And what did it cost?

A false kill is an action on a job that was well, or that would have come back by itself before
a restart could have brought it back; or a stop of a job that a restart would have fixed.
"""

from __future__ import annotations

from mwatch.model.decision import Action, Decision
from sim.outcome import Outcome
from sim.stage import Incident
from sim.truth import Truth, truth_of
from sim.watch import Watch

_HEALS = frozenset({"stall_heals", "stall_all_heals", "unknown_work"})
_NEWS = 5.0
"""Seconds that news of a step may take to reach the engine."""
_LOOPS = 2
"""Restarts after which a fault that always comes back may be given up."""


class ActJudge:
    def __init__(self, watch: Watch, outcome: Outcome) -> None:
        self._watch = watch
        self._outcome = outcome
        self._regain: tuple[float, int, int] | None = None
        """When a restart was done, the iteration that it must regain, and by which attempt."""
        self._waited: set[int] = set()

    def see(self) -> None:
        stage = self._watch.stage
        world = stage.shape.world_size
        if self._regain is not None:
            since, goal, attempt = self._regain
            if stage.attempt >= attempt and (stage.iteration or 0) >= goal:
                self._outcome.gpu_acting += (stage.now - since) * world
                self._regain = None
        for index, incident in enumerate(stage.incidents):
            if incident.healed_at is not None and index not in self._waited:
                self._waited.add(index)
                self._outcome.gpu_waiting += (incident.healed_at - incident.at) * world

    def judge(self, decision: Decision) -> None:
        stage, outcome = self._watch.stage, self._outcome
        active = self._active()
        outcome.restarts += decision.action is Action.RESTART
        why = self._why_false(decision, active)
        if why is not None:
            text = f"{decision.action} ({decision.cause}): {why}; it said: {decision.reason}"
            outcome.false_kills.append(text)
        elif not self._is_right(decision, active):
            outcome.wrong_actions.append(
                f"{decision.action} for {active[-1].fault.kind}; it said: {decision.reason}"
            )
        if decision.action is Action.RESTART:
            self._judge_checkpoint(decision, active)
            for incident in active:
                if incident.fault.kind in ("hang", "hang_all", "lost_pod"):
                    waited = (stage.now - incident.at) * stage.shape.world_size
                    outcome.gpu_waiting += waited
            if self._regain is None:
                self._regain = (stage.now, stage.iteration or 0, stage.attempt + 1)

    def _active(self) -> list[Incident]:
        """A stall that has just healed counts: until the next step is done nobody can know."""
        stage = self._watch.stage
        unknown = stage.now - 2.0 * stage.shape.step_seconds - _NEWS
        return [
            each
            for each in stage.incidents
            if each.attempt == stage.attempt
            and (each.healed_at is None or each.healed_at >= unknown)
        ]

    def _truth(self, incident: Incident) -> Truth:
        return truth_of(incident, self._watch.plan.shape, self._watch.plan.eyes)

    def _right(self, active: list[Incident]) -> frozenset[Action]:
        return frozenset(action for each in active for action in self._truth(each).actions)

    def _is_right(self, decision: Decision, active: list[Incident]) -> bool:
        if decision.action is Action.STOP:
            return self._may_stop(active)
        return decision.action in self._right(active) or active[-1].fault.kind in _HEALS

    def _why_false(self, decision: Decision, active: list[Incident]) -> str | None:
        stage = self._watch.stage
        if stage.has_finished:
            return "the training had finished"
        if not active:
            return "nothing was wrong"
        incident = active[-1]
        kind = incident.fault.kind
        if kind in _HEALS:
            return self._why_too_early(incident)
        if not stage.is_over and not self._right(active):
            return f"{kind} is no reason to act"
        if kind == "sigterm" and not stage.is_over:
            return "the trainer was saving before its exit"
        if decision.action is Action.STOP and not self._may_stop(active):
            return f"a restart would have fixed {kind}"
        return None

    def _why_too_early(self, incident: Incident) -> str | None:
        cost = self._watch.world.restart_cost()
        seconds = incident.fault.seconds or 0.0
        if seconds >= cost:
            return None
        return f"a stall of {seconds:.0f} s that heals, where a restart costs {cost:.0f} s"

    def _may_stop(self, active: list[Incident]) -> bool:
        stage = self._watch.stage
        if self._outcome.restarts >= self._watch.engine.settings.act.restarts_per_window:
            return True  # a policy of its owner, whatever the cause
        for incident in active:
            if Action.STOP in self._truth(incident).actions:
                return True
            comes_back = incident.fault.attempt is None
            loops = _LOOPS if stage.folder.saved else 1  # each time everything is lost
            if comes_back and self._outcome.restarts >= loops:
                return True
            if incident.fault.kind == "bad_checkpoint" and not self._watch.plan.eyes.folder:
                return True  # nobody can see whether an older one is there
        has_written = bool(stage.folder.saved)
        return has_written and not stage.folder.fit(self._first_bad(active))

    def _first_bad(self, active: list[Incident]) -> int | None:
        bad = [each.iteration for each in active if self._truth(each).rolls_back]
        return min(bad, default=None)

    def _first_covered(self, bad: int | None) -> int | None:
        """The first iteration of the line that tells of a bad one: nobody knows more."""
        interval = self._watch.plan.shape.log_interval
        return None if bad is None else (bad - 1) // interval * interval + 1

    def _judge_checkpoint(self, decision: Decision, active: list[Incident]) -> None:
        folder, chosen = self._watch.stage.folder, self._watch.resume_of(decision)
        before = self._first_bad(active)
        fit = folder.fit(before)
        newest = fit[-1] if fit else None
        why = None
        if chosen is not None:
            why = folder.why_unfit(chosen, before)
        elif known := folder.fit(self._first_covered(before)):
            why = f"from the beginning, though {known[-1]} is fit"
        if why is not None:
            self._outcome.wrong_checkpoints.append(
                f"{chosen} for {decision.cause}: {why}; it said: {decision.resume_reason}"
            )
        elif chosen is not None and newest is not None and chosen < newest:
            self._outcome.older_checkpoints += 1
