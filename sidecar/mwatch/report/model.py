# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a run's report: plain frozen values, each as it is written to `story.json`.

Moments are seconds since 1970, or since the first line where the log prints no times. None is
what nobody can tell.

What went wrong: one entry for each incident of `mwatch.engine.incidents`. What a restart cost is
known once the next attempt has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mwatch.engine.advice import advise
from mwatch.engine.incidents import Incident
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Cause, Culprit, Evidence, Finding
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_EXCERPTS = 8
MAX_WORDS = 2000
"""Characters of one text: a log line may be megabytes long."""
_LOOKED_AT = 4
"""A secret that is cut in the middle is not known any more: more is scrubbed than is kept."""


@dataclass(frozen=True, slots=True)
class ReportClock:
    """How moments are told to people."""

    is_relative: bool = False
    """Seconds since the first line."""
    zone: str = ""
    """Empty: that of the log, which is not named."""
    offset_seconds: float = 0.0
    """What is added to UTC."""


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
    """Iterations that an earlier attempt had done."""
    cause: Cause
    """How it ended, or what is the matter with it now."""
    summary: str
    decision: Decision | None = None
    """What was done about it, or would have been; None: not known."""


@dataclass(frozen=True, slots=True)
class Voice:
    """What one detector said."""

    detector: str
    summary: str
    severity: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """Kept on disk; `path` is told from the folder of the run where it lies in it."""

    path: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class IncidentStory:
    """An incident of `mwatch.engine.incidents`."""

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
    """A later attempt did the first new iteration, with good numbers."""
    times: int = 1
    confidence: float = 1.0
    culprit: str | None = None
    action: str = "none"
    resume_from: int | None = None
    """The checkpoint that mwatch chose."""
    reason: str = ""
    resume_reason: str = ""
    resumed_from: int | None = None
    """The checkpoint that the next attempt really began with; 0: with none."""
    lost_steps: int | None = None
    proposal: str | None = None
    advice: str = ""
    runbook: str | None = None
    witnesses: tuple[Witness, ...] = ()
    voices: tuple[Voice, ...] = ()
    files: tuple[EvidenceFile, ...] = ()
    blamed: Culprit | None = None
    """As `culprit`, in fields."""
    cannot_heal: bool = False
    fault: str | None = None
    avoid_node: bool = False
    quarantine_from: int | None = None
    id: str = ""
    """The name of its folder."""


@dataclass(frozen=True, slots=True)
class SpentStory:
    """One class of the ledger."""

    name: str
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointStory:
    iteration: int
    saved_at: float | None
    state: str
    """`good`, `abandoned` (of a line that nobody continues), `broken`, or `unknown`."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ValidationStory:
    attempt: int
    iteration: int
    at: float
    loss: float


@dataclass(frozen=True, slots=True)
class SightStory:
    """Something mwatch can watch by."""

    name: str
    is_up: bool
    since: float | None
    """None: it was never up."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: float
    kind: str
    text: str
    attempt: int
    iteration: int | None = None
    until: float | None = None
    """Of several events in one entry: when the last one was."""
    count: int = 1
    file: str | None = None
    line: int | None = None


def short(text: str, most: int = MAX_WORDS) -> str:
    """As it may be kept and shown: without secrets, and of bounded length."""
    text = Scrubber().text(text[: _LOOKED_AT * most])
    return text if len(text) <= most else text[: most - 1] + "…"


MAX_FILES = 64
MAX_WITNESSES = 16
_EXCERPT = 600

Files = Mapping[int, Sequence[EvidenceFile]]
"""By the number of the incident."""


def incident_stories(
    incidents: Iterable[Incident],
    attempts: Mapping[int, AttemptReport],
    files: Files,
    catalogue: Mapping[str, CatalogueEntry],
) -> tuple[IncidentStory, ...]:
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
    resumed, lost = _cost(incident, attempts) if incident.is_decisive else (None, None)
    next_step = advise(incident.cause, finding, catalogue)
    voices = [finding, *(each for each in found if each is not finding)]
    blamed = next((each.culprit for each in voices if who(each.culprit)), None)
    told = IncidentStory(
        attempt=incident.attempt,
        cause=incident.cause.value,
        severity=max((each.severity for each in found), key=_weight).value,
        summary=short(finding.summary),
        since_iteration=_least(each.since_iteration for each in found),
        since_at=times.fault,
        detected_at=incident.detected_at,
        decided_at=times.decided,
        acted_at=times.acted,
        closed_at=times.closed,
        recovered_at=times.first_new_iteration,
        times=max(each.times for each in incident.symptoms),
        confidence=finding.confidence,
        culprit=who(blamed),
        resumed_from=resumed,
        lost_steps=lost,
        advice=next_step.step,
        runbook=next_step.runbook,
        voices=tuple(map(_voice, voices)),
        files=tuple(files)[:MAX_FILES],
        blamed=blamed,
        cannot_heal=finding.cannot_heal,
        fault=finding.fault,
        id=incident.id,
    )
    return told if decision is None else _decided(told, decision)


def _decided(told: IncidentStory, decision: Decision) -> IncidentStory:
    return replace(
        told,
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
    """The checkpoint that the next attempt began with, and the steps between it and the end; of
    the last attempt, what the chosen checkpoint would cost."""
    own, following = attempts.get(incident.attempt), attempts.get(incident.attempt + 1)
    reached = own.last_iteration if own else None
    resumed = following.resumed_from if following else None
    if following and resumed is None and following.first_iteration is not None:
        resumed = following.first_iteration - 1
    begun = resumed
    if begun is None and incident.decision and not following:
        begun = incident.decision.resume_from or 0
    if reached is None or begun is None or not _restarts(incident, following):
        return resumed, None
    return resumed, max(0, reached - begun)


def _restarts(incident: Incident, following: AttemptReport | None) -> bool:
    is_restart = incident.decision is not None and incident.decision.action is Action.RESTART
    return following is not None or is_restart


def _weight(severity: object) -> int:
    return ("info", "warning", "critical").index(str(severity))


def _least(values: Iterable[int | None]) -> int | None:
    return min((each for each in values if each is not None), default=None)


def _voice(finding: Finding) -> Voice:
    lines = tuple(
        Evidence(each.file and short(each.file, 300), each.line, short(each.text, _EXCERPT))
        for each in finding.evidence[:MAX_EXCERPTS]
    )
    return Voice(finding.detector, short(finding.summary), finding.severity.value, lines)


def who(culprit: Culprit | None) -> str | None:
    """`rank 3 (tp 1, dp 0), node a-17: behind`; None: nobody is named."""
    named = None if culprit is None else culprit.label(", ")
    return named and short(named, 300)
