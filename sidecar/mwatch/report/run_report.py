# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: the one model behind every screen, `--json`, Markdown, HTML and story.json.

Times are the log's own, without a zone, for a log does not name one; seconds from the first line
where it prints none; of a run that mwatch watched, seconds since 1970, and UTC in JSON. `None` is
what nobody can tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mwatch.engine.advice import Advice, advise
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Finding, Verdict
from mwatch.model.incident import culprit_json
from mwatch.report.model import (
    AttemptReport,
    CheckpointStory,
    IncidentStory,
    PhaseSpan,
    ReportClock,
    SightStory,
    SpentStory,
    TimelineEntry,
    ValidationStory,
)
from mwatch.report.series import Bucket

_FINE = frozenset({Cause.HEALTHY, Cause.FINISHED})
_UNSEEN = frozenset({Cause.UNKNOWN, Cause.BLIND})
_WRITTEN_SECONDS = 60.0
"""A watched run writes its story every few seconds: one that is older is not written any more."""


@dataclass(frozen=True, slots=True)
class RunReport:
    run: str
    mode: str
    """`replay`: of recorded logs; `observe`: watched, not touched; `act`: restarted by mwatch."""
    clock: ReportClock
    verdict: Verdict
    """How things stand at the end."""
    decision: Decision
    advice: Advice
    started_at: float | None = None
    ended_at: float | None = None
    """The newest moment that is reported."""
    is_over: bool = True
    """Nothing more will come."""
    acted_at: float | None = None
    """When mwatch acted on the last attempt, or would have; None: it did not."""
    findings: tuple[Finding, ...] = ()
    """At the end."""
    incidents: tuple[IncidentStory, ...] = ()
    attempts: tuple[AttemptReport, ...] = ()
    iteration: int | None = None
    total_iterations: int | None = None
    world_size: int | None = None
    command: str = ""
    goodput: float | None = None
    wall_seconds: float = 0.0
    spent: tuple[SpentStory, ...] = ()
    series: tuple[Bucket, ...] = ()
    validations: tuple[ValidationStory, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    checkpoints: tuple[CheckpointStory, ...] = ()
    sights: tuple[SightStory, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    left_out: int = 0
    """Entries of the timeline, attempts and incidents that there was no room for."""
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """That were read."""
    lines: int | None = None
    """Of the files; None: not counted."""

    @property
    def exit_code(self) -> int:
        if self.verdict.cause in _UNSEEN:
            return 3
        return 0 if self.verdict.cause in _FINE else 1

    @property
    def finding(self) -> Finding | None:
        """The one that the verdict rests on."""
        lead = self.decision.finding
        if lead is not None and lead.summary == self.verdict.summary:
            return lead
        same = (each for each in self.findings if each.cause is self.verdict.cause)
        return next(same, None)

    def judged(self, verdict: Verdict, decision: Decision, advice: Advice) -> RunReport:
        """With another verdict on its last attempt."""
        last = tuple(
            replace(each, cause=verdict.cause, summary=verdict.summary, decision=decision)
            for each in self.attempts[-1:]
        )
        attempts = (*self.attempts[:-1], *last)
        return replace(self, verdict=verdict, decision=decision, advice=advice, attempts=attempts)

    def seen_at(self, now: float) -> RunReport:
        """As it is to be read at `now`: nobody finishes the story of a watcher that was killed."""
        age = now - (self.ended_at or now)
        if self.is_over or self.verdict.cause is not Cause.HEALTHY or age <= _WRITTEN_SECONDS:
            return self
        place = "" if self.iteration is None else f" after iteration {self.iteration}"
        text = f"mwatch stopped recording{place}, {age:.0f} s ago: how the run ended is not known"
        unknown = Verdict(Cause.UNKNOWN, text, confidence=0.0)
        decision = replace(self.decision, cause=Cause.UNKNOWN, reason=text)
        return replace(
            self.judged(unknown, decision, advise(Cause.UNKNOWN, None, {})), is_over=True
        )

    def time(self, at: float | None) -> str | float | None:
        """For JSON."""
        if at is None:
            return None
        return round(at, 3) if self.clock.is_relative else iso(at)

    def to_json(self) -> dict[str, Any]:
        said = self.verdict
        return {
            "verdict": {
                "cause": said.cause.value,
                "summary": said.summary,
                "since": self._since(said.since_iteration, said.since_time),
                "culprit": culprit_json(said.culprit),
                "confidence": said.confidence,
            },
            "decision": self._decision(self.decision) | {"at": self.time(self.acted_at)},
            "findings": [self._finding(each) for each in self.findings],
            "goodput": self._goodput(),
            "attempts": [self._attempt(each) for each in self.attempts],
            "incidents": [self._incident(each) for each in self.incidents],
            "timeline": [self._entry(each) for each in self.timeline],
            "next_step": self.advice.step,
            "runbook": self.advice.runbook and f"runbooks/{self.advice.runbook}.md",
            "recording": {
                "files": list(self.files),
                "lines": self.lines,
                "first": self.time(self.started_at),
                "last": self.time(self.ended_at),
                "clock": self._clock(),
                "iteration": self.iteration,
                "total_iterations": self.total_iterations,
            },
            "notes": list(self.notes),
        }

    def _clock(self) -> str:
        if self.clock.is_relative:
            return "relative"
        return "utc" if self.clock.zone else "log"

    def _since(self, iteration: int | None, at: float | None) -> dict[str, Any]:
        return {"iteration": iteration, "time": self.time(at)}

    def _decision(self, decision: Decision | IncidentStory) -> dict[str, Any]:
        return {
            "action": str(decision.action),
            "resume_from": decision.resume_from,
            "reason": decision.reason,
            "resume_reason": decision.resume_reason or None,
            "witnesses": [each._asdict() for each in decision.witnesses],
            "avoid_node": decision.avoid_node,
            "quarantine_from": decision.quarantine_from,
            "proposal": decision.proposal,
        }

    def _finding(self, finding: Finding) -> dict[str, Any]:
        return {
            "detector": finding.detector,
            "cause": finding.cause.value,
            "severity": finding.severity.value,
            "summary": finding.summary,
            "since": self._since(finding.since_iteration, finding.since_time),
            "confidence": finding.confidence,
            "culprit": culprit_json(finding.culprit),
            "evidence": [each._asdict() for each in finding.evidence],
            "cannot_heal": finding.cannot_heal,
            "fault": finding.fault,
        }

    def _goodput(self) -> dict[str, Any]:
        return {
            "ratio": None if self.goodput is None else round(self.goodput, 4),
            "wall_seconds": round(self.wall_seconds, 3),
            "gpus": self.world_size,
            "seconds": {each.name: round(each.seconds, 3) for each in self.spent},
            "gpu_hours": {each.name: round(each.gpu_seconds / 3600.0, 4) for each in self.spent},
        }

    def _attempt(self, attempt: AttemptReport) -> dict[str, Any]:
        decision = attempt.decision
        return {
            "number": attempt.number,
            "started": self.time(attempt.started_at),
            "ended": self.time(attempt.ended_at),
            "first_iteration": attempt.first_iteration,
            "last_iteration": attempt.last_iteration,
            "resumed_from": attempt.resumed_from,
            "cause": attempt.cause.value,
            "summary": attempt.summary,
            "decision": decision and self._decision(decision),
        }

    def _incident(self, incident: IncidentStory) -> dict[str, Any]:
        lead = incident.voices[0] if incident.voices else None
        return {
            "attempt": incident.attempt,
            "detector": lead and lead.detector,
            "cause": incident.cause,
            "severity": incident.severity,
            "summary": incident.summary,
            "since": self._since(incident.since_iteration, incident.since_at),
            "confidence": incident.confidence,
            "culprit": culprit_json(incident.blamed),
            "evidence": [each._asdict() for each in (lead.evidence if lead else ())],
            "cannot_heal": incident.cannot_heal,
            "fault": incident.fault,
            "detected": self.time(incident.detected_at),
            "decided": self.time(incident.decided_at),
            "acted": self.time(incident.acted_at),
            "closed": self.time(incident.closed_at),
            "decision": self._decision(incident) if incident.reason else None,
        }

    def _entry(self, entry: TimelineEntry) -> dict[str, Any]:
        body = asdict(entry)
        return {"time": self.time(body.pop("at")), **body, "until": self.time(entry.until)}


def iso(at: float) -> str:
    """In the log's own zone, which is not named; a moment that no calendar has is a number."""
    try:
        moment = datetime.fromtimestamp(at, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
