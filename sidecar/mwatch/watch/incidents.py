# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the record and collects the evidence of each incident of a watched run.

`mwatch.engine.incidents` defines what an incident is. A record is rewritten whenever it changes, so
that it is on disk even if the watcher is killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from mwatch import json_codec
from mwatch.engine.engine import Engine
from mwatch.engine.incidents import MAX_INCIDENTS, Incident
from mwatch.evidence.bundle import Content, Missing
from mwatch.evidence.collector import EvidenceCase, EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.decision import Decision
from mwatch.model.finding import Severity
from mwatch.model.incident import IncidentRecord, SavedEvidence
from mwatch.model.reading import Ok
from mwatch.sources.background import BackgroundCall
from mwatch.sources.nccl_ras import NcclRas
from mwatch.watch.collector import VolumeCollector

_MAX_ANNOUNCEMENTS = 3
_RECALL_SECONDS = 2.0
_SETTLED_SECONDS = 5.0
"""A changed record that then stays unchanged this long is copied off the pod again, with its
evidence."""


@dataclass(slots=True)
class TrackedIncident:
    """An incident and the state that this process keeps for it."""

    incident: Incident
    record: IncidentRecord
    case: EvidenceCase | None = None
    announced: Cause | None = None
    """The cause that was announced; None if there was none, or the end was announced since."""
    announcements: int = 0
    changed_at: float | None = None
    """When the record last changed after its evidence was copied off the pod."""
    has_reported_evidence: bool = False
    """Whether an update has already returned the record with its evidence."""


class IncidentChanges(NamedTuple):
    """The result of an update. An incident is announced at most a few times."""

    found: list[Incident]
    closed: list[Incident]
    recorded: list[TrackedIncident]


class IncidentTracker:
    def __init__(
        self, files: IncidentFiles, engine: Engine, evidence: EvidenceCollector, *, is_act: bool
    ) -> None:
        self._files = files
        self._engine = engine
        self._evidence = evidence
        self._is_act = is_act
        self._tracked: deque[TrackedIncident] = deque(maxlen=MAX_INCIDENTS)
        self._earlier: dict[str, SavedEvidence] = {}
        """Evidence that an earlier watcher of this run saved, by incident id."""
        self.problems: list[str] = []
        self._recall()

    def _recall(self) -> None:
        """Read the records of earlier watchers of this run, within a time limit."""
        call = BackgroundCall(
            "mwatch-recall", lambda: Ok(self._files.read()), limit_seconds=_RECALL_SECONDS
        )
        call.start()
        call.wait(_RECALL_SECONDS)
        found = call.take()
        if isinstance(found, Ok):
            records = found.value.records
            self._earlier = {each.id: each.evidence for each in records if each.evidence}
            self._engine.recall(records)

    @property
    def tracked(self) -> list[TrackedIncident]:
        return list(self._tracked)

    def update(self) -> IncidentChanges:
        """Update records and evidence; called after each evaluation."""
        changes = IncidentChanges([], [], [])
        last = self._tracked[-1].incident.number if self._tracked else 0
        for incident in self._engine.incidents:
            if incident.number > last:
                evidence = self._earlier.get(incident.id)
                tracked = TrackedIncident(incident, self._record(incident, evidence))
                tracked.has_reported_evidence = evidence is not None
                self._tracked.append(tracked)
                self._want_evidence(tracked)
                self._write(tracked)
                changes.recorded.append(tracked)
        for tracked in self._changing():
            self._want_evidence(tracked)
            self._refresh(tracked)
            if tracked.record.evidence is not None and not tracked.has_reported_evidence:
                tracked.has_reported_evidence = True
                changes.recorded.append(tracked)
            self._announce(tracked, changes)
            self._keep_again(tracked)
        return changes

    def collect_evidence_before_restart(self, decision: Decision) -> Path | None:
        """Return the evidence folder; wait for the evidence only if the restart is carried out."""
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
            is_saved = each.case is None or each.has_reported_evidence
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
        """Request evidence if it is critical: a warning does not justify a dump of all ranks."""
        symptoms = tracked.incident.symptoms
        found = [each.finding.severity for each in symptoms if each.closed_at is None]
        is_saved = tracked.incident.id in self._earlier
        if tracked.case is None and not is_saved and Severity.CRITICAL in found:
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
        kept = _kept(tracked.case) or self._earlier.get(tracked.incident.id)
        record = self._record(tracked.incident, kept)
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
            text = f"cannot write incidents: {error.strerror or error}"
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


_ASK_SECONDS = 6.0
_BETWEEN_SECONDS = 2.0


class EvidenceExtras:
    """Adds to a bundle the state seen by this process, and two answers of NCCL's RAS service.

    It takes two answers, some seconds apart, to show that the counts stand still.
    """

    def __init__(
        self,
        live: VolumeCollector,
        snapshot: Callable[[], bytes] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`snapshot`: returns the page that a controller would get now."""
        self._live = live
        self._snapshot = snapshot
        self._sleep = sleep

    def __call__(self) -> Iterator[Content | Missing]:
        """Yield the content. Takes seconds, and is called in the thread of the bundle."""
        if self._snapshot is not None:
            yield Content("snapshot.json", self._snapshot())
        gpus = self._live.gpus
        if gpus:
            yield Content("gpus-seen.json", msgspec.json.format(json_codec.encode(gpus)))
        else:
            yield Missing("gpus-seen.json", "no GPU can be read")
        if self._live.more is not None:
            yield from self._ras_twice(self._live.more.ras)

    def _ras_twice(self, ras: NcclRas) -> Iterator[Content | Missing]:
        for number in (1, 2):
            name = f"ras-{number}.txt"
            try:
                yield Content(name, ras.raw(_ASK_SECONDS).encode("utf-8", "replace"))
            except OSError as error:
                yield Missing(name, str(error)[:200])
                if number == 1:
                    yield Missing("ras-2.txt", "see ras-1.txt")
                return
            if number == 1:
                self._sleep(_BETWEEN_SECONDS)
