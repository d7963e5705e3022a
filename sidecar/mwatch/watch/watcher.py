# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Passes the observations of a run to the engine, and its verdicts to reports, metrics and views.

The watcher never starts or ends a command; only `mwatch.run` does. Reports, metrics and views may
fail without affecting the verdict.

What a job has learned is stored in `timeline.json` and `calibration.json` of its save folder. Both
are read once, as soon as the save folder is known. The wrapper writes the timeline; this module
writes the calibration if mwatch acts. All of it is done in threads, because storage that hangs must
not block the watcher.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import Incident
from mwatch.evidence.bundle import Extra
from mwatch.evidence.collector import EvidenceCollector, OffPod
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.calibration import Calibration
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.job import Job
from mwatch.model.observation import (
    AttemptStart,
    Observed,
    ProcessExit,
    Sign,
    Source,
    SourceStatusChange,
    StoredCheckpoints,
)
from mwatch.model.reading import Failed, Ok, Reading
from mwatch.model.snapshot.pod import TrainerEnd as WrapperEnd
from mwatch.model.timeline import Rollback
from mwatch.runtime.self_monitoring import InternalErrors
from mwatch.sources import checkpoint_dir
from mwatch.sources.background import BackgroundCall
from mwatch.state import calibration as calibration_json
from mwatch.watch.collector import VolumeCollector
from mwatch.watch.incidents import IncidentTracker, TrackedIncident
from mwatch.watch.metrics import Exporters, RunMetrics
from mwatch_trainer import contract
from mwatch_trainer.checkpoint.timeline import FOLDER

if TYPE_CHECKING:
    from mwatch.report.model import EvidenceFile


_CALIBRATION = "calibration.json"
_LIMIT_SECONDS = 30.0
_KEEP_SECONDS = 5.0


class _Found(NamedTuple):
    timeline: checkpoint_dir.SavedTimeline
    calibration: Mapping[str, Any] | None


class SavedState:
    def __init__(self, save: Path) -> None:
        self._save = save
        self._path = save / FOLDER / _CALIBRATION
        self._call: BackgroundCall[_Found] = BackgroundCall(
            "mwatch-memory", self._read, limit_seconds=_LIMIT_SECONDS
        )
        self._call.start()
        self._keeping: threading.Thread | None = None
        self._problems: list[str] = []

    def wait(self, seconds: float) -> None:
        """Wait for the files to be read, before a decision that depends on them."""
        self._call.wait(seconds)

    def recall(self, job: Job) -> list[Rollback] | None:
        """Load what earlier attempts saved into `job` and return their rollbacks; None if the files
        are not read yet, or were already loaded."""
        match self._call.take():
            case Ok(found):
                return self._learn(job, found)
            case Failed(error):
                self._problem(f"{self._save}: cannot read what earlier attempts saved: {error}")
        return None

    def keep(self, job: Job) -> None:
        """Save the calibration; a failure costs only some minutes of learning."""
        if self._keeping is not None and self._keeping.is_alive():
            return
        document = calibration_json.to_json(job.calibration)
        self._keeping = threading.Thread(
            target=self._write, args=(document,), name="mwatch-keep", daemon=True
        )
        self._keeping.start()
        self._keeping.join(_KEEP_SECONDS)
        if self._keeping.is_alive():
            self._problem(f"cannot save the calibration: {self._save} does not answer")

    def problems(self) -> list[str]:
        return list(self._problems)

    def _read(self) -> Reading[_Found]:
        return Ok(_Found(checkpoint_dir.find(str(self._save)), contract.read_json(str(self._path))))

    def _learn(self, job: Job, found: _Found) -> list[Rollback]:
        if found.timeline.problem:
            self._problem(found.timeline.problem)
        if found.calibration is not None:
            _learn(job, calibration_json.from_json(found.calibration))
        known = found.timeline.timeline
        if known is None:
            return []
        for rollback in known.rollbacks:
            job.timeline.roll_back(rollback)
        job.timeline.attempt = max(job.timeline.attempt, known.attempt)
        if job.timeline.quarantine is None:
            job.timeline.quarantine = known.quarantine
        return list(known.rollbacks)

    def _write(self, document: Mapping[str, Any]) -> None:
        try:
            json.dumps(document, allow_nan=False)
            os.makedirs(self._path.parent, exist_ok=True)
            contract.write_json(str(self._path), document)
        except (OSError, ValueError) as error:
            self._problem(f"cannot save the calibration: {error}")

    def _problem(self, text: str) -> None:
        kind = text.rpartition(":")[0]
        if not any(each.startswith(kind) for each in self._problems):
            self._problems.append(text)


