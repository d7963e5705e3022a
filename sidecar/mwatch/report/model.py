# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a run's report: frozen dataclasses, written to `story.json` as they are.

Times are seconds since 1970, or since the first line if the log prints no times. None means
unknown. An `IncidentStory` is built from one incident of `mwatch.engine.incidents`; the cost of its
restart is known once the next attempt has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mwatch.engine.advice import advise
from mwatch.engine.incidents import Incident
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Culprit, Evidence, Finding, Severity
from mwatch.model.stacks import StackGroup
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_EXCERPTS = 8
MAX_WORDS = 2000
"""Maximum characters of one text; a log line may be megabytes long."""
_LOOKED_AT = 4
"""Scrub this multiple of the kept length: a secret that is cut in half is not recognized."""


@dataclass(frozen=True, slots=True)
class ReportClock:
    """How times are shown."""

    is_relative: bool = False
    """Show times as seconds since the first line."""
    zone: str = ""
    """Name of the time zone; empty for that of the log, which is unknown."""
    offset_seconds: float = 0.0
    """Offset to add to UTC."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    attempt: int
    phase: str
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class AttemptReport:
    number: int
    started_at: float
    ended_at: float | None
    first_iteration: int | None
    last_iteration: int | None
    resumed_from: int | None
    recomputed: int
    """Iterations that an earlier attempt had already done."""
    cause: Cause
    """Cause of its end, or of its current verdict if it is still running."""
    summary: str
    decision: Decision | None = None
    """The action taken, or proposed in observe mode; None: unknown."""


@dataclass(frozen=True, slots=True)
class DetectorReport:
    """What one detector found."""

    detector: str
    summary: str
    severity: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """A file on disk; `path` is relative to the folder of the run if the file is inside it."""

    path: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class IncidentStory:
    attempt: int
    cause: str
    severity: str
    summary: str
    since_iteration: int | None
    since_at: float | None
    detected_at: float
    decided_at: float | None = None
    acted_at: float | None = None
    closed_at: float | None = None
    recovered_at: float | None = None
    """When a later attempt completed its first new iteration with good values."""
    times: int = 1
    confidence: float = 1.0
    culprit: str | None = None
    action: str = "none"
    resume_from: int | None = None
    """Checkpoint that mwatch chose to resume from."""
    reason: str = ""
    resume_reason: str = ""
    resumed_from: int | None = None
    """Checkpoint that the next attempt actually loaded; 0: none."""
    lost_steps: int | None = None
    proposal: str | None = None
    advice: str = ""
    runbook: str | None = None
    witnesses: tuple[Witness, ...] = ()
    voices: tuple[DetectorReport, ...] = ()
    files: tuple[EvidenceFile, ...] = ()
    blamed: Culprit | None = None
    """The culprit in structured form; `culprit` is its text."""
    cannot_heal: bool = False
    fault: str | None = None
    avoid_node: bool = False
    quarantine_from: int | None = None
    id: str = ""
    """Name of the incident's folder."""
    stacks: tuple[StackGroup, ...] = ()
    """Call stacks of all ranks, grouped."""


@dataclass(frozen=True, slots=True)
class SpentStory:
    """One class of the goodput ledger."""

    name: str
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointStory:
    iteration: int
    saved_at: float | None
    state: str
    """`good`, `abandoned` (rolled back), `broken`, or `unknown`."""
    reason: str = ""
    stored: str | None = None
    """State in the save folder: `complete`, `unverified` and so on; None: seen only in the log."""


@dataclass(frozen=True, slots=True)
class ValidationStory:
    attempt: int
    iteration: int
    at: float
    loss: float


@dataclass(frozen=True, slots=True)
class SourceStory:
    """A source of observations: log, probe, GPUs and so on."""

    name: str
    is_up: bool
    since: float | None
    """None: never up."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: float
    kind: str
    text: str
    attempt: int
    iteration: int | None = None
    until: float | None = None
    """Time of the last event, if the entry combines several."""
    count: int = 1
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Consecutive lines of a log: its last ones, or those up to an incident."""

    file: str
    lines: tuple[str, ...]
    first: int | None = None
    """Number of the first line; None for the last lines, or if the log's middle was not read."""
    incident: int | None = None
    """Number of the incident in the report, from 1."""


def short(text: str, most: int = MAX_WORDS) -> str:
    """Scrub secrets and bound the length."""
    text = Scrubber().text(text[: _LOOKED_AT * most])
    return text if len(text) <= most else text[: most - 1] + "…"


