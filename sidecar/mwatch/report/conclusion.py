# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decides how each attempt ended and what the verdict on the run is. Nothing else decides this.

`Conclusions` receives every assessment and action, whether the run is watched, replayed or
diagnosed live, so that all commands reach the same conclusion. An attempt that mwatch ended gets
the cause that mwatch ended it for, because mwatch itself caused the kill that follows. Any other
attempt gets the verdict of its last assessment; if that was healthy when the next attempt began, it
gets the launcher's reason, or UNKNOWN if the launcher gave none. The run gets the verdict of its
last attempt. A healthy run that a person interrupts stays healthy. If it had made no progress for a
while before the interrupt, the cause is UNKNOWN, because it may have been stuck.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from mwatch.decide.decide import decide
from mwatch.decide.verdict import verdict
from mwatch.engine.engine import Assessment, Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, DecisionRecord
from mwatch.model.finding import Finding, Verdict
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.report.model import AttemptReport, short
from mwatch_trainer.exits import signal_table

MAX_ATTEMPTS = 256
_STILL_SECONDS, _STILL_STEPS = 20.0, 10
"""Without progress for the longer of 20 s and 10 usual steps, an interrupted run may have been
stuck: a person may have interrupted it for that reason."""
_SILENT_END = "ended without an error message or an exit code"


class RunConclusion(NamedTuple):
    """The conclusion on the run: the verdict and decision of its last attempt."""

    verdict: Verdict
    decision: Decision
    acted_at: float | None
    """When mwatch acted, or would have acted in observe mode; None if it did not."""
    findings: tuple[Finding, ...]


_NOTHING_SEEN = RunConclusion(
    Verdict(Cause.BLIND, "no data yet", confidence=0.0),
    Decision(Action.NONE, Cause.BLIND, 0, "no data yet"),
    None,
    (),
)


def _interrupted(job: Job) -> tuple[Cause, str]:
    """Return cause and summary of a run without a finding that a person interrupted."""
    attempt = job.attempt
    text = "interrupted by a person"
    if attempt.iteration is not None:
        text += f" after iteration {attempt.iteration}"
    seconds = job.now - attempt.last_progress
    if attempt.phase is JobPhase.TRAINING:
        usual = job.calibration.usual_step() or 0.0
        if seconds >= max(_STILL_SECONDS, _STILL_STEPS * usual):
            still = f"{text}, {seconds:.0f} s after its last progress: it may have been stuck"
            return Cause.UNKNOWN, still
    elif attempt.phase in (JobPhase.SAVING, JobPhase.EVALUATING):
        text += f", {attempt.phase.value} for {seconds:.0f} s"
    return Cause.HEALTHY, f"{text}; no fault was seen"


class _Look(NamedTuple):
    verdict: Verdict
    assessment: Assessment


