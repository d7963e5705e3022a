# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a run: all that its report shows, and the recorder that keeps it up to date.

The recorder is told what the engine is told, in `run` as in `replay`, and holds a bounded
amount however long the run is. It does no I/O; `story_json` writes what it gives.

What a job knows at a moment, as parts of its story.

Which phase a run was in, and when, in a bounded number of spans.

A run of weeks saves thousands of times. Where there are too many spans the shortest ones are
given to their neighbours: what is left is what could be seen on a screen anyway.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mwatch.decide.verdict import verdict
from mwatch.engine.engine import Assessment, Incident
from mwatch.engine.run_timeline import Entry, RunTimeline
from mwatch.model.decision import Decision
from mwatch.model.event import Iteration, Validation
from mwatch.model.finding import Cause
from mwatch.model.goodput import GoodputLedger
from mwatch.model.job import Attempt, Job, KnownCheckpoint, Step
from mwatch.model.observation import Observed, Source
from mwatch.model.phase import JobPhase
from mwatch.report import model
from mwatch.report.model import (
    MAX_INCIDENTS,
    AttemptStory,
    CheckpointStory,
    EvidenceFile,
    Happening,
    IncidentStory,
    PhaseSpan,
    ReportClock,
    SightStory,
    SpentStory,
    ValidationStory,
    short,
)
from mwatch.report.series import Bucket, Series

_WHOLE = frozenset({"complete", "unverified"})


def attempt(seen: Attempt, cause: str, summary: str) -> AttemptStory:
    return AttemptStory(
        seen.number,
        seen.started_at,
        seen.ended_at,
        seen.first_iteration,
        seen.iteration,
        seen.resumed_from,
        _recomputed(seen),
        cause,
        summary,
    )


def _recomputed(seen: Attempt) -> int:
    first, last, before = seen.first_iteration, seen.iteration, seen.best_before
    if first is None or last is None or before is None:
        return 0
    return max(0, min(last, before) - first + 1)


def spent(ledger: GoodputLedger) -> tuple[SpentStory, ...]:
    return tuple(
        SpentStory(part.value, seconds, ledger.gpu_seconds[part])
        for part, seconds in ledger.seconds.items()
    )


def checkpoints(job: Job) -> tuple[CheckpointStory, ...]:
    return tuple(
        CheckpointStory(
            number,
            known.saved_at if known.saved_at is not None else known.written_at,
            *_state(known),
        )
        for number, known in sorted(job.checkpoints.items())
    )


def _state(known: KnownCheckpoint) -> tuple[str, str]:
    if known.is_abandoned:
        return "abandoned", "of a line that was rolled back"
    if known.load_failed:
        return "broken", "it could not be loaded"
    if known.stored is not None and known.stored not in _WHOLE:
        return "broken", short(known.stored_reason or known.stored, 300)
    if known.is_saved or known.stored in _WHOLE:
        return "good", ""
    return "unknown", "nobody said that it was saved whole"


def sights(job: Job) -> tuple[SightStory, ...]:
    told = []
    for sight in Source:
        known = job.sights.get(sight)
        if known is None:
            told.append(SightStory(sight.value, False, None, ""))
        else:
            told.append(SightStory(sight.value, known.is_up, known.since, short(known.reason, 300)))
    return tuple(told)


def happenings(entries: Sequence[Entry], mode: str) -> tuple[Happening, ...]:
    """What mwatch really did is not told as what it would have done."""
    told = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        text = short(entry.text, 600)
        if entry.kind == "action" and mode == "act":
            text = text.replace("would have ", "", 1)
        if entry.kind == "save":
            text = f"saved checkpoint {entry.iteration}"
        if entry.count > 1:
            text = f"{entry.count} times, the last at iteration {entry.iteration}: {entry.kind}"
        told.append(Happening(entry.at, entry.kind, text, entry.attempt, entry.iteration))
    return tuple(told)


MAX_SPANS = 1024


