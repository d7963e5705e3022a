# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The core, wired: observations in, findings and one decision out.

`replay`, `run`, the sidecar, the controller and the simulator all drive this one loop: they
`tell` it what was seen, `look` about once a second, and `enact` when an action was carried out
(or, when only observing, would have been). It does no I/O and reads no clock itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mwatch import detect
from mwatch.decide.decide import decide, enact
from mwatch.decide.policy import RULES, Resume
from mwatch.model.decision import Act, Action, Decision, DecisionRecord
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Cause, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Observed
from mwatch.model.settings import Settings
from mwatch.model.timeline import Quarantine, Rollback
from mwatch.state.fold import fold
from mwatch.state.goodput import ledger

MAX_INCIDENTS = 256
_DEATH = frozenset({"crashed", "finished_early"})
_SILENCE = frozenset({"stalled", "rank_silent"})
_EXPLAINED = _SILENCE | {"blind"}


class Assessment(NamedTuple):
    at: float
    findings: tuple[Finding, ...]
    decision: Decision


@dataclass(slots=True)
class Incident:
    """One thing that went wrong in one attempt, from its first finding to its end."""

    attempt: int
    cause: Cause
    finding: Finding
    """The newest word of the detector that spoke first."""
    detected_at: float
    decision: Decision | None = None
    decided_at: float | None = None
    acted_at: float | None = None
    closed_at: float | None = None
    """It went away by itself, or the attempt ended."""


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
        self.incidents: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        self._open: dict[tuple[int, str, Cause], Incident] = {}
        self._attempt = 0
        self._suspected: tuple[int, Quarantine | None] = (0, None)
        """What was suspected before the newest rollback, and of which attempt that was."""

    def observe(self, observed: Observed) -> None:
        fold(self.job, observed)

    def evaluate(self, now: float, besides: Sequence[Finding] = ()) -> Assessment:
        """`besides`: what is known otherwise, such as by Kubernetes. A cause outside the job
        explains its silence, and takes the place of it."""
        job = self.job
        job.now = max(job.now, now)
        self._close_old()
        found = detect.run(job, self.settings)
        if any(RULES[each.cause].explains_all for each in besides):
            found = [each for each in found if each.detector not in _EXPLAINED]
        findings = [self._with_memory(each) for each in (*besides, *found)]
        decision = decide(job, findings, self.record, self.settings)
        self._keep(findings, decision)
        return Assessment(job.now, tuple(findings), decision)

    def preview(self, at: float) -> Assessment:
        """What a look at `at` would say, if nothing came until then; changes nothing."""
        job = self.job
        before, job.now = job.now, max(job.now, at)
        try:
            findings = [self._with_memory(each) for each in detect.run(job, self.settings)]
            decision = decide(job, findings, self.record, self.settings)
        finally:
            job.now = before
        return Assessment(at, tuple(findings), decision)

    def record_action(self, decision: Decision, at: float) -> None:
        """`decision` was carried out at `at`: the attempt it is about has its one action."""
        if self.record.of_attempt(decision.attempt) is not None:
            return
        job = self.job
        enact(self.record, decision, job, at)
        if decision.quarantine_from is not None:
            self._suspected = decision.attempt, job.timeline.quarantine
            first_bad = decision.finding.since_iteration if decision.finding else None
            self._give_up(at, decision.quarantine_from - 1, first_bad, decision.reason)
        for incident in self._open.values():
            if incident.attempt == decision.attempt and incident.cause is decision.cause:
                incident.acted_at = at
                incident.decision = decision

    def revert_action(self, act: Act) -> None:
        """It was not carried out after all: what it gave up is as good as it was before."""
        self.record.acts.remove(act)
        for incident in self.incidents:
            if incident.attempt == act.attempt and incident.acted_at == act.at:
                incident.acted_at = None
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

    def _with_memory(self, finding: Finding) -> Finding:
        """Of bad numbers a detector sees the newest lines only: what began before, began then."""
        if RULES[finding.cause].resume is not Resume.BEFORE_BAD:
            return finding
        key = (self.job.attempt.number, finding.detector, finding.cause)
        known = self._open.get(key)
        first = known.finding.since_iteration if known else None
        if known is None or first is None or (finding.since_iteration or first + 1) <= first:
            return finding
        return replace(finding, since_iteration=first, since_time=known.finding.since_time)

    def _keep(self, findings: Sequence[Finding], decision: Decision) -> None:
        """Incidents open with a finding, learn what was decided, and close when it is gone."""
        now, attempt = self.job.now, self.job.attempt.number
        seen = set()
        for finding in findings:
            if finding.severity is Severity.INFO:
                continue
            key = (attempt, finding.detector, finding.cause)
            seen.add(key)
            incident = self._open.get(key)
            if incident is None:
                incident = self._open[key] = Incident(attempt, finding.cause, finding, now)
                self.incidents.append(incident)
            incident.finding = finding
            self._judge(incident, decision)
        for key in [key for key in self._open if key not in seen]:
            self._open.pop(key).closed_at = now
        if self.job.attempt.ended_at is not None:
            self._absorb_silence()

    def _absorb_silence(self) -> None:
        """The silence before a death was its first sign: one thing, and found then."""
        deaths = [each for each in self._open.values() if each.finding.detector in _DEATH]
        if not deaths:
            return
        first, since = deaths[0], self.job.attempt.progress_at
        absorbed = [
            each
            for each in self.incidents
            if each.attempt == first.attempt
            and each.finding.detector in _SILENCE
            and each.decided_at is None
            and each.detected_at >= since
        ]
        if absorbed:
            first.detected_at = min(first.detected_at, *(each.detected_at for each in absorbed))
            kept = [each for each in self.incidents if not any(each is one for one in absorbed)]
            self.incidents = deque(kept, maxlen=MAX_INCIDENTS)

    def _close_old(self) -> None:
        """Nothing open survives an attempt."""
        if self._attempt != self.job.attempt.number:
            self._finish_rollback(self.record.of_attempt(self._attempt))
            self._attempt = self.job.attempt.number
        for key in [key for key in self._open if key[0] != self.job.attempt.number]:
            incident = self._open.pop(key)
            incident.closed_at = self.job.attempt.started_at
            self._distrust(incident)

    def _finish_rollback(self, act: Act | None) -> None:
        """A save that was under way may have ended between the action and the last breath."""
        if act is not None and act.quarantine_from is not None:
            at, to = self.job.attempt.started_at, act.quarantine_from - 1
            self._give_up(at, to, act.first_bad, "saved while the restart was under way")

    def _distrust(self, incident: Incident) -> None:
        """The attempt ended with bad numbers: what it saved since they went bad is poisoned."""
        finding = incident.finding
        bad = finding.since_iteration
        is_bad = RULES[incident.cause].resume is Resume.BEFORE_BAD
        if not is_bad or finding.severity is not Severity.CRITICAL or bad is None:
            return
        self._give_up(self.job.attempt.started_at, bad - 1, bad, finding.summary)

    def _give_up(self, at: float, to: int, first_bad: int | None, reason: str) -> None:
        """What was written above iteration `to` before `at` is of a line nobody continues."""
        timeline = self.job.timeline
        timeline.roll_back(Rollback(at, to, first_bad, reason))
        for number, known in self.job.checkpoints.items():
            is_lost = timeline.is_abandoned(number, known.made_at)
            known.is_abandoned = known.is_abandoned or is_lost

    def _judge(self, incident: Incident, decision: Decision) -> None:
        finding = decision.finding
        if finding is None or finding.detector != incident.finding.detector:
            return
        if decision.action is not Action.NONE and incident.decided_at is None:
            incident.decided_at = self.job.now
        if incident.acted_at is None:
            incident.decision = decision
        if incident.cause is Cause.HANG:
            ledger.stall_judged(
                self.job, detected_at=incident.detected_at, decided_at=incident.decided_at
            )
