# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents of a watched run, from the first finding to the first new iteration after it.

Several detectors may find the same thing, and lose and find it again: what has one cause in one
attempt, without a minute of quiet, is one trouble, with one record and one bundle of evidence. A
silence that turns out to be a death becomes the trouble of that death. The record is written anew
at each turn, so that it is there whatever happens to the watcher.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from mwatch.engine.engine import MAX_INCIDENTS, Engine, Incident
from mwatch.evidence.collector import EvidenceCase, EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Severity
from mwatch.model.incident import (
    IncidentRecord,
    IncidentTimes,
    SavedEvidence,
    describe,
    incident_id,
)

_MAX_KEPT = 256
_MAX_TURNS = 16
_QUIET_SECONDS = 60.0
_MAX_TELLS = 3
_SETTLED_SECONDS = 5.0
"""A record that has not changed for so long is brought off the pod again, with its evidence."""


@dataclass(slots=True)
class OpenIncident:
    """One incident, as it is told to people."""

    record: IncidentRecord
    incidents: deque[Incident] = field(default_factory=lambda: deque(maxlen=_MAX_TURNS))
    """What the engine found of it, the newest last."""
    case: EvidenceCase | None = None
    target: int | None = None
    """The iteration that had been reached: training is past the trouble beyond it."""
    since: float = 0.0
    """When it was found, this time."""
    tells: int = 0
    """How often people were told that it is there."""
    is_told: bool = False
    """They were, and not yet that it is over."""
    is_counted: bool = False
    changed_at: float | None = None
    """Since its evidence was brought off the pod, the record has changed: when it last did."""

    @property
    def lead(self) -> Incident:
        """What was acted on, else what was decided on, else the newest."""
        newest_first = list(reversed(self.incidents))
        return min(newest_first, key=lambda each: (each.acted_at is None, each.decided_at is None))

    @property
    def closed_at(self) -> float | None:
        """None while anybody still finds it."""
        moments = [each.closed_at for each in self.incidents]
        ended = [each for each in moments if each is not None]
        return max(ended) if len(ended) == len(moments) else None

    @property
    def is_recovered(self) -> bool:
        return self.record.times.first_new_iteration is not None

    @property
    def key(self) -> tuple[int, Cause]:
        return self.record.attempt, self.record.cause


