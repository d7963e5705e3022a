# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was learnt from a recorded run: the object behind `--json`, the terminal and the files.

Times are the log's own, without a zone, for a log does not name one; seconds from the first line
where it prints none. `None` is what nobody can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mwatch.engine.advice import Advice
from mwatch.engine.incidents import Incident
from mwatch.engine.run_timeline import Entry
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Finding, Verdict
from mwatch.model.goodput import TimeSpent
from mwatch.model.incident import culprit_json

_FINE = frozenset({Cause.HEALTHY, Cause.FINISHED})
_UNSEEN = frozenset({Cause.UNKNOWN, Cause.BLIND})


@dataclass(frozen=True, slots=True)
class AttemptReport:
    number: int
    started_at: float
    ended_at: float | None
    first_iteration: int | None
    last_iteration: int | None
    resumed_from: int | None
    cause: Cause
    summary: str
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class RunReport:
    verdict: Verdict
    decision: Decision
    acted_at: float | None
    """When mwatch would have acted; None: it would not have."""
    advice: Advice
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    attempts: tuple[AttemptReport, ...]
    ledger: TimeSpent
    world_size: int | None
    timeline: tuple[Entry, ...]
    files: tuple[str, ...]
    lines: int
    first_at: float | None
    last_at: float | None
    is_relative: bool
    notes: tuple[str, ...] = ()
    iteration: int | None = None
    total_iterations: int | None = None
    left_out: int = field(default=0)
    """Entries of the timeline."""

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

    def time(self, at: float | None) -> str | float | None:
        """For JSON."""
        if at is None:
            return None
        return round(at, 3) if self.is_relative else iso(at)

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
                "first": self.time(self.first_at),
                "last": self.time(self.last_at),
                "clock": "relative" if self.is_relative else "log",
                "iteration": self.iteration,
                "total_iterations": self.total_iterations,
            },
            "notes": list(self.notes),
        }

    def _since(self, iteration: int | None, at: float | None) -> dict[str, Any]:
        return {"iteration": iteration, "time": self.time(at)}

    def _decision(self, decision: Decision) -> dict[str, Any]:
        return {
            "action": decision.action.value,
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
        ledger = self.ledger
        return {
            "ratio": None if ledger.goodput is None else round(ledger.goodput, 4),
            "wall_seconds": round(ledger.wall_seconds, 3),
            "gpus": self.world_size,
            "seconds": {part.value: round(spent, 3) for part, spent in ledger.seconds.items()},
            "gpu_hours": {
                part.value: round(spent / 3600.0, 4) for part, spent in ledger.gpu_seconds.items()
            },
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

    def _incident(self, incident: Incident) -> dict[str, Any]:
        decision = incident.decision
        return {
            "attempt": incident.attempt,
            **self._finding(incident.finding),
            "detected": self.time(incident.detected_at),
            "decided": self.time(incident.decided_at),
            "acted": self.time(incident.acted_at),
            "closed": self.time(incident.closed_at),
            "decision": decision and self._decision(decision),
        }

    def _entry(self, entry: Entry) -> dict[str, Any]:
        return {
            "time": self.time(entry.at),
            "until": self.time(entry.until),
            "kind": entry.kind,
            "text": entry.text,
            "attempt": entry.attempt,
            "iteration": entry.iteration,
            "count": entry.count,
            "file": entry.file,
            "line": entry.line,
        }


def iso(at: float) -> str:
    """In the log's own zone, which is not named; a moment that no calendar has is a number."""
    try:
        moment = datetime.fromtimestamp(at, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
