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
from dataclasses import dataclass
from typing import NamedTuple

from mwatch import detect
from mwatch.decide.decide import decide, enact
from mwatch.model.decision import Action, Decision, Record
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Cause, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Observed
from mwatch.model.settings import Settings
from mwatch.model.timeline import Rollback
from mwatch.state import ledger
from mwatch.state.fold import fold

MAX_INCIDENTS = 256


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
        self.record = Record()
        self.incidents: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        self._open: dict[tuple[int, str, Cause], Incident] = {}

    def tell(self, observed: Observed) -> None:
        fold(self.job, observed)

    def look(self, now: float) -> Assessment:
        job = self.job
        job.now = max(job.now, now)
        findings = detect.run(job, self.settings)
        decision = decide(job, findings, self.record, self.settings)
        self._keep(findings, decision)
        return Assessment(job.now, tuple(findings), decision)

    def enact(self, decision: Decision, at: float) -> None:
        """`decision` was carried out at `at`: the attempt it is about has its one action."""
        if self.record.of_attempt(decision.attempt) is not None:
            return
        job = self.job
        enact(self.record, decision, job, at)
        if decision.quarantine_from is not None:
            first_bad = decision.finding.since_iteration if decision.finding else None
            job.timeline.rollbacks.append(
                Rollback(at, decision.resume_from or 0, first_bad, decision.reason)
            )
            for number, known in job.checkpoints.items():
                if number >= decision.quarantine_from:
                    known.is_abandoned = True
        for incident in self._open.values():
            if incident.attempt == decision.attempt and incident.cause is decision.cause:
                incident.acted_at = at
                incident.decision = decision

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
