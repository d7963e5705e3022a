# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records a watched, replayed or live-diagnosed run, and builds its report at any time.

The recorder receives the same input as the engine, and its memory is bounded however long the run
is. It does no I/O; `story_json` writes the report. The phases of a run are kept in a bounded number
of spans, because a run of weeks saves thousands of times. If there are too many spans, the shortest
are merged into their neighbours: they would not be visible on a screen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mwatch.engine.advice import Entry, RunTimeline, advise
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import MAX_INCIDENTS, Incident
from mwatch.model.decision import Decision
from mwatch.model.event import Iteration, Validation
from mwatch.model.job import Attempt, Job, KnownCheckpoint
from mwatch.model.observation import Observed, Source
from mwatch.model.phase import JobPhase
from mwatch.model.step import PlacedLines, Step
from mwatch.report import model
from mwatch.report.conclusion import MAX_ATTEMPTS, Conclusions, RunConclusion
from mwatch.report.model import (
    AttemptReport,
    CheckpointStory,
    EvidenceFile,
    PhaseSpan,
    ReportClock,
    SourceStory,
    SpentStory,
    TimelineEntry,
    ValidationStory,
    short,
)
from mwatch.report.run_report import RunReport
from mwatch.report.series import MAX_BUCKETS, Series
from mwatch.state.goodput.ledger import time_spent

_WHOLE = frozenset({"complete", "unverified"})
_REPEATED = {"save": "saved {} checkpoints", "validation": "evaluated {} times"}


def checkpoints(job: Job) -> tuple[CheckpointStory, ...]:
    return tuple(
        CheckpointStory(
            number,
            known.saved_at if known.saved_at is not None else known.written_at,
            *_state(known),
            stored=known.stored,
        )
        for number, known in sorted(job.checkpoints.items())
    )


def _state(known: KnownCheckpoint) -> tuple[str, str]:
    if known.is_abandoned:
        return "abandoned", "a rollback went further back"
    if known.load_failed:
        return "broken", "it could not be loaded"
    if known.stored is not None and known.stored not in _WHOLE:
        return "broken", short(known.stored_reason or known.stored, 300)
    if known.is_saved or known.stored in _WHOLE:
        return "good", ""
    return "unknown", "no line reports that the save was completed"


def sources(job: Job) -> tuple[SourceStory, ...]:
    found = []
    for source in Source:
        known = job.sources.get(source)
        found.append(
            SourceStory(source.value, False, None)
            if known is None
            else SourceStory(source.value, known.is_up, known.since, short(known.reason, 300))
        )
    return tuple(found)


def timeline(entries: Sequence[Entry], mode: str) -> tuple[TimelineEntry, ...]:
    return tuple(
        TimelineEntry(
            each.at, each.kind, short(_entry_text(each, mode), 600), each.attempt, each.iteration,
            each.until, each.count, each.file, each.line,
        )
        for each in sorted(entries, key=lambda each: each.at)
    )  # fmt: skip


def _entry_text(entry: Entry, mode: str) -> str:
    if entry.count > 1:
        what = _REPEATED.get(entry.kind, f"{{}} times {entry.kind}").format(entry.count)
        return f"{what}, the last at iteration {entry.iteration}"
    if entry.kind == "save":
        return f"saved checkpoint {entry.iteration}"
    if entry.kind == "validation" and entry.iteration is not None:
        return f"evaluated at iteration {entry.iteration}"
    is_done = entry.kind == "action" and mode == "act"
    return entry.text.replace("would have ", "", 1) if is_done else entry.text


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
        """Record the phase of the attempt at time `at`."""
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
    """Keep about the `most` longest spans; each absorbs the shorter ones that follow it."""
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


MAX_VALIDATIONS = 512
_KEPT_FIRST = 16
"""If there are too many attempts, this many of the first are kept, and the newest."""


