# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files, evidence and announcements for the incidents of a watched run.

What an incident is, is defined in `mwatch.engine.incidents`. Each gets one record and one bundle of
evidence here. The record is written anew whenever it changes, so that it is there whatever happens
to the watcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mwatch.engine.engine import Engine
from mwatch.engine.incidents import MAX_INCIDENTS, Incident
from mwatch.evidence.collector import EvidenceCase, EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Severity
from mwatch.model.incident import IncidentRecord, SavedEvidence

_MAX_ANNOUNCEMENTS = 3
_SETTLED_SECONDS = 5.0
"""A record that has not changed for so long is brought off the pod again, with its evidence."""


@dataclass(slots=True)
class TrackedIncident:
    """An incident with what this process keeps of it."""

    incident: Incident
    record: IncidentRecord
    case: EvidenceCase | None = None
    announced: Cause | None = None
    """As what it was announced; None: not yet, or it was announced as over since."""
    announcements: int = 0
    changed_at: float | None = None
    """Since its evidence was brought off the pod, the record has changed: when it last did."""


class IncidentChanges(NamedTuple):
    """What an update brought; the same incident may be announced a few times only."""

    found: list[Incident]
    closed: list[Incident]
    """Over without an action."""
    recorded: list[TrackedIncident]
    """New, or with evidence that was not there before."""


class IncidentTracker:
    def __init__(
        self, files: IncidentFiles, engine: Engine, evidence: EvidenceCollector, *, is_act: bool
    ) -> None:
        self._files = files
        self._engine = engine
        self._evidence = evidence
        self._is_act = is_act
        self._tracked: deque[TrackedIncident] = deque(maxlen=MAX_INCIDENTS)
        self.problems: list[str] = []

    @property
    def tracked(self) -> list[TrackedIncident]:
        """The oldest first."""
        return list(self._tracked)

    def update(self) -> IncidentChanges:
        """To be called after each evaluation."""
        changes = IncidentChanges([], [], [])
        last = self._tracked[-1].incident.number if self._tracked else 0
        for incident in self._engine.incidents:
            if incident.number > last:
                tracked = TrackedIncident(incident, self._record(incident, None))
                self._tracked.append(tracked)
                self._want_evidence(tracked)
                self._write(tracked)
                changes.recorded.append(tracked)
        for tracked in self._changing():
            self._want_evidence(tracked)
            if tracked.record.evidence is None and _kept(tracked.case) is not None:
                changes.recorded.append(tracked)
            self._refresh(tracked)
            self._announce(tracked, changes)
            self._keep_again(tracked)
        return changes

    def collect_evidence_before_restart(self, decision: Decision) -> Path | None:
        """Returns where it was saved. Where nothing is ended, nothing is waited for."""
        tracked = self._of(decision)
        if tracked is None:
            return None
        if tracked.case is None:
            self._ask(tracked)
        if tracked.case is not None and self._is_act:
            self._evidence.wait(tracked.case)
        return self._folder(tracked)

    def acted(self, decision: Decision) -> None:
        tracked = self._of(decision)
        if tracked is not None:
            self._refresh(tracked)

    def _of(self, decision: Decision) -> TrackedIncident | None:
        incident = self._engine.incident_of(decision)
        return next((each for each in self._tracked if each.incident is incident), None)

    def _changing(self) -> Iterator[TrackedIncident]:
        for each in self._tracked:
            incident = each.incident
            is_final = incident.is_over and not incident.awaits_recovery
            is_saved = each.case is None or each.record.evidence is not None
            is_idle = each.announced is None and each.changed_at is None
            if not (is_final and is_saved and is_idle) or each.record.times != incident.times:
                yield each

    def _announce(self, tracked: TrackedIncident, changes: IncidentChanges) -> None:
        incident = tracked.incident
        if incident.closed_at is not None:
            if tracked.announced is not None and incident.acted_at is None:
                changes.closed.append(incident)
            tracked.announced = None
            return
        is_new = incident.cause is not tracked.announced and incident.acted_at is None
        if is_new and tracked.announcements < _MAX_ANNOUNCEMENTS:
            tracked.announced = incident.cause
            tracked.announcements += 1
            changes.found.append(incident)

    def _keep_again(self, tracked: TrackedIncident) -> None:
        now, case, changed_at = self._engine.job.now, tracked.case, tracked.changed_at
        if case is None or changed_at is None or now - changed_at < _SETTLED_SECONDS:
            return
        tracked.changed_at = None
        self._evidence.keep_again(case)

    def _want_evidence(self, tracked: TrackedIncident) -> None:
        """A warning is not worth a dump of all ranks."""
        symptoms = tracked.incident.symptoms
        found = [each.finding.severity for each in symptoms if each.closed_at is None]
        if tracked.case is None and Severity.CRITICAL in found:
            self._ask(tracked)

    def _ask(self, tracked: TrackedIncident) -> None:
        incident = tracked.incident
        tracked.case = self._evidence.want(incident.id, self._folder(tracked), incident.attempt)

    def _folder(self, tracked: TrackedIncident) -> Path:
        return self._files.folder(tracked.incident.id)

    def _record(self, incident: Incident, evidence: SavedEvidence | None) -> IncidentRecord:
        job = self._engine.job
        return incident.record(job.run, world_size=job.layout.world_size, evidence=evidence)

    def _refresh(self, tracked: TrackedIncident) -> None:
        record = self._record(tracked.incident, _kept(tracked.case))
        if record == tracked.record:
            return
        tracked.record = record
        if _is_off_pod(tracked.case):
            tracked.changed_at = self._engine.job.now
        self._write(tracked)

    def _write(self, tracked: TrackedIncident) -> None:
        try:
            self._files.write(tracked.record)
        except OSError as error:
            text = f"incidents cannot be written: {error.strerror or error}"
            if text not in self.problems:
                self.problems.append(text)


def _is_off_pod(case: EvidenceCase | None) -> bool:
    bundle = None if case is None else case.bundle
    stored = None if bundle is None else bundle.stored
    return stored is not None and stored.folder is not None


def _kept(case: EvidenceCase | None) -> SavedEvidence | None:
    bundle = None if case is None else case.bundle
    if bundle is None:
        return None
    stored = bundle.stored
    return SavedEvidence(
        str(bundle.folder) if stored is None or stored.folder is None else stored.folder,
        tuple(each.name for each in bundle.files),
        tuple(f"{each.what}: {each.why}" for each in bundle.missing),
    )
