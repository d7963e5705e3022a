# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The core loop: observations in, findings and one decision out.

`replay`, `run`, the sidecar, the controller and the simulator all drive this loop: they `observe`,
`evaluate` about once a second, and `record_action` when an action was carried out (or, when only
observing, would have been). It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mwatch import detect
from mwatch.decide.decide import decide, record_action
from mwatch.decide.policy import RULES, Resume
from mwatch.detect.shared.evidence import Quote, with_quotes
from mwatch.engine.incidents import DEATH, SILENCE, Incident, IncidentLog
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision, DecisionRecord
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import LOG_END, Finding, Severity
from mwatch.model.incident import IncidentRecord
from mwatch.model.job import Job
from mwatch.model.observation import Observed
from mwatch.model.settings import Settings
from mwatch.model.timeline import Quarantine, Rollback
from mwatch.state.fold import fold
from mwatch.state.steady import confirm_signs, fold_steady

if TYPE_CHECKING:
    from mwatch.model.snapshot.snapshot_wire import PodSnapshot

_EXPLAINED = SILENCE | {"blind"}


class Assessment(NamedTuple):
    at: float
    findings: tuple[Finding, ...]
    decision: Decision


class Engine:
    def __init__(
        self,
        run: str,
        catalogue: Mapping[str, CatalogueEntry],
        settings: Settings | None = None,
    ) -> None:
        self.job = Job(run, catalogue)
        self.settings = settings or Settings()
        self.record = DecisionRecord()
        self.quote: Quote | None = None
        """Fills in the texts of iteration lines in evidence; None: they are not known."""
        self._incidents = IncidentLog()
        self._attempt = 0
        self._suspected: tuple[int, Quarantine | None] = (0, None)
        """The attempt of the newest rollback, and the quarantine before that rollback."""

    @property
    def incidents(self) -> deque[Incident]:
        """Oldest first; bounded."""
        return self._incidents.kept

    @property
    def incidents_over(self) -> Mapping[tuple[Cause, Action], int]:
        """Number of incidents that are over, by cause and action: `mwatch_incidents_total`."""
        return self._incidents.over

    @property
    def awaits_progress(self) -> bool:
        """Whether an incident waits for the first iteration beyond all earlier attempts."""
        return self._incidents.awaits_progress

    def incident_of(self, decision: Decision) -> Incident | None:
        return self._incidents.about(decision)

    def recall(self, records: Iterable[IncidentRecord]) -> None:
        """Take over the incidents and actions of an earlier watcher of this run.

        An incident that is found again keeps its identity, and earlier restarts count.
        """
        known = sorted(records, key=lambda each: each.times.acted or 0.0)
        self._incidents.recall(known)
        for each in known:
            if each.times.acted is None or self.record.of_attempt(each.attempt) is not None:
                continue
            lost = each.lost_iterations
            self.record.acts.append(
                Act(
                    at=each.times.acted,
                    attempt=each.attempt,
                    action=each.action,
                    cause=each.cause,
                    fingerprint=each.fingerprint or f"{each.cause}:{each.detector}",
                    resume_from=each.resume_from,
                    iteration=None if lost is None else (each.resume_from or 0) + lost,
                )
            )

    def observe(self, observed: Observed) -> None:
        fold(self.job, observed)
        if self._incidents.awaits_progress:
            self._incidents.progressed(self.job.attempt, observed.at)

    def observe_steady(self, pod: PodSnapshot, received_at: float) -> bool:
        """Observe a pod's ranks and witnesses at once if nothing else is new.

        False: nothing was observed, and the caller has to observe them one by one.
        """
        shift = pod.shift(received_at)
        if not fold_steady(self.job, pod.who.pod, pod.ranks, shift):
            return False
        confirm_signs(self.job, pod.who.pod, pod.signs, shift + pod.signs_later)
        return True

    def evaluate(self, now: float, besides: Sequence[Finding] = ()) -> Assessment:
        """Run the detectors and decide.

        `besides`: findings from elsewhere, such as Kubernetes or the end of a recorded log. A cause
        outside the job explains its silence and replaces that finding; a finding at the end of a
        log also replaces the findings about a death.
        """
        job = self.job
        job.now = max(job.now, now)
        self._close_old()
        found = detect.run(job, self.settings)
        if any(RULES[each.cause].explains_all for each in besides):
            found = [each for each in found if each.detector not in _EXPLAINED]
        if any(each.detector == LOG_END for each in besides):
            found = [each for each in found if each.detector not in _EXPLAINED | DEATH]
        findings = [self._completed(each) for each in (*besides, *found)]
        decision = decide(job, findings, self.record, self.settings)
        self._incidents.update(job, findings, decision)
        return Assessment(job.now, tuple(findings), decision)

    def preview(self, at: float) -> Assessment:
        """Return the assessment at `at` if nothing is observed until then; changes nothing."""
        job = self.job
        before, job.now = job.now, max(job.now, at)
        try:
            findings = [self._completed(each) for each in detect.run(job, self.settings)]
            decision = decide(job, findings, self.record, self.settings)
        finally:
            job.now = before
        return Assessment(at, tuple(findings), decision)

    def record_action(self, decision: Decision, at: float, *, is_carried_out: bool = True) -> None:
        """Record the one action on the attempt of `decision`.

        With `is_carried_out` False, mwatch only observes, and would have acted at `at`.
        """
        if self.record.of_attempt(decision.attempt) is not None:
            return
        job = self.job
        record_action(self.record, decision, job, at)
        if decision.quarantine_from is not None:
            self._suspected = decision.attempt, job.timeline.quarantine
            first_bad = decision.finding.since_iteration if decision.finding else None
            self._give_up(at, decision.quarantine_from - 1, first_bad, decision.reason)
        self._incidents.acted(
            decision, at, is_carried_out=is_carried_out, reached=job.attempt.iteration
        )

    def revert_action(self, act: Act) -> None:
        """Undo the rollback of an action that was not carried out after all."""
        self.record.acts.remove(act)
        self._incidents.reverted(act)
        if act.quarantine_from is None:
            return
        timeline, key = self.job.timeline, (act.at, act.quarantine_from - 1)
        undone = [each for each in timeline.rollbacks if (each.at, each.to_iteration) == key]
        for each in undone:
            timeline.rollbacks.remove(each)
        attempt, suspected = self._suspected
        if attempt == act.attempt and timeline.quarantine is None:
            timeline.quarantine = suspected
        for number, known in self.job.checkpoints.items():
            if any(each.abandons(number, known.made_at) for each in undone):
                known.is_abandoned = timeline.is_abandoned(number, known.made_at)

    def _completed(self, finding: Finding) -> Finding:
        if self.quote is not None and finding.evidence:
            finding = replace(finding, evidence=with_quotes(finding.evidence, self.quote))
        return self._with_memory(finding)

    def _with_memory(self, finding: Finding) -> Finding:
        """Keep the earliest begin of bad numbers, whose detectors see only the newest lines."""
        if RULES[finding.cause].resume is not Resume.BEFORE_BAD:
            return finding
        known = self._incidents.symptom(self.job.attempt.number, finding)
        first = known.finding.since_iteration if known else None
        if known is None or first is None or (finding.since_iteration or first + 1) <= first:
            return finding
        return replace(finding, since_iteration=first, since_time=known.finding.since_time)

    def _close_old(self) -> None:
        """Close what is open of earlier attempts, and distrust their checkpoints if needed."""
        if self._attempt != self.job.attempt.number:
            self._finish_rollback(self.record.of_attempt(self._attempt))
            self._attempt = self.job.attempt.number
        for symptom in self._incidents.end_attempt(self.job):
            self._distrust(symptom.finding)

    def _finish_rollback(self, act: Act | None) -> None:
        """Abandon a save too that ended between the action and the exit of the attempt."""
        if act is not None and act.quarantine_from is not None:
            at, to = self.job.attempt.started_at, act.quarantine_from - 1
            self._give_up(at, to, act.first_bad, "saved while the restart was under way")

    def _distrust(self, finding: Finding) -> None:
        """Abandon the checkpoints since the first bad iteration if the attempt ended with it."""
        bad = finding.since_iteration
        is_bad = RULES[finding.cause].resume is Resume.BEFORE_BAD
        if not is_bad or finding.severity is not Severity.CRITICAL or bad is None:
            return
        self._give_up(self.job.attempt.started_at, bad - 1, bad, finding.summary)

    def _give_up(self, at: float, to: int, first_bad: int | None, reason: str) -> None:
        """Abandon the checkpoints above iteration `to` that were written before `at`."""
        timeline = self.job.timeline
        timeline.roll_back(Rollback(at, to, first_bad, reason))
        for number, known in self.job.checkpoints.items():
            is_lost = timeline.is_abandoned(number, known.made_at)
            known.is_abandoned = known.is_abandoned or is_lost
