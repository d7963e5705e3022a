# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents of a watched run, from the first finding to the first new iteration after it.

Several detectors may find the same thing: what has one cause in one attempt is one incident, with
one record and one bundle of evidence. Its record is written anew at each turn, so that it is
there whatever happens to the watcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mwatch.act.incident_files import IncidentFiles
from mwatch.app.engine import Engine, Incident
from mwatch.app.evidence_collector import Case, EvidenceCollector
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Severity
from mwatch.model.incident import IncidentRecord, Kept, Times, describe, incident_id

_MAX_KEPT = 256
Key = tuple[int, Cause]


@dataclass(slots=True)
class Trouble:
    """One incident, as it is told to people."""

    record: IncidentRecord
    incident: Incident
    case: Case | None = None
    target: int | None = None
    """The iteration that had been reached: training is past the trouble beyond it."""

    @property
    def is_recovered(self) -> bool:
        return self.record.times.first_new_iteration is not None


class IncidentKeeper:
    def __init__(
        self, files: IncidentFiles, engine: Engine, evidence: EvidenceCollector, *, is_act: bool
    ) -> None:
        self._files = files
        self._engine = engine
        self._evidence = evidence
        self._is_act = is_act
        self._troubles: dict[Key, Trouble] = {}
        self.problems: list[str] = []

    @property
    def troubles(self) -> list[Trouble]:
        """The oldest first."""
        return list(self._troubles.values())

    def of(self, incident: Incident) -> Trouble | None:
        return self._troubles.get((incident.attempt, incident.cause))

    def found(self, incident: Incident) -> Trouble | None:
        """Returns what is new to people; None: it is known already."""
        key = (incident.attempt, incident.cause)
        known = self._troubles.get(key)
        if known is not None:
            self._want_evidence(known, incident)
            return None
        taken = {each.record.id for each in self._troubles.values()}
        id = incident_id(incident.detected_at, incident.attempt, incident.cause, taken)
        trouble = Trouble(self._describe(id, incident), incident)
        self._troubles[key] = trouble
        while len(self._troubles) > _MAX_KEPT:
            del self._troubles[next(iter(self._troubles))]
        self._want_evidence(trouble, incident)
        self._write(trouble)
        return trouble

    def before_the_kill(self, decision: Decision) -> Path | None:
        """Evidence is saved; returns where."""
        trouble = self._troubles.get((decision.attempt, decision.cause))
        if trouble is None:
            return None
        if trouble.case is None:
            self._ask(trouble)
        if trouble.case is not None:
            self._evidence.wait(trouble.case)
        return self._files.folder(trouble.record.id)

    def acted(self, decision: Decision) -> None:
        trouble = self._troubles.get((decision.attempt, decision.cause))
        if trouble is not None:
            trouble.target = self._engine.job.attempt.iteration
            self._refresh(trouble)

    def looked(self) -> None:
        """Whether training is past a trouble by now."""
        job = self._engine.job
        reached = job.attempt.iteration
        for trouble in self._troubles.values():
            is_later = job.attempt.number > trouble.record.attempt
            if trouble.is_recovered or trouble.incident.acted_at is None or not is_later:
                continue
            if reached is not None and reached > (trouble.target or 0) and job.attempt.steps:
                times = replace(trouble.record.times, first_new_iteration=job.now)
                self._refresh(trouble, times)

    def close(self, incident: Incident) -> None:
        trouble = self.of(incident)
        if trouble is not None:
            self._refresh(trouble)

    def _want_evidence(self, trouble: Trouble, incident: Incident) -> None:
        if trouble.case is None and incident.finding.severity is Severity.CRITICAL:
            self._ask(trouble)

    def _ask(self, trouble: Trouble) -> None:
        id = trouble.record.id
        trouble.case = self._evidence.want(id, self._files.folder(id))

    def _describe(self, id: str, incident: Incident) -> IncidentRecord:
        decision = incident.decision
        return describe(
            id, self._engine.job.run, incident.finding, decision,
            attempt=incident.attempt, is_act=self._is_act and incident.acted_at is not None,
        )  # fmt: skip

    def _refresh(self, trouble: Trouble, times: Times | None = None) -> None:
        """What the engine knows by now goes into the record."""
        incident, old = trouble.incident, trouble.record
        seen = Times(
            fault=incident.finding.since_time,
            detected=incident.detected_at,
            decided=incident.decided_at,
            acted=incident.acted_at,
            first_new_iteration=times.first_new_iteration if times else None,
            closed=incident.closed_at,
        )
        record = self._describe(old.id, incident)
        lost = None
        if incident.acted_at is not None and trouble.target is not None:
            lost = max(0, trouble.target - (record.resume_from or 0))
        world = self._engine.job.layout.world_size
        record = record.with_outcome(seen, world_size=world, lost_iterations=lost)
        trouble.record = replace(record, evidence=_kept(trouble.case))
        self._write(trouble)

    def _write(self, trouble: Trouble) -> None:
        try:
            self._files.write(trouble.record)
        except OSError as error:
            text = f"incidents cannot be written: {error.strerror or error}"
            if text not in self.problems:
                self.problems.append(text)


def _kept(case: Case | None) -> Kept | None:
    bundle = None if case is None else case.bundle
    if bundle is None:
        return None
    return Kept(
        str(bundle.folder),
        tuple(each.name for each in bundle.files),
        tuple(f"{each.what}: {each.why}" for each in bundle.missing),
    )
