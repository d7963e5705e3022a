# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a run's report: plain frozen values, each as it is written to `story.json`.

Moments are seconds since 1970, or since the first line where the log prints no times. None is
what nobody can tell.

What went wrong, one entry a trouble: several detectors may find the same thing, and again.

Findings of one attempt with one cause are one incident, as long as they overlap in time. The
one that mwatch decided on leads; the others are voices. What a restart cost is known once the
next attempt has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mwatch.engine.advice import advise
from mwatch.engine.engine import Incident
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
    """One thing that went wrong in one attempt, whoever found it and however often."""

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
    """A later attempt had done again all that was lost."""
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


MAX_INCIDENTS = 256
MAX_FILES = 64
MAX_WITNESSES = 16
_EXCERPT = 600

Number = TypeVar("Number", int, float)
Key = tuple[int, str]
Files = Mapping[Key, Sequence[EvidenceFile]]


def key_of(incident: Incident) -> Key:
    return (incident.attempt, incident.cause.value)


def tell(
    incidents: Sequence[Incident],
    attempts: Mapping[int, AttemptReport],
    recovered: Mapping[int, float],
    files: Files,
    catalogue: Mapping[str, CatalogueEntry],
) -> tuple[IncidentStory, ...]:
    """In the order of their detection. `recovered`: by attempt, when its loss was made good."""
    groups: dict[Key, list[Incident]] = {}
    for each in incidents:
        groups.setdefault(key_of(each), []).append(each)
    told = [
        _told(episode, attempts, recovered, files.get(key, ()), catalogue)
        for key, group in groups.items()
        for episode in _episodes(group)
    ]
    return tuple(_without_echoes(sorted(told, key=lambda each: each.detected_at)))


def _without_echoes(told: Sequence[IncidentStory]) -> list[IncidentStory]:
    """What came in an attempt whose end was decided on, and asked for nothing more, belongs to
    what was decided on: a job that is stopped dies."""
    kept: list[IncidentStory] = []
    for each in told:
        cause = next((i for i, one in enumerate(kept) if _is_echo(each, one)), None)
        if cause is None:
            kept.append(each)
        else:
            kept[cause] = replace(kept[cause], voices=(*kept[cause].voices, *each.voices))
    return kept


def _is_echo(each: IncidentStory, first: IncidentStory) -> bool:
    decided = first.decided_at
    is_after = decided is not None and each.detected_at >= decided
    is_alike = each.attempt == first.attempt and each.decided_at is None
    return is_after and is_alike and each.action == Action.NONE and each.acted_at is None


def _episodes(group: Sequence[Incident]) -> list[list[Incident]]:
    """What overlaps in time is one; so is what came and went again and again of itself."""
    episodes: list[list[Incident]] = []
    ends = 0.0
    for each in sorted(group, key=lambda each: each.detected_at):
        if episodes and (each.detected_at <= ends or not _is_decided(*episodes[-1], each)):
            episodes[-1].append(each)
        else:
            episodes.append([each])
        ends = max(ends, float("inf") if each.closed_at is None else each.closed_at)
    return episodes


def _is_decided(*incidents: Incident) -> bool:
    return any(each.decided_at is not None or each.acted_at is not None for each in incidents)


def _told(
    group: Sequence[Incident],
    attempts: Mapping[int, AttemptReport],
    recovered: Mapping[int, float],
    files: Sequence[EvidenceFile],
    catalogue: Mapping[str, CatalogueEntry],
) -> IncidentStory:
    lead = _lead(group)
    finding, decision = lead.finding, lead.decision
    action = decision.action if decision else Action.NONE
    is_decisive = lead.acted_at is not None or action is not Action.NONE
    resumed, lost = _cost(lead, attempts) if is_decisive else (None, None)
    next_step = advise(lead.cause, finding, catalogue)
    culprits = (each.finding.culprit for each in (lead, *group))
    blamed = next((each for each in culprits if who(each)), None)
    told = IncidentStory(
        attempt=lead.attempt,
        cause=lead.cause.value,
        severity=max((each.finding.severity for each in group), key=_weight).value,
        summary=short(finding.summary),
        since_iteration=_least(each.finding.since_iteration for each in group),
        since_at=_least(each.finding.since_time for each in group),
        detected_at=min(each.detected_at for each in group),
        decided_at=_least(each.decided_at for each in group),
        acted_at=_least(each.acted_at for each in group),
        closed_at=_closed(group),
        recovered_at=recovered.get(lead.attempt) if is_decisive else None,
        times=max(sum(each.finding.detector == name for each in group) for name in _names(group)),
        confidence=finding.confidence,
        culprit=who(blamed),
        resumed_from=resumed,
        lost_steps=lost,
        advice=next_step.step,
        runbook=next_step.runbook,
        voices=_voices(group, lead),
        files=tuple(files)[:MAX_FILES],
        blamed=blamed,
        cannot_heal=finding.cannot_heal,
        fault=finding.fault,
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


def _lead(group: Sequence[Incident]) -> Incident:
    """What was acted on, else what was decided on, else what spoke first."""

    def rank(each: Incident) -> tuple[bool, bool, float]:
        return each.decided_at is None, each.acted_at is None, each.detected_at

    return min(group, key=rank)


def _cost(lead: Incident, attempts: Mapping[int, AttemptReport]) -> tuple[int | None, int | None]:
    """The checkpoint that the next attempt began with, and the steps between it and the end; of
    the last attempt, what the chosen checkpoint would cost."""
    own, following = attempts.get(lead.attempt), attempts.get(lead.attempt + 1)
    reached = own.last_iteration if own else None
    resumed = following.resumed_from if following else None
    if following and resumed is None and following.first_iteration is not None:
        resumed = following.first_iteration - 1
    begun = resumed
    if begun is None and lead.decision and not following:
        begun = lead.decision.resume_from or 0
    if reached is None or begun is None or not _restarts(lead, following):
        return resumed, None
    return resumed, max(0, reached - begun)


def _restarts(lead: Incident, following: AttemptReport | None) -> bool:
    is_restart = lead.decision is not None and lead.decision.action is Action.RESTART
    return following is not None or is_restart


def _closed(group: Sequence[Incident]) -> float | None:
    """When the last voice fell silent; None: one still speaks."""
    moments = [each.closed_at for each in group]
    ended = [each for each in moments if each is not None]
    return max(ended) if len(ended) == len(moments) else None


def _names(group: Sequence[Incident]) -> set[str]:
    return {each.finding.detector for each in group}


def _weight(severity: object) -> int:
    return ("info", "warning", "critical").index(str(severity))


def _least(values: Iterable[Number | None]) -> Number | None:
    return min((each for each in values if each is not None), default=None)


def _voices(group: Sequence[Incident], lead: Incident) -> tuple[Voice, ...]:
    newest = {each.finding.detector: each.finding for each in (*group, lead)}
    first = newest.pop(lead.finding.detector)
    return tuple(_voice(each) for each in (first, *newest.values()))


def _voice(finding: Finding) -> Voice:
    lines = tuple(
        Evidence(each.file and short(each.file, 300), each.line, short(each.text, _EXCERPT))
        for each in finding.evidence[:MAX_EXCERPTS]
    )
    return Voice(finding.detector, short(finding.summary), finding.severity.value, lines)


def who(culprit: Culprit | None) -> str | None:
    """`rank 3 (tp 1, dp 0), node a-17: behind`; None: nobody is named."""
    named = None if culprit is None else culprit.told(", ")
    return named and short(named, 300)