class IncidentTracker:
    def __init__(
        self, files: IncidentFiles, engine: Engine, evidence: EvidenceCollector, *, is_act: bool
    ) -> None:
        self._files = files
        self._engine = engine
        self._evidence = evidence
        self._is_act = is_act
        self._troubles: deque[OpenIncident] = deque(maxlen=_MAX_KEPT)
        self.problems: list[str] = []

    @property
    def troubles(self) -> list[OpenIncident]:
        """The oldest first."""
        return list(self._troubles)

    def of(self, incident: Incident) -> OpenIncident | None:
        found = (each for each in reversed(self._troubles) if _holds(each, incident))
        return next(found, None)

    def found(self, incident: Incident) -> OpenIncident | None:
        """Returns what is new to people; None: it is known, or comes and goes all the time."""
        trouble = self._newest((incident.attempt, incident.cause))
        if trouble is not None and self._is_same(trouble, incident):
            if trouble.closed_at is not None:
                trouble.since = incident.detected_at
            trouble.incidents.append(incident)
        else:
            trouble = self._silence_before(incident) or self._new(incident)
        self._want_evidence(trouble)
        if trouble.is_told or trouble.tells >= _MAX_TELLS:
            return None
        trouble.is_told, trouble.tells = True, trouble.tells + 1
        self._refresh(trouble)
        return trouble

    def before_the_kill(self, decision: Decision) -> Path | None:
        """Evidence is saved; returns where. Where nothing is killed nothing is waited for."""
        trouble = self._newest((decision.attempt, decision.cause))
        if trouble is None:
            return None
        if trouble.case is None:
            self._ask(trouble)
        if trouble.case is not None and self._is_act:
            self._evidence.wait(trouble.case)
        return self.folder(trouble)

    def folder(self, trouble: OpenIncident) -> Path:
        return self._files.folder(trouble.record.id)

    def acted(self, decision: Decision) -> None:
        trouble = self._newest((decision.attempt, decision.cause))
        if trouble is not None:
            trouble.target = self._engine.job.attempt.iteration
            self._refresh(trouble)

    def looked(self) -> list[OpenIncident]:
        """Whether training is past a trouble by now; returns those whose evidence has come."""
        come = []
        for trouble in self._troubles:
            has_come = trouble.record.evidence is None and _kept(trouble.case) is not None
            if has_come:
                come.append(trouble)
            is_past = self._is_past(trouble)
            if has_come or is_past:
                self._refresh(trouble, self._engine.job.now if is_past else None)
            self._keep_again(trouble)
        return come

    def _keep_again(self, trouble: OpenIncident) -> None:
        now, case, changed_at = self._engine.job.now, trouble.case, trouble.changed_at
        if case is None or changed_at is None or now - changed_at < _SETTLED_SECONDS:
            return
        trouble.changed_at = None
        self._evidence.keep_again(case)

    def close(self, trouble: OpenIncident) -> bool:
        """Something of it is over; returns whether people are to be told that all of it is."""
        self._refresh(trouble)
        if trouble.closed_at is None or not trouble.is_told:
            return False
        trouble.is_told = False
        return trouble.lead.acted_at is None

    def _is_past(self, trouble: OpenIncident) -> bool:
        attempt = self._engine.job.attempt
        if trouble.is_recovered or attempt.number <= trouble.record.attempt or not attempt.steps:
            return False
        is_acted = trouble.lead.acted_at is not None
        return is_acted and (attempt.iteration or 0) > (trouble.target or 0)

    def _is_same(self, trouble: OpenIncident, incident: Incident) -> bool:
        closed = trouble.closed_at
        return closed is None or incident.detected_at - closed < _QUIET_SECONDS

    def _silence_before(self, incident: Incident) -> OpenIncident | None:
        """The trouble of a silence that the engine now knows to have been the first sign of this:
        it has taken the silence out of its own list."""
        for trouble in reversed(self._troubles):
            if trouble.record.attempt == incident.attempt and self._is_absorbed(trouble):
                trouble.incidents.clear()
                trouble.incidents.append(incident)
                trouble.is_told = False
                return trouble
        return None

    def _is_absorbed(self, trouble: OpenIncident) -> bool:
        known = self._engine.incidents
        if len(known) >= MAX_INCIDENTS:
            return False  # it may only have been pushed out
        return not any(each is one for each in trouble.incidents for one in known)

    def _new(self, incident: Incident) -> OpenIncident:
        taken = {each.record.id for each in self._troubles}
        id = incident_id(incident.detected_at, incident.attempt, incident.cause, taken)
        trouble = OpenIncident(self._describe(id, incident), since=incident.detected_at)
        trouble.incidents.append(incident)
        self._troubles.append(trouble)
        return trouble

    def _newest(self, key: tuple[int, Cause]) -> OpenIncident | None:
        return next((each for each in reversed(self._troubles) if each.key == key), None)

    def _want_evidence(self, trouble: OpenIncident) -> None:
        is_critical = trouble.incidents[-1].finding.severity is Severity.CRITICAL
        if trouble.case is None and is_critical:
            self._ask(trouble)

    def _ask(self, trouble: OpenIncident) -> None:
        folder, attempt = self.folder(trouble), trouble.record.attempt
        trouble.case = self._evidence.want(trouble.record.id, folder, attempt)

    def _describe(self, id: str, incident: Incident) -> IncidentRecord:
        decision = incident.decision
        return describe(
            id, self._engine.job.run, incident.finding, decision,
            attempt=incident.attempt, is_act=self._is_act and incident.acted_at is not None,
        )  # fmt: skip

    def _refresh(self, trouble: OpenIncident, recovered_at: float | None = None) -> None:
        """What the engine knows by now goes into the record."""
        lead, old = trouble.lead, trouble.record
        times = IncidentTimes(
            fault=lead.finding.since_time,
            detected=min(trouble.since, lead.detected_at),
            decided=lead.decided_at,
            acted=lead.acted_at,
            first_new_iteration=old.times.first_new_iteration or recovered_at,
            closed=trouble.closed_at,
        )
        record = self._describe(old.id, lead)
        lost = None
        if lead.acted_at is not None and trouble.target is not None:
            lost = max(0, trouble.target - (record.resume_from or 0))
        world = self._engine.job.layout.world_size
        record = record.with_outcome(times, world_size=world, lost_iterations=lost)
        trouble.record = replace(record, evidence=_kept(trouble.case))
        if trouble.record != old and _is_off_pod(trouble.case):
            trouble.changed_at = self._engine.job.now
        try:
            self._files.write(trouble.record)
        except OSError as error:
            text = f"incidents cannot be written: {error.strerror or error}"
            if text not in self.problems:
                self.problems.append(text)


def _holds(trouble: OpenIncident, incident: Incident) -> bool:
    return any(each is incident for each in trouble.incidents)


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
