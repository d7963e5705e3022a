# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what happens in one run, as it happens: for the reader of a scorecard."""

from __future__ import annotations

from mwatch.engine.engine import Assessment
from sim.outcome import Outcome
from sim.plan import Plan
from sim.score import describe
from sim.watch import Watch
from sim.world import EPOCH


class Teller:
    def __init__(self) -> None:
        self._phase: tuple[object, ...] = ()
        self._incidents = 0
        self._findings: set[tuple[str, str]] = set()
        self._decision: tuple[object, ...] = ()

    def __call__(self, watch: Watch, assessment: Assessment) -> None:
        stage = watch.stage
        now = f"{stage.now - EPOCH:8.1f}"
        phase = (stage.attempt, stage.phase, stage.is_over)
        if phase != self._phase:
            self._phase = phase
            job = watch.engine.job.attempt
            print(f"{now}  world: attempt {stage.attempt} {stage.phase} iteration {stage.iteration}"
                  f"{' (over)' if stage.is_over else ''}; engine: attempt {job.number}"
                  f" {job.phase} {job.iteration}")  # fmt: skip
        for incident in stage.incidents[self._incidents :]:
            print(f"{now}  FAULT at {incident.at - EPOCH:.1f}: {incident.fault}")
        self._incidents = len(stage.incidents)
        self._tell_findings(now, assessment)

    def _tell_findings(self, now: str, assessment: Assessment) -> None:
        found = {(each.detector, each.cause.value): each for each in assessment.findings}
        for key in sorted(found.keys() - self._findings):
            each = found[key]
            print(f"{now}    + {each.detector} {each.cause} {each.severity}: {each.summary}"
                  f" (culprit {each.culprit}, cannot_heal {each.cannot_heal})")  # fmt: skip
        for detector, cause in sorted(self._findings - found.keys()):
            print(f"{now}    - {detector} {cause}")
        self._findings = set(found)
        decision = assessment.decision
        key2 = (decision.action, decision.cause, decision.resume_from)
        if key2 != self._decision:
            self._decision = key2
            at = "" if decision.act_at is None else f" at {decision.act_at - EPOCH:.1f}"
            told = f"{decision.action}{at} ({decision.cause}) from {decision.resume_from}"
            print(f"{now}    = {told}: {decision.reason} [{decision.resume_reason}]")


def opening(plan: Plan) -> None:
    shape = plan.shape
    print(f"seed {plan.seed}: {plan.scenario}")
    print(f"  Megatron {shape.release.version}, {shape.world_size} ranks in {shape.pods} pods,"
          f" {shape.precision}, iterations {shape.first} to {shape.total}, step"
          f" {shape.step_seconds:.2f} s, log every {shape.log_interval}, save every"
          f" {shape.save_interval}{' (async)' if shape.is_async else ''}, evaluate every"
          f" {shape.eval_interval}")  # fmt: skip
    print(f"  {plan.eyes}")
    cost = shape.start_seconds + shape.load_seconds + shape.first_step_seconds
    print(f"  acts: {plan.acts}; a restart costs {cost:.0f} s and the lost steps")


def ending(outcome: Outcome) -> None:
    print(f"after {outcome.seconds:.0f} s: {outcome.last_verdict}, restarts {outcome.restarts},"
          f" goodput error {outcome.goodput_error}")  # fmt: skip
    for case in outcome.cases:
        flags = [name for name in ("is_missed", "is_wrong", "blames_wrongly", "is_late")
                 if getattr(case, name)]  # fmt: skip
        print(f"  {describe(outcome, case)} {' '.join(flags)}")
    for name in ("false_kills", "wrong_checkpoints", "wrong_actions", "alarms"):
        for text in getattr(outcome, name):
            print(f"  {name}: {text}")