@dataclass(slots=True)
class ReportRecorder:
    """Call `note` after each observation of the engine (`stepped` after many lines at once),
    `assessed` after each assessment, `enacted` and `incident` as they happen, and `report` at any
    time."""

    engine: Engine
    mode: str = "observe"
    command: str = ""
    clock: ReportClock = field(default_factory=ReportClock)
    """If left at the default, a watched run gets the time zone of this machine."""
    has_curves: bool = True
    """Also record series and phases, for a page."""
    max_buckets: int = MAX_BUCKETS
    """Maximum number of buckets of the curves."""
    conclusions: Conclusions = field(init=False)
    timeline: RunTimeline = field(default_factory=RunTimeline)
    _has_begun: bool = False
    _series: Series = field(init=False)
    _band: PhaseBand = field(default_factory=PhaseBand)
    _validations: list[ValidationStory] = field(default_factory=list)
    _attempts: dict[int, AttemptReport] = field(default_factory=dict)
    _incidents: dict[int, Incident] = field(default_factory=dict)
    """Incidents by number."""
    _files: dict[int, list[EvidenceFile]] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _step: Step | None = None
    _number: int | None = None
    _left_out: int = 0

    def __post_init__(self) -> None:
        if self.mode != "replay" and self.clock == ReportClock():
            here = time.localtime()
            self.clock = ReportClock(zone=here.tm_zone, offset_seconds=float(here.tm_gmtoff))
        self._series = Series(self.max_buckets)
        self.conclusions = Conclusions(self.engine, is_act=self.mode == "act")

    def use(self, mode: str) -> None:
        """Set the mode, which may change while a job runs."""
        self.mode, self.conclusions.is_act = mode, mode == "act"

    def note(self, observed: Observed) -> None:
        """Record an observation; call this after the engine has observed it."""
        at, _, what = observed
        job = self.engine.job
        attempt = job.attempt
        self._has_begun = True
        if attempt.number != self._number:
            self._number = attempt.number
            self._see_attempts(job)
        self.timeline.note(job, observed)
        if not self.has_curves:
            return
        self._band.note(attempt, at)
        if isinstance(what, Iteration):
            newest = attempt.steps[-1] if attempt.steps else None
            if newest is not None and newest is not self._step:
                self._step = newest
                self._series.add(attempt.number, newest)
        elif isinstance(what, Validation):
            self._validated(job, at, what)

    def stepped(self, placed: PlacedLines, begin: int, end: int) -> None:
        """Record the newest steps of the attempt: plain iteration lines, added as a batch."""
        if self.has_curves:
            attempt = self.engine.job.attempt
            self._step = attempt.steps[-1]
            self._series.extend(attempt.number, placed, begin, end)

    def assessed(self, assessment: Assessment) -> None:
        if self._has_begun:
            self._band.note(self.engine.job.attempt, assessment.at)
            self.conclusions.assessed(assessment)

    def enacted(self, decision: Decision, at: float) -> None:
        """Record an action that was taken or, in observe mode, would have been taken."""
        self.timeline.enacted(decision, at)
        self.conclusions.enacted(decision, at)

    def incident(self, incident: Incident, files: Sequence[EvidenceFile] = ()) -> None:
        """Add or update an incident; `files` are added to its known files."""
        self._incidents[incident.number] = incident
        known = self._files.setdefault(incident.number, [])
        known += [each for each in files if each not in known]
        del known[model.MAX_FILES :]
        if len(self._incidents) > MAX_INCIDENTS:
            oldest = min(self._incidents)
            del self._incidents[oldest], self._files[oldest]
            self._left_out += 1

    def noted(self, text: str) -> None:
        """Add a note for the user about something that could not be observed or done."""
        self._notes.setdefault(short(text))
        while len(self._notes) > 64:
            del self._notes[next(iter(self._notes))]

    def report(
        self,
        now: float | None = None,
        *,
        is_over: bool = False,
        is_interrupted: bool = False,
        concluded: RunConclusion | None = None,
    ) -> RunReport:
        """Build the report up to `now`, or up to the last observation. `concluded`: the conclusion
        of a caller that has more information than the assessments."""
        job = self.engine.job
        until = max(job.now, job.now if now is None or is_over else now)
        concluded = concluded or self.conclusions.run(is_interrupted=is_interrupted)
        verdict, decision = concluded.verdict, concluded.decision
        if self._has_begun:
            self._see_attempts(job, self.conclusions.last_attempt(concluded))
        started = [each.started_at for each in self._attempts.values()]
        ledger = time_spent(job, until)
        return RunReport(
            run=job.run,
            mode=self.mode,
            clock=self.clock,
            verdict=replace(verdict, summary=short(verdict.summary)),
            decision=decision,
            advice=advise(verdict.cause, decision.finding, job.catalogue, decision),
            started_at=min(started, default=None),
            ended_at=until if self._has_begun else None,
            is_over=is_over,
            acted_at=concluded.acted_at,
            findings=concluded.findings,
            incidents=model.incident_stories(
                [self._incidents[number] for number in sorted(self._incidents)],
                self._attempts,
                self._files,
                job.catalogue,
            ),
            attempts=tuple(self._attempts.values()),
            iteration=job.attempt.iteration,
            total_iterations=job.layout.total_iterations or self.timeline.total_iterations,
            world_size=job.layout.world_size,
            command=short(self.command),
            goodput=ledger.goodput,
            wall_seconds=ledger.wall_seconds,
            spent=tuple(
                SpentStory(part.value, seconds, ledger.gpu_seconds[part])
                for part, seconds in ledger.seconds.items()
            ),
            series=tuple(self._series.buckets),
            validations=tuple(self._validations),
            phases=self._band.spans(until) if self.has_curves else (),
            checkpoints=checkpoints(job),
            source_states=sources(job),
            timeline=timeline(self.timeline.entries, self.mode),
            left_out=self._left_out + self.timeline.left_out,
            notes=tuple(self._notes),
        )

    def _see_attempts(self, job: Job, last: AttemptReport | None = None) -> None:
        for each in job.past:
            self._attempts[each.number] = self.conclusions.past_attempt(each)
        if last is not None:
            self._attempts[last.number] = last
        while len(self._attempts) > MAX_ATTEMPTS:
            del self._attempts[sorted(self._attempts)[_KEPT_FIRST]]
            self._left_out += 1

    def _validated(self, job: Job, at: float, event: Validation) -> None:
        loss = next(iter(event.losses.values()), None)
        where = event.iteration if event.iteration is not None else job.attempt.iteration
        if loss is None or where is None or not math.isfinite(loss):
            return
        self._validations.append(ValidationStory(job.attempt.number, where, at, loss))
        if len(self._validations) > MAX_VALIDATIONS:
            self._validations = self._validations[::2]
