# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a run: all that its report shows, and the recorder that keeps it up to date.

The recorder is told what the engine is told, in `run` as in `replay`, and holds a bounded
amount however long the run is. It does no I/O; `story_json` writes what it gives.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mwatch.app import story_incidents, story_state
from mwatch.app.chronicle import Chronicle
from mwatch.app.engine import Assessment, Incident
from mwatch.app.story_incidents import MAX_INCIDENTS
from mwatch.app.story_parts import (
    AttemptStory,
    CheckpointStory,
    Clock,
    EvidenceFile,
    Happening,
    IncidentStory,
    PhaseSpan,
    SightStory,
    SpentStory,
    ValidationStory,
    short,
)
from mwatch.app.story_phases import PhaseBand
from mwatch.app.story_series import Bucket, Series
from mwatch.decide.verdict import verdict
from mwatch.model.decision import Decision
from mwatch.model.event import Iteration, Validation
from mwatch.model.finding import Cause
from mwatch.model.job import Job, Step
from mwatch.model.observation import Observed

MAX_ATTEMPTS = 256
MAX_VALIDATIONS = 512
_KEPT_FIRST = 16
"""Of too many attempts the first few stay, and the newest."""
_SILENT_END = "ended without a word: nothing tells how"


@dataclass(frozen=True, slots=True)
class Story:
    run: str
    mode: str
    """`replay`: of recorded logs; `observe`: watched, not touched; `act`: restarted by mwatch."""
    clock: Clock
    started_at: float | None
    ended_at: float | None
    """The newest moment that is told of."""
    is_over: bool
    """Nothing more will come."""
    cause: str
    """Of the verdict: how things stand at the end."""
    summary: str
    iteration: int | None = None
    total_iterations: int | None = None
    world_size: int | None = None
    command: str = ""
    goodput: float | None = None
    wall_seconds: float = 0.0
    series: tuple[Bucket, ...] = ()
    validations: tuple[ValidationStory, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    attempts: tuple[AttemptStory, ...] = ()
    incidents: tuple[IncidentStory, ...] = ()
    spent: tuple[SpentStory, ...] = ()
    checkpoints: tuple[CheckpointStory, ...] = ()
    sights: tuple[SightStory, ...] = ()
    happenings: tuple[Happening, ...] = ()
    left_out: int = 0
    """Happenings, attempts and incidents that there was no room for."""
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Files that were read."""


@dataclass(slots=True)
class _Ending:
    cause: str
    summary: str
    is_enacted: bool = False


@dataclass(slots=True)
class StoryRecorder:
    """`note` after the engine was told, `assessed` after each look, `enacted` and `incident`
    when there is something; then `story` at any time."""

    run: str
    mode: str = "observe"
    command: str = ""
    clock: Clock = field(default_factory=Clock)
    """Of a run that is watched here, and where none is given: the zone of this machine."""
    _job: Job | None = None
    _series: Series = field(default_factory=Series)
    _band: PhaseBand = field(default_factory=PhaseBand)
    _chronicle: Chronicle = field(default_factory=Chronicle)
    _validations: list[ValidationStory] = field(default_factory=list)
    _attempts: dict[int, AttemptStory] = field(default_factory=dict)
    _endings: dict[int, _Ending] = field(default_factory=dict)
    _incidents: dict[tuple[object, ...], Incident] = field(default_factory=dict)
    _files: dict[story_incidents.Key, list[EvidenceFile]] = field(default_factory=dict)
    _to_regain: dict[int, int] = field(default_factory=dict)
    """By attempt: the iteration that a later one must reach to have made good what was lost."""
    _recovered: dict[int, float] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _last: Assessment | None = None
    _step: Step | None = None
    _number: int | None = None
    _left_out: int = 0

    def __post_init__(self) -> None:
        if self.mode != "replay" and self.clock == Clock():
            here = time.localtime()
            self.clock = Clock(zone=here.tm_zone, offset_seconds=float(here.tm_gmtoff))

    def note(self, job: Job, observed: Observed) -> None:
        """`job` knows of `observed` already."""
        at, _, what = observed
        attempt = job.attempt
        self._job = job
        if attempt.number != self._number:
            self._attempt_began(job)
        self._band.note(attempt, at)
        self._chronicle.note(job, observed)
        if isinstance(what, Iteration):
            newest = attempt.steps[-1] if attempt.steps else None
            if newest is not None and newest is not self._step:
                self._step = newest
                self._series.add(attempt.number, newest)
                if self._to_regain and not self._series.is_bad:
                    self._regain(job, at)
        elif isinstance(what, Validation):
            self._validated(job, at, what)

    def assessed(self, assessment: Assessment) -> None:
        self._last = assessment
        if self._job is None:
            return
        self._band.note(self._job.attempt, assessment.at)
        known = self._endings.get(assessment.decision.attempt)
        if known is None or not known.is_enacted:
            said = verdict(self._job, assessment.findings, assessment.decision)
            ending = _Ending(said.cause.value, short(said.summary))
            self._endings[assessment.decision.attempt] = ending

    def enacted(self, decision: Decision, at: float) -> None:
        """It was done; when only observing, it would have been."""
        self._chronicle.enacted(decision, at)
        summary = decision.finding.summary if decision.finding else decision.reason
        self._endings[decision.attempt] = _Ending(decision.cause.value, short(summary), True)

    def incident(self, incident: Incident, files: Sequence[EvidenceFile] = ()) -> None:
        """May be told again: what has changed in it is seen, and `files` are added."""
        name = (incident.attempt, incident.finding.detector, incident.cause, incident.detected_at)
        self._incidents[name] = incident
        if len(self._incidents) > MAX_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]
            self._left_out += 1
        known = self._files.setdefault(story_incidents.key_of(incident), [])
        known += [each for each in files if each not in known]
        del known[story_incidents.MAX_FILES :]

    def noted(self, text: str) -> None:
        """Something that could not be seen or done, for people."""
        self._notes.setdefault(short(text))
        while len(self._notes) > 64:
            del self._notes[next(iter(self._notes))]

    def story(self, now: float | None = None, *, is_over: bool = False) -> Story:
        """Until `now`, or the last thing that was told."""
        job = self._job
        if job is None:
            return self._nothing(is_over)
        until = max(job.now, job.now if now is None or is_over else now)
        self._see_attempts(job)
        cause, summary = self._verdict(job)
        started = [each.started_at for each in self._attempts.values()]
        ledger = job.ledger
        return Story(
            run=self.run,
            mode=self.mode,
            clock=self.clock,
            started_at=min(started, default=None),
            ended_at=until,
            is_over=is_over,
            cause=cause,
            summary=summary,
            iteration=job.attempt.iteration,
            total_iterations=job.layout.total_iterations or self._chronicle.total_iterations,
            world_size=job.layout.world_size,
            command=short(self.command),
            goodput=ledger.goodput,
            wall_seconds=ledger.wall_seconds,
            series=tuple(self._series.buckets),
            validations=tuple(self._validations),
            phases=self._band.spans(until),
            attempts=tuple(self._attempts.values()),
            incidents=self._told_incidents(job),
            spent=story_state.spent(ledger),
            checkpoints=story_state.checkpoints(job),
            sights=story_state.sights(job),
            happenings=story_state.happenings(self._chronicle.entries, self.mode),
            left_out=self._left_out + self._chronicle.left_out,
            notes=tuple(self._notes),
        )

    def _nothing(self, is_over: bool) -> Story:
        return Story(
            self.run, self.mode, self.clock, None, None, is_over,
            Cause.BLIND.value, "nothing was seen yet",
            command=short(self.command), notes=tuple(self._notes),
        )  # fmt: skip

    def _verdict(self, job: Job) -> tuple[str, str]:
        if self._last is None:
            return Cause.UNKNOWN.value, "nobody has looked yet"
        said = verdict(job, self._last.findings, self._last.decision)
        return said.cause.value, short(said.summary)

    def _told_incidents(self, job: Job) -> tuple[IncidentStory, ...]:
        return story_incidents.tell(
            list(self._incidents.values()), self._attempts, self._recovered, self._files,
            job.catalogue,
        )  # fmt: skip

    def _attempt_began(self, job: Job) -> None:
        ended = next((each for each in reversed(job.past) if each.number == self._number), None)
        if ended is not None and ended.iteration is not None:
            self._to_regain[ended.number] = ended.iteration
        self._number = job.attempt.number
        self._see_attempts(job)

    def _see_attempts(self, job: Job) -> None:
        for each in (*job.past, job.attempt):
            is_last = each is job.attempt
            ending = self._endings.get(each.number)
            said = (Cause.UNKNOWN.value, "") if is_last else (Cause.UNKNOWN.value, _SILENT_END)
            if ending and (is_last or ending.cause != Cause.HEALTHY.value):
                said = ending.cause, ending.summary
            self._attempts[each.number] = story_state.attempt(each, *said)
        while len(self._attempts) > MAX_ATTEMPTS:
            del self._attempts[sorted(self._attempts)[_KEPT_FIRST]]
            self._left_out += 1
        _drop_old(self._endings, MAX_ATTEMPTS)
        _drop_old(self._recovered, MAX_ATTEMPTS)

    def _regain(self, job: Job, at: float) -> None:
        reached = job.attempt.iteration
        if reached is None:
            return
        for number, target in list(self._to_regain.items()):
            if number < job.attempt.number and reached >= target:
                self._recovered[number] = at
                del self._to_regain[number]
        _drop_old(self._to_regain, MAX_ATTEMPTS)

    def _validated(self, job: Job, at: float, said: Validation) -> None:
        loss = next(iter(said.losses.values()), None)
        where = said.iteration if said.iteration is not None else job.attempt.iteration
        if loss is None or where is None or not math.isfinite(loss):
            return
        self._validations.append(ValidationStory(job.attempt.number, where, at, loss))
        if len(self._validations) > MAX_VALIDATIONS:
            self._validations = self._validations[::2]


def _drop_old(kept: dict[int, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