def _learn(job: Job, learnt: Calibration) -> None:
    """Merge a saved calibration into `job`; what this attempt has learned takes precedence."""
    if not learnt.key:
        return  # empty
    if not job.calibration.key:
        job.calibration = learnt
        return
    shapes = {**learnt.others, learnt.key: learnt}
    for key, each in shapes.items():
        if key and key != job.calibration.key:
            each.others = {}
            job.calibration.others.setdefault(key, each)


_EARLY = (SourceStatusChange, Sign, StoredCheckpoints)
_MAX_HELD = 256


class StartGate:
    """Holds back observations until the training starts.

    A sidecar starts before the trainer's image is pulled. What it observes until then (a save
    folder, idle GPUs, an absent source) is not the start of an attempt, and the wait is not a slow
    start.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._held: deque[Observed] = deque(maxlen=_MAX_HELD)

    def let_through(self, observations: Iterable[Observed]) -> list[Observed]:
        """Return the observations in order; those held back are dated to the start."""
        new = list(observations)
        if self.has_begun:
            return new
        first = next(filter(_is_beginning, new), None)
        if first is None:
            self._held.extend(new)
            return []
        self.has_begun = True
        held = [each._replace(at=max(each.at, first.at)) for each in self._held]
        self._held.clear()
        return [first, *held, *(each for each in new if each is not first)]


def _is_beginning(observed: Observed) -> bool:
    """Return whether it comes from the trainer; a fault without a line comes from the node."""
    return not isinstance(observed.what, _EARLY) and getattr(observed.what, "line", 1) != 0


_MAX_NOTED = 256


class Places(Protocol):
    @property
    def path(self) -> Path:
        """Paths in reports are relative to this folder."""

    @property
    def volume(self) -> Path: ...

    @property
    def incidents(self) -> Path: ...


class RunEnd(NamedTuple):
    exit_code: int
    summary: str
    is_recovered: bool
    is_interrupted: bool = False


class RunObserver(Protocol):
    """A view of a watched run: a terminal, plain lines, or nothing."""

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        """An attempt has started; `resume_from` is set if mwatch chose the checkpoint."""

    def looked(self, job: Job, assessment: Assessment) -> None:
        """An evaluation has ended; called about twice a second."""

    def found(self, incident: Incident) -> None:
        """An incident was found."""

    def closed(self, incident: Incident) -> None:
        """An incident has ended without an action."""

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        """An action is due. `is_real`: it is carried out; otherwise mwatch only observes."""

    def noted(self, text: str) -> None:
        """There is a message for the user."""

    def printed(self, data: bytes) -> None:
        """The trainer printed `data`; called only if mwatch shows its output."""

    def ended(self, ended: RunEnd) -> None: ...


_MOST_FAILURES = 8


class SafeObserver:
    """Wraps a view so that its failures are ignored.

    If the terminal is closed or the reader of a pipe exits, only the view ends.
    """

    def __init__(self, view: RunObserver) -> None:
        self._view = view
        self._failures = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._show, name)

    def _show(self, name: str, *arguments: Any, **named: Any) -> None:
        if name == "ended":
            self._failures = 0  # always shown: a terminal must be restored
        if self._failures >= _MOST_FAILURES:
            return
        try:
            getattr(self._view, name)(*arguments, **named)
        except OSError:
            self._failures = _MOST_FAILURES  # the terminal or pipe is closed
        except Exception:
            self._failures += 1  # drawing failed


class RunRecorder:
    """Keeps the report of a run, and loads what earlier attempts saved beside the checkpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._saved: SavedState | None = None

    def recall(self, save: Path) -> list[Rollback] | None:
        """Load what earlier attempts saved and return their rollbacks, once; None otherwise."""
        if self._saved is None:
            self._saved = SavedState(save)
        return self._saved.recall(self._engine.job)

    def problems(self) -> list[str]:
        """Problems for the user; may be returned again."""
        return [] if self._saved is None else self._saved.problems()

    def observe(self, observed: Observed) -> None: ...
    def wait_for_memory(self) -> None: ...
    def looked(self, assessment: Assessment) -> None: ...
    def enacted(self, decision: Decision, at: float) -> None: ...
    def incident(self, incident: Incident, files: Sequence[EvidenceFile]) -> None: ...
    def noted(self, text: str) -> None: ...
    def attempt_ended(self) -> None: ...
    def end(self, ended: RunEnd | None = None) -> None: ...