class PhaseBand:
    def __init__(self, most: int = MAX_SPANS) -> None:
        self._most = most
        self._closed: list[PhaseSpan] = []
        self._attempt: Attempt | None = None
        self._phase = JobPhase.STARTING
        self._began_at = 0.0
        self._number = 0

    def note(self, attempt: Attempt, at: float) -> None:
        """How the attempt stands at `at`."""
        if attempt is self._attempt:
            if attempt.phase is self._phase:
                return
            since = attempt.phase_since
        else:
            since = attempt.started_at
        since = min(max(since, self._began_at), max(at, self._began_at))
        if self._attempt is not None:
            self._close(since)
        self._attempt, self._phase, self._began_at = attempt, attempt.phase, since

    def spans(self, until: float) -> tuple[PhaseSpan, ...]:
        if self._attempt is None:
            return ()
        spans = list(self._closed)
        if self._phase is not JobPhase.ENDED and until > self._began_at:
            spans.append(self._open(until))
        return tuple(spans)

    def _open(self, until: float) -> PhaseSpan:
        number = self._attempt.number if self._attempt else 0
        return PhaseSpan(number, self._phase.value, self._began_at, until)

    def _close(self, until: float) -> None:
        if until <= self._began_at or self._phase is JobPhase.ENDED:
            return
        span = self._open(until)
        last = self._closed[-1] if self._closed else None
        if last and (last.attempt, last.phase, last.ended_at) == (
            span.attempt, span.phase, span.began_at,
        ):  # fmt: skip
            self._closed[-1] = replace(last, ended_at=until)
        else:
            self._closed.append(span)
        if len(self._closed) > self._most:
            self._closed = fewer(self._closed, self._most // 2)


def fewer(spans: list[PhaseSpan], most: int) -> list[PhaseSpan]:
    """About the `most` longest; each grows over the shorter ones that followed it."""
    lengths = sorted((each.ended_at - each.began_at for each in spans), reverse=True)
    least = lengths[min(most, len(lengths)) - 1]
    kept: list[PhaseSpan] = []
    for span in spans:
        last = kept[-1] if kept else None
        is_next = last is not None and last.attempt == span.attempt
        is_same = is_next and last is not None and last.phase == span.phase
        if is_next and last and (is_same or span.ended_at - span.began_at < least):
            kept[-1] = replace(last, ended_at=span.ended_at)
        else:
            kept.append(span)
    return kept if len(kept) <= 2 * most else kept[-most:]


MAX_ATTEMPTS = 256
MAX_VALIDATIONS = 512
_KEPT_FIRST = 16
"""Of too many attempts the first few stay, and the newest."""
_SILENT_END = "ended without a message: the cause is unknown"


@dataclass(frozen=True, slots=True)
class RunStory:
    run: str
    mode: str
    """`replay`: of recorded logs; `observe`: watched, not touched; `act`: restarted by mwatch."""
    clock: ReportClock
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
    clock: ReportClock = field(default_factory=ReportClock)
    """Of a run that is watched here, and where none is given: the zone of this machine."""
    _job: Job | None = None
    _series: Series = field(default_factory=Series)
    _band: PhaseBand = field(default_factory=PhaseBand)
    _chronicle: RunTimeline = field(default_factory=RunTimeline)
    _validations: list[ValidationStory] = field(default_factory=list)
    _attempts: dict[int, AttemptStory] = field(default_factory=dict)
    _endings: dict[int, _Ending] = field(default_factory=dict)
    _incidents: dict[tuple[object, ...], Incident] = field(default_factory=dict)
    _files: dict[model.Key, list[EvidenceFile]] = field(default_factory=dict)
    _to_regain: dict[int, int] = field(default_factory=dict)
    """By attempt: the iteration that a later one must reach to have made good what was lost."""
    _recovered: dict[int, float] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _last: Assessment | None = None
    _step: Step | None = None
    _number: int | None = None
    _left_out: int = 0

    def __post_init__(self) -> None:
        if self.mode != "replay" and self.clock == ReportClock():
            here = time.localtime()
            self.clock = ReportClock(zone=here.tm_zone, offset_seconds=float(here.tm_gmtoff))

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
        known = self._files.setdefault(model.key_of(incident), [])
        known += [each for each in files if each not in known]
        del known[model.MAX_FILES :]

    def noted(self, text: str) -> None:
        """Something that could not be seen or done, for people."""
        self._notes.setdefault(short(text))
        while len(self._notes) > 64:
            del self._notes[next(iter(self._notes))]

    def story(self, now: float | None = None, *, is_over: bool = False) -> RunStory:
        """Until `now`, or the last thing that was told."""
        job = self._job
        if job is None:
            return self._nothing(is_over)
        until = max(job.now, job.now if now is None or is_over else now)
        self._see_attempts(job)
        cause, summary = self._verdict(job)
        started = [each.started_at for each in self._attempts.values()]
        ledger = job.ledger
        return RunStory(
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
            spent=spent(ledger),
            checkpoints=checkpoints(job),
            sights=sights(job),
            happenings=happenings(self._chronicle.entries, self.mode),
            left_out=self._left_out + self._chronicle.left_out,
            notes=tuple(self._notes),
        )

    def _nothing(self, is_over: bool) -> RunStory:
        return RunStory(
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
        return model.tell(
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
            self._attempts[each.number] = attempt(each, *said)
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