MAX_FILES = 64
MAX_WITNESSES = 16
_EXCERPT = 600


def incident_stories(
    incidents: Iterable[Incident],
    attempts: Mapping[int, AttemptReport],
    files: Mapping[int, Sequence[EvidenceFile]],
    catalogue: Mapping[str, CatalogueEntry],
) -> tuple[IncidentStory, ...]:
    """Convert incidents for the report. `files`: evidence files by incident number."""
    return tuple(
        _incident_story(each, attempts, files.get(each.number, ()), catalogue) for each in incidents
    )


def _incident_story(
    incident: Incident,
    attempts: Mapping[int, AttemptReport],
    files: Sequence[EvidenceFile],
    catalogue: Mapping[str, CatalogueEntry],
) -> IncidentStory:
    finding, decision, times = incident.finding, incident.decision, incident.times
    found = [each.finding for each in incident.symptoms]
    since = [each.since_iteration for each in found if each.since_iteration is not None]
    resumed, lost = _cost(incident, attempts) if incident.is_decisive else (None, None)
    next_step = advise(incident.cause, finding, catalogue, decision)
    ordered = [finding, *(each for each in found if each is not finding)]
    blamed = next((each.culprit for each in ordered if culprit_text(each.culprit)), None)
    story = IncidentStory(
        attempt=incident.attempt,
        cause=incident.cause.value,
        severity=max((each.severity for each in found), key=list(Severity).index).value,
        summary=short(finding.summary),
        since_iteration=min(since, default=None),
        since_at=times.fault,
        detected_at=incident.detected_at,
        decided_at=times.decided,
        acted_at=times.acted,
        closed_at=times.closed,
        recovered_at=times.first_new_iteration,
        times=max(each.times for each in incident.symptoms),
        confidence=finding.confidence,
        culprit=culprit_text(blamed),
        resumed_from=resumed,
        lost_steps=lost,
        advice=next_step.step,
        runbook=next_step.runbook,
        voices=tuple(map(_detector_report, ordered)),
        files=tuple(files)[:MAX_FILES],
        blamed=blamed,
        cannot_heal=finding.cannot_heal,
        fault=finding.fault,
        id=incident.id,
        stacks=next((each.stacks for each in ordered if each.stacks), ()),
    )
    return story if decision is None else _decided(story, decision)


def _decided(story: IncidentStory, decision: Decision) -> IncidentStory:
    return replace(
        story,
        action=decision.action.value,
        resume_from=decision.resume_from,
        reason=short(decision.reason),
        resume_reason=short(decision.resume_reason),
        proposal=short(decision.proposal) if decision.proposal else None,
        witnesses=tuple(
            Witness(each.name, each.agrees, short(each.text))
            for each in decision.witnesses[:MAX_WITNESSES]
        ),
        avoid_node=decision.avoid_node,
        quarantine_from=decision.quarantine_from,
    )


def _cost(
    incident: Incident, attempts: Mapping[int, AttemptReport]
) -> tuple[int | None, int | None]:
    """Return the checkpoint that the next attempt loaded, and the steps lost; for the last attempt,
    the steps that would be lost by resuming from the chosen checkpoint."""
    own, following = attempts.get(incident.attempt), attempts.get(incident.attempt + 1)
    reached = own.last_iteration if own else None
    resumed = following.resumed_from if following else None
    if following and resumed is None and following.first_iteration is not None:
        resumed = following.first_iteration - 1
    begun = resumed
    if begun is None and incident.decision and not following:
        begun = incident.decision.resume_from or 0
    is_restart = incident.decision is not None and incident.decision.action is Action.RESTART
    if reached is None or begun is None or not (following or is_restart):
        return resumed, None
    return resumed, max(0, reached - begun)


def _detector_report(finding: Finding) -> DetectorReport:
    lines = tuple(
        Evidence(each.file and short(each.file, 300), each.line, short(each.text, _EXCERPT))
        for each in finding.evidence[:MAX_EXCERPTS]
    )
    return DetectorReport(finding.detector, short(finding.summary), finding.severity.value, lines)


def culprit_text(culprit: Culprit | None) -> str | None:
    """Format as `rank 3 (tp 1, dp 0), node a-17: behind`; None if unknown."""
    named = None if culprit is None else culprit.label(", ")
    return named and short(named, 300)