class Conclusions:
    def __init__(self, engine: Engine, *, is_act: bool) -> None:
        """`is_act`: mwatch carries out its actions instead of only proposing them."""
        self._engine = engine
        self.is_act = is_act
        self._looks: dict[int, _Look] = {}
        """By attempt: the last assessment, or in act mode the one that mwatch acted on."""
        self.actions: dict[int, tuple[Decision, float]] = {}
        """By attempt: the action taken or proposed, and its time."""

    def assessed(self, assessment: Assessment) -> None:
        number = assessment.decision.attempt
        if not (self.is_act and number in self.actions):
            self._keep(number, assessment)

    def enacted(self, decision: Decision, at: float) -> None:
        known = self._looks.get(decision.attempt)
        findings = known.assessment.findings if known else ()
        self.actions[decision.attempt] = decision, at
        drop_old(self.actions)
        if self.is_act:
            self._keep(decision.attempt, Assessment(at, findings, decision))

    def _keep(self, number: int, assessment: Assessment) -> None:
        found = verdict(self._engine.job, assessment.findings, assessment.decision)
        self._looks[number] = _Look(found, assessment)
        drop_old(self._looks)

    def run(
        self, ended: Assessment | None = None, *, is_interrupted: bool = False
    ) -> RunConclusion:
        """`ended`: the last assessment of a recording, which has more data than a live run had."""
        job = self._engine.job
        if ended is None:
            look = self._looks.get(job.attempt.number)
            if look is None and not job.has_started:
                return _NOTHING_SEEN
            ended = look.assessment if look else self._engine.preview(job.now)
        decision, acted_at = self._standing_decision(ended)
        found = verdict(job, ended.findings, decision)
        if is_interrupted and found.cause is Cause.HEALTHY:
            cause, text = _interrupted(job)
            found = replace(found, cause=cause, summary=text)
            decision = replace(decision, cause=cause, reason=text)
        return RunConclusion(found, decision, acted_at, ended.findings)

    def _standing_decision(self, ended: Assessment) -> tuple[Decision, float | None]:
        """Return the action taken (or proposed) on the last attempt, if its reason still holds."""
        engine, job = self._engine, self._engine.job
        number = job.attempt.number
        done = self.actions.get(number)
        if done is None:
            return ended.decision, None
        taken, at = done
        if self.is_act:
            return taken, at
        others = deque(act for act in engine.record.acts if act.attempt != number)
        afresh = decide(job, ended.findings, DecisionRecord(others), engine.settings)
        lead = taken.finding and (taken.finding.detector, taken.cause)
        newest = next(
            (each for each in ended.findings if (each.detector, each.cause) == lead), None
        )
        if newest is None and afresh.cause is not taken.cause:
            return afresh, None
        if job.sees(Source.CHECKPOINTS) and afresh.action is not Action.NONE:
            return afresh, at  # the folder is a better source of what can be loaded
        return replace(taken, finding=newest or taken.finding), at

    def last_attempt(self, concluded: RunConclusion) -> AttemptReport:
        cause, summary = concluded.verdict.cause, concluded.verdict.summary
        attempt, decision = self._engine.job.attempt, concluded.decision
        taken = self.actions.get(attempt.number)
        own = taken[0] if taken and decision.is_advice else decision
        return _report(attempt, cause, summary, own)

    def past_attempt(self, attempt: Attempt) -> AttemptReport:
        look, taken = self._looks.get(attempt.number), self.actions.get(attempt.number)
        if look is None or look.verdict.cause is Cause.HEALTHY:
            by_launcher = _reported_by_launcher(attempt)
            return _report(attempt, *(by_launcher or (Cause.UNKNOWN, _SILENT_END)), None)
        decision = taken[0] if taken else look.assessment.decision
        return _report(attempt, look.verdict.cause, look.verdict.summary, decision)


def _reported_by_launcher(attempt: Attempt) -> tuple[Cause, str] | None:
    """Return the reason that torchrun prints in the line that starts the next attempt."""
    last = attempt.errors[-1].error if attempt.errors else None
    if last is None or last.kind != "restart" or last.exit_code is None:
        return None
    known = signal_table.BY_NAME.get(last.signal or "")
    is_crash = known is None or known.meaning == signal_table.CRASHED
    cause = Cause.CRASH if is_crash else Cause.KILLED
    how = last.signal or f"exit code {last.exit_code}"
    return cause, f"torchrun restarted its workers: {how}"


def _report(
    attempt: Attempt, cause: Cause, summary: str, decision: Decision | None
) -> AttemptReport:
    return AttemptReport(
        attempt.number,
        attempt.started_at,
        attempt.ended_at,
        attempt.first_iteration,
        attempt.iteration,
        attempt.resumed_from,
        _recomputed(attempt),
        cause,
        short(summary),
        decision,
    )


def _recomputed(attempt: Attempt) -> int:
    first, last, before = attempt.first_iteration, attempt.iteration, attempt.best_before
    if first is None or last is None or before is None:
        return 0
    return max(0, min(last, before) - first + 1)


def drop_old(kept: dict[int, Any]) -> None:
    while len(kept) > MAX_ATTEMPTS:
        del kept[next(iter(kept))]
