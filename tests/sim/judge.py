# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Holds what the engine says, at every look, against what is really the case."""

from __future__ import annotations

from mwatch.engine.engine import Assessment
from mwatch.model.cause import Cause
from mwatch.model.decision import Decision
from mwatch.model.finding import Finding, Severity
from mwatch.model.phase import JobPhase
from mwatch.stats import quantile
from sim.acts import ActJudge
from sim.outcome import Case, Outcome
from sim.stage import Incident
from sim.truth import KINDS, truth_of
from sim.watch import Watch

_WELL = frozenset({Cause.HEALTHY, Cause.FINISHED})
_GRACE = 60.0
"""Seconds after a stall has healed in which a word about it is not false."""
_MAY_END_WELL = frozenset(
    {"stall_heals", "stall_all_heals", "unknown_work", "much_slower", "held", "blind"}
)
_FEW_STEPS = 10
"""Of a younger job nobody knows how long a step takes."""
_PROBE_FLOOR = 5.0
_LOOK = 1.0


class Judge:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        plan = watch.plan
        self.outcome = Outcome(plan.seed, plan.scenario, plan.is_healthy)
        self._cases: dict[int, Case] = {}
        self._before: set[tuple[str, Cause]] = set()
        """Findings of the look before: those are not news of a fault that struck since."""
        self._old: dict[int, set[tuple[str, Cause]]] = {}
        self._alarmed: set[tuple[str, Cause]] = set()
        self._acts = ActJudge(watch, self.outcome)

    def see(self, assessment: Assessment) -> None:
        stage = self._watch.stage
        said = [each for each in assessment.findings if each.severity is not Severity.INFO]
        for index, incident in enumerate(stage.incidents):
            if incident.fault.kind not in KINDS:
                continue
            case = self._cases.get(index) or self._open(index, incident)
            if self._is_open(incident):
                self._update(case, incident, said, assessment, self._old[index])
        if not self._open_incidents():
            self._note_alarms(said)
        self._before = {(each.detector, each.cause) for each in said}
        self.outcome.last_verdict = assessment.decision.cause
        self._acts.see()

    def _open(self, index: int, incident: Incident) -> Case:
        plan = self._watch.plan
        truth = truth_of(incident, plan.shape, plan.eyes)
        fault = incident.fault
        case = Case(fault.kind, fault.variant, incident.phase.value, incident.at, truth.cause,
                    truth.accepted, culprit=fault.rank if truth.has_culprit else None)  # fmt: skip
        case.sees_by = "probe" if plan.eyes.probe else "log"
        if fault.kind in ("hang", "hang_all") and incident.phase is JobPhase.TRAINING:
            case.bound = self._bound()
            case.may_be_acted_on = plan.acts and plan.eyes.has_witness
        self._cases[index] = case
        self._old[index] = set(self._before)
        self.outcome.cases.append(case)
        return case

    def _bound(self) -> float | None:
        """DESIGN 5, plus one look and what the clocks are off.

        None: there is no usual step yet; or, without the probe, an evaluation is due before the
        next line, and is as silent as a hang.
        """
        plan, steps = self._watch.plan, self._watch.stage.done.steps
        shape, eyes = plan.shape, plan.eyes
        if len(steps) < max(_FEW_STEPS, 2 * shape.log_interval):
            return None
        late = 2 * _LOOK + 2 * max(map(abs, eyes.skews), default=0.0)
        if eyes.probe:
            return max(_PROBE_FLOOR, 3.0 * quantile(steps, 0.99)) + late
        if len(steps) < 3 * shape.log_interval or self._evaluates_unseen():
            return None
        late += eyes.delay(shape.pods - 1)
        return max(_PROBE_FLOOR, 2.0 * shape.log_interval * quantile(steps, 0.95)) + late

    def _evaluates_unseen(self) -> bool:
        shape, done = self._watch.plan.shape, self._watch.stage.iteration or 0
        if not shape.eval_interval:
            return False
        next_line = (done // shape.log_interval + 1) * shape.log_interval
        return (done // shape.eval_interval + 1) * shape.eval_interval < next_line

    def _is_open(self, incident: Incident) -> bool:
        stage = self._watch.stage
        if incident.attempt != stage.attempt:
            return False
        return incident.healed_at is None or stage.now <= incident.healed_at + _GRACE

    def _open_incidents(self) -> bool:
        return any(map(self._is_open, self._watch.stage.incidents))

    def _update(
        self,
        case: Case,
        incident: Incident,
        said: list[Finding],
        assessment: Assessment,
        old: set[tuple[str, Cause]],
    ) -> None:
        now = self._watch.stage.now
        if case.action is not None:
            return
        old.intersection_update({(each.detector, each.cause) for each in said})
        for finding in said:
            is_news = (finding.detector, finding.cause) not in old  # or it had gone since then
            if not is_news or finding.cause in _WELL:
                continue
            if case.noticed_after is None:
                case.noticed_after = now - incident.at
            if finding.cause in case.accepted and case.detected_after is None:
                case.detected_after = now - incident.at
        self._hear(case, assessment.decision)

    def _hear(self, case: Case, decision: Decision) -> None:
        """The newest verdict counts, but a true one is not taken back by a mere warning."""
        is_well = decision.cause in _WELL
        is_told = case.detected_after is not None and case.verdict in case.accepted
        if decision.cause not in case.accepted and (is_well or is_told):
            return
        if not is_well or case.kind in _MAY_END_WELL:
            case.verdict = decision.cause
        self._blame(case, decision)

    def _blame(self, case: Case, decision: Decision) -> None:
        """The newest word counts: what is known grows."""
        if decision.finding is not None:
            culprit = decision.finding.culprit
            case.blamed = culprit.rank if culprit is not None else None

    def _note_alarms(self, said: list[Finding]) -> None:
        for finding in said:
            key = (finding.detector, finding.cause)
            if finding.severity is Severity.CRITICAL and key not in self._alarmed:
                self._alarmed.add(key)
                self.outcome.alarms.append(f"{finding.cause}: {finding.summary}")

    def acted(self, decision: Decision) -> None:
        """Before it is carried out."""
        stage = self._watch.stage
        for index, incident in enumerate(stage.incidents):
            case = self._cases.get(index)
            if case is None or not self._is_open(incident) or case.action is not None:
                continue
            case.action = decision.action
            case.acted_after = stage.now - incident.at
            case.verdict = decision.cause
            self._blame(case, decision)
        self._acts.judge(decision)

    def detected_after(self, incident: Incident) -> float | None:
        case = self._cases.get(self._watch.stage.incidents.index(incident))
        return case.detected_after if case is not None else None

    def is_detected(self, incident: Incident) -> bool:
        return self.detected_after(incident) is not None