class RunWatcher:
    def __init__(
        self,
        folder: Places,
        engine: Engine,
        live: VolumeCollector,
        record: RunRecorder,
        metrics: RunMetrics,
        view: RunObserver,
        faults: InternalErrors,
        *,
        is_act: bool,
        extra: Extra | None = None,
        off_pod: OffPod | None = None,
        out: Exporters | None = None,
        files: IncidentFiles | None = None,
    ) -> None:
        """`extra`: additional content for each evidence bundle. `off_pod`: copies bundles off the
        pod. `files`: an incident store with other limits than the default."""
        self._out = out
        self.engine = engine
        engine.quote = live.log.printed.text
        self.clock = live.clock
        self.recalled: list[Rollback] = []
        """Rollbacks that earlier attempts saved beside the checkpoints."""
        self._folder = folder
        self._is_act = is_act
        self._live = live
        self._record = record
        self._metrics = metrics
        self._view = view
        self._faults = faults
        self.evidence = EvidenceCollector(
            folder.volume, live.stream, self.clock.now, self.running,
            world_size=lambda: engine.job.layout.world_size, gpus=lambda: live.gpus,
            extra=extra, off_pod=off_pod,
        )  # fmt: skip
        self.files = IncidentFiles(folder.incidents) if files is None else files
        self.keeper = IncidentTracker(self.files, engine, self.evidence, is_act=is_act)
        self._noted: set[str] = set()
        self._first = StartGate()
        self._blind_from = self.clock.now() + engine.settings.hang.blind_after_seconds

    def running(self) -> int:
        """Return the number of the current attempt."""
        return self.engine.job.attempt.number

    def begin(self) -> None:
        """Call when the command is about to start: from then on, silence counts."""
        self._first.has_begun = True
        absent = SourceStatusChange(Source.CHECKPOINTS, False, "not read yet")
        self._observe([Observed(self.clock.now(), self._live.stream, absent)])

    def look(self) -> Assessment:
        self._observe(self._live.read())
        self._observe(self.evidence.signs())
        with self._faults.guard():
            self._recall()
        assessment = self._assess(self.clock.now())
        with self._faults.guard():
            self._note_incidents()
        with self._faults.guard():
            self._metrics.update(assessment)
        with self._faults.guard():
            self._record.looked(assessment)
        if self._out is not None:
            with self._faults.guard():
                self._out.update([each.record for each in self.keeper.tracked])
                self._out.notify(self.keeper.tracked)
        self._view.looked(self.engine.job, assessment)
        self._note_problems()
        return assessment

    def _assess(self, now: float) -> Assessment:
        """Evaluate; a watcher that has just started, and has no data yet, is not blind."""
        if not self._first.has_begun and now < self._blind_from:
            nothing = Decision(Action.NONE, Cause.UNKNOWN, 1, "no data yet")
            return Assessment(now, (), nothing)
        return self.engine.evaluate(now)

    def look_closely(self) -> Assessment:
        """Evaluate with a fresh listing of the save folder, before an action."""
        self._record.wait_for_memory()
        self._observe(self._live.stored_now())
        return self.look()

    def is_due(self, decision: Decision) -> bool:
        if decision.action is Action.NONE:
            return False
        is_done = self.engine.record.of_attempt(decision.attempt) is not None
        return not is_done and (decision.act_at is None or decision.act_at <= self.clock.now())

    @property
    def ended(self) -> WrapperEnd | None:
        """How the newest attempt ended, according to its wrapper."""
        return None if self._live.wrapper is None else self._live.wrapper.exit

    def enacted(self, decision: Decision) -> None:
        now = self.clock.now()
        self.engine.record_action(decision, now, is_carried_out=self._is_act)
        with self._faults.guard():
            self._record.enacted(decision, now)
            self.keeper.acted(decision)

    def attempt_ended(self, exit: ProcessExit | None = None) -> None:
        """Read the rest of an attempt that ended; `exit`: how, if its wrapper did not record it."""
        self._observe(self._live.rest())
        if exit is not None:
            self._observe([Observed(self.clock.now(), self._live.stream, exit)])
        with self._faults.guard():
            self._record.attempt_ended()

    def end(self, ended: RunEnd | None = None, *, is_hurried: bool = False) -> None:
        """`is_hurried`: do not wait for evidence that is still being saved."""
        if not is_hurried:
            self.evidence.close()
        with self._faults.guard():
            self._note_incidents()
            if self._out is not None:
                self._out.notify(self.keeper.tracked)
        self._note_problems()
        with self._faults.guard():
            self._record.end(ended)
        self._live.close()

    def _observe(self, observations: Iterable[Observed]) -> None:
        for observed in self._first.let_through(observations):
            try:
                self.engine.observe(observed)
                self._record.observe(observed)
                if isinstance(observed.what, AttemptStart):
                    self._began(observed.what)
            except Exception as error:
                self._faults.report(error)

    def _began(self, start: AttemptStart) -> None:
        wrapper = self._live.wrapper
        is_chosen = wrapper is not None and self._is_act
        reason = (wrapper.resume_reason or "") if is_chosen and wrapper is not None else ""
        number = start.attempt or self.engine.job.attempt.number
        self._view.began(number, start.resume_from if is_chosen else None, reason)

    def _recall(self) -> None:
        """Load what earlier attempts saved, once the save folder is known."""
        if self._live.save is not None:
            found = self._record.recall(self._live.save)
            self.recalled = self.recalled if found is None else found

    def _note_incidents(self) -> None:
        changes = self.keeper.update()
        for tracked in changes.recorded:
            self._record.incident(tracked.incident, self._files(tracked))
        for incident in changes.found:
            self._view.found(incident)
        for incident in changes.closed:
            self._view.closed(incident)

    def _files(self, tracked: TrackedIncident) -> list[EvidenceFile]:
        kept = tracked.record.evidence
        paths = [] if kept is None else [Path(kept.folder) / name for name in kept.files]
        if not paths:
            return []
        from mwatch.report.model import EvidenceFile  # large and rarely needed

        return [EvidenceFile(_shown(each, self._folder.path)) for each in paths]

    def _note_problems(self) -> None:
        for errors in (self._live.errors, self.evidence.errors):
            while errors:
                self._faults.report(errors.pop())
        out = () if self._out is None else self._out.problems()
        for text in (*self._record.problems(), *self.keeper.problems, *out):
            if text not in self._noted and len(self._noted) < _MAX_NOTED:
                self._noted.add(text)
                self._record.noted(text)
                self._view.noted(text)


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
