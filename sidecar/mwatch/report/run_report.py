# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: the one model behind every screen, `--json`, Markdown, HTML and story.json.

Times of recorded logs are those of the log without a time zone, because a log does not name one, or
seconds since the first line if the log prints no times. Times of a run that mwatch watched are
seconds since 1970, and UTC in JSON. `None` means unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mwatch import json_codec
from mwatch.engine.advice import Advice, advise
from mwatch.model.cause import Cause
from mwatch.model.decision import Decision
from mwatch.model.finding import Finding, Verdict
from mwatch.model.stacks import StackGroup
from mwatch.report.model import (
    AttemptReport,
    CheckpointStory,
    IncidentStory,
    LogEnd,
    PhaseSpan,
    ReportClock,
    SourceStory,
    SpentStory,
    TimelineEntry,
    ValidationStory,
)
from mwatch.report.series import Bucket

_FINE = frozenset({Cause.HEALTHY, Cause.FINISHED})
_UNKNOWN = frozenset({Cause.UNKNOWN, Cause.BLIND})
_WRITTEN_SECONDS = 60.0
"""A watcher writes its story every few seconds; a story older than this has lost its watcher."""


@dataclass(frozen=True, slots=True)
class RunReport:
    run: str
    mode: str
    """`replay`: recorded logs; `observe`: watched only; `act`: restarted by mwatch."""
    clock: ReportClock
    verdict: Verdict
    """Verdict at the end of the report."""
    decision: Decision
    advice: Advice
    started_at: float | None = None
    ended_at: float | None = None
    """The newest time in the report."""
    is_over: bool = True
    """Whether the run has ended."""
    acted_at: float | None = None
    """When mwatch acted on the last attempt, or would have in observe mode; None: never."""
    findings: tuple[Finding, ...] = ()
    """Findings at the end of the report."""
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
    source_states: tuple[SourceStory, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    left_out: int = 0
    """Number of timeline entries, attempts and incidents left out because of the limits."""
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that were read."""
    lines: int | None = None
    """Total lines of the files; None: not counted."""
    log_ends: tuple[LogEnd, ...] = ()
    """Excerpts of the logs, for a page."""
    uid: str = ""
    """UID of a job in a cluster."""

    @property
    def exit_code(self) -> int:
        if self.verdict.cause in _UNKNOWN:
            return 3
        return 0 if self.verdict.cause in _FINE else 1

    @property
    def finding(self) -> Finding | None:
        """Return the finding that the verdict is based on."""
        lead = self.decision.finding
        if lead is not None and lead.summary == self.verdict.summary:
            return lead
        same = (each for each in self.findings if each.cause is self.verdict.cause)
        return next(same, None)

    def judged(self, verdict: Verdict, decision: Decision, advice: Advice) -> RunReport:
        """Return the report with another verdict on the run and its last attempt."""
        last = tuple(
            replace(each, cause=verdict.cause, summary=verdict.summary, decision=decision)
            for each in self.attempts[-1:]
        )
        attempts = (*self.attempts[:-1], *last)
        return replace(self, verdict=verdict, decision=decision, advice=advice, attempts=attempts)

    def seen_at(self, now: float, goes_on: str | None = None) -> RunReport:
        """Return the report as of `now`: a watcher that was killed does not finish its story.
        `goes_on`: the summary for a run that is known to continue without its watcher."""
        age = now - (self.ended_at or now)
        is_fresh = self.verdict.cause is not Cause.HEALTHY or age <= _WRITTEN_SECONDS
        if self.is_over or (is_fresh and goes_on is None):
            return self
        place = "" if self.iteration is None else f" after iteration {self.iteration}"
        text = f"mwatch stopped recording{place}, {age:.0f} s ago: "
        text += "how the run ended is not known" if goes_on is None else goes_on
        unknown = Verdict(Cause.UNKNOWN, text, confidence=0.0)
        decision = replace(self.decision, cause=Cause.UNKNOWN, reason=text)
        return replace(
            self.judged(unknown, decision, advise(Cause.UNKNOWN, None, {})), is_over=True
        )

    def time(self, at: float | None) -> str | float | None:
        """Format a time for JSON, in UTC unless the zone of the log is unknown."""
        if at is None:
            return None
        if self.clock.is_relative:
            return round(at, 3)
        return iso(at) + ("Z" if self.clock.zone else "")

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict
        clock = "relative" if self.clock.is_relative else "utc" if self.clock.zone else "log"
        return {
            "verdict": {
                "cause": verdict.cause.value,
                "summary": verdict.summary,
                "since": self._since(verdict.since_iteration, verdict.since_time),
                "culprit": json_codec.to_builtins(verdict.culprit),
                "confidence": verdict.confidence,
            },
            "decision": decision_json(self.decision)
            | {"at": self.time(self.acted_at), "is_advice": self.decision.is_advice},
            "findings": [finding_json(each, self.time) for each in self.findings],
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
                "clock": clock,
                "iteration": self.iteration,
                "total_iterations": self.total_iterations,
            },
            "notes": list(self.notes),
        }

    def _since(self, iteration: int | None, at: float | None) -> dict[str, Any]:
        return {"iteration": iteration, "time": self.time(at)}

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
            "decision": decision and decision_json(decision),
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
            "culprit": json_codec.to_builtins(incident.blamed),
            "evidence": json_codec.to_builtins([*lead.evidence] if lead else []),
            "cannot_heal": incident.cannot_heal,
            "fault": incident.fault,
            "stacks": stacks_json(incident.stacks),
            "detected": self.time(incident.detected_at),
            "decided": self.time(incident.decided_at),
            "acted": self.time(incident.acted_at),
            "closed": self.time(incident.closed_at),
            "decision": decision_json(incident) if incident.reason else None,
        }

    def _entry(self, entry: TimelineEntry) -> dict[str, Any]:
        body = asdict(entry)
        return {"time": self.time(body.pop("at")), **body, "until": self.time(entry.until)}


def decision_json(decision: Decision | IncidentStory) -> dict[str, Any]:
    return {
        "action": str(decision.action),
        "resume_from": decision.resume_from,
        "reason": decision.reason,
        "resume_reason": decision.resume_reason or None,
        "witnesses": list(json_codec.to_builtins(decision.witnesses)),
        "avoid_node": decision.avoid_node,
        "quarantine_from": decision.quarantine_from,
        "proposal": decision.proposal,
    }


def finding_json(finding: Finding, time: Callable[[float | None], object]) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "cause": finding.cause.value,
        "severity": finding.severity.value,
        "summary": finding.summary,
        "since": {"iteration": finding.since_iteration, "time": time(finding.since_time)},
        "confidence": finding.confidence,
        "culprit": json_codec.to_builtins(finding.culprit),
        "evidence": json_codec.to_builtins([*finding.evidence]),
        "cannot_heal": finding.cannot_heal,
        "fault": finding.fault,
        "stacks": stacks_json(finding.stacks),
    }


def stacks_json(groups: Iterable[StackGroup]) -> list[dict[str, Any]]:
    """Convert groups of call stacks for JSON, each with a sentence that describes it."""
    return [{"text": each.text, **asdict(each), "frames": [*each.frames]} for each in groups]


def iso(at: float) -> str:
    """Format as ISO 8601 without a zone; a time outside the calendar stays a number."""
    try:
        moment = datetime.fromtimestamp(at, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
