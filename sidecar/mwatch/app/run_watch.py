# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Eyes and memory of a local run: it tells the engine what is seen, and everybody what it thinks.

It starts and ends nothing; `local_run` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mwatch.act.incident_files import IncidentFiles
from mwatch.app.engine import Assessment, Engine, Incident
from mwatch.app.evidence_collector import EvidenceCollector
from mwatch.app.incident_keeper import IncidentKeeper
from mwatch.app.live import Live
from mwatch.app.run_folder import RunFolder
from mwatch.app.run_metrics import RunMetrics
from mwatch.app.run_record import RunRecord
from mwatch.app.run_view import View
from mwatch.app.story_parts import EvidenceFile
from mwatch.model.decision import Action, Decision
from mwatch.model.observation import Observed, Sight, SightChange
from mwatch.model.timeline import Rollback


class RunWatch:
    def __init__(
        self,
        folder: RunFolder,
        engine: Engine,
        live: Live,
        record: RunRecord,
        metrics: RunMetrics,
        view: View,
        *,
        is_act: bool,
    ) -> None:
        self.engine = engine
        self.clock = live.clock
        self.recalled: list[Rollback] = []
        """What lay beside the checkpoints when the run began."""
        self._folder = folder
        self._is_act = is_act
        self._live = live
        self._record = record
        self._metrics = metrics
        self._view = view
        self._evidence = EvidenceCollector(folder.volume, live.stream, self.clock.now)
        files = IncidentFiles(folder.incidents)
        self.keeper = IncidentKeeper(files, engine, self._evidence, is_act=is_act)
        self._open: list[Incident] = []
        self._has_recalled = False
        self._noted: set[str] = set()

    def begin(self) -> None:
        """The command is about to start: from now on silence has a beginning."""
        unseen = SightChange(Sight.CHECKPOINTS, False, "not looked at yet")
        self._tell([Observed(self.clock.now(), self._live.stream, unseen)])

    def look(self) -> Assessment:
        self._tell(self._live.read())
        self._tell(self._evidence.signs())
        self._recall()
        assessment = self.engine.look(self.clock.now())
        self._note_incidents()
        self.keeper.looked()
        self._record.looked(assessment)
        self._metrics.looked(assessment)
        self._view.looked(self.engine.job, assessment)
        self._note_problems()
        return assessment

    def look_closely(self) -> Assessment:
        """Before something is done: with what lies in the save folder at this moment."""
        self._tell(self._live.stored_now())
        return self.look()

    def is_due(self, decision: Decision) -> bool:
        if decision.action is Action.NONE:
            return False
        is_done = self.engine.record.of_attempt(decision.attempt) is not None
        return not is_done and (decision.act_at is None or decision.act_at <= self.clock.now())

    def enacted(self, decision: Decision) -> None:
        now = self.clock.now()
        self.engine.enact(decision, now)
        self._record.enacted(decision, now)
        self.keeper.acted(decision)

    def attempt_ended(self) -> None:
        """The command is gone: its last words, and what it left."""
        self._tell(self._live.rest())
        self._record.attempt_ended()

    def end(self) -> None:
        self._evidence.close()
        for incident in self._open:
            self._close(incident)
        self._note_problems()
        self._record.end()
        self._live.close()

    def _tell(self, seen: Iterable[Observed]) -> None:
        for observed in seen:
            self.engine.tell(observed)
            self._record.told(observed)

    def _recall(self) -> None:
        """Once it is known where the job saves: what it left there in its earlier life."""
        save = self._live.save
        if save is not None and not self._has_recalled:
            self._has_recalled = True
            self.recalled = self._record.recall(save)

    def _note_incidents(self) -> None:
        for incident in self.engine.incidents:
            is_open = any(incident is each for each in self._open)
            if is_open or incident.closed_at is not None or self._is_our_doing(incident):
                continue
            self._open.append(incident)
            if self.keeper.found(incident) is not None:
                self._view.found(incident)
        for incident in [each for each in self._open if each.closed_at is not None]:
            self._open.remove(incident)
            self._close(incident)
            self._metrics.closed(incident)
            if incident.acted_at is None:
                self._view.closed(incident)

    def _is_our_doing(self, incident: Incident) -> bool:
        """What is found after an action is its echo: a killed run looks killed."""
        act = self.engine.record.of_attempt(incident.attempt)
        return self._is_act and act is not None and incident.detected_at >= act.at

    def _close(self, incident: Incident) -> None:
        self.keeper.close(incident)
        trouble = self.keeper.of(incident)
        kept = trouble.record.evidence if trouble is not None else None
        names = kept.files if kept is not None and trouble is not None else ()
        root = Path(kept.folder) if kept is not None else self._folder.path
        files = [EvidenceFile(_shown(root / name, self._folder.path)) for name in names]
        self._record.incident(incident, files)

    def _note_problems(self) -> None:
        for text in (*self._record.problems, *self.keeper.problems):
            if text not in self._noted:
                self._noted.add(text)
                self._record.noted(text)
                self._view.noted(text)


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
