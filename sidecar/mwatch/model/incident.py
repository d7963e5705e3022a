# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record of one incident: what was wrong, who, what was done, and what it cost.

One JSON object, kept beside the checkpoints and in the ledger. Reading ignores keys it does not
know and leaves out what is missing, so records of older and newer releases can be read.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.finding import Cause, Culprit, CulpritState, Finding

VERSION = 1
_LAST_SECOND = 253402300799.0
"""Of the year 9999: a recorded log may claim any time."""
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-a[0-9]{1,9}-[a-z-]{1,40}(?:-[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class IncidentTimes:
    """Seconds since 1970; None: not yet, or never."""

    fault: float | None = None
    """The first bad sign."""
    detected: float | None = None
    decided: float | None = None
    acted: float | None = None
    first_new_iteration: float | None = None
    """Training is past the point that it had reached before."""
    closed: float | None = None


@dataclass(frozen=True, slots=True)
class SavedEvidence:
    """The evidence that was saved."""

    folder: str
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be had, each with the reason."""


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    id: str
    run: str
    attempt: int
    cause: Cause
    summary: str
    confidence: float
    detector: str
    fingerprint: str = ""
    culprit: Culprit | None = None
    witnesses: tuple[Witness, ...] = ()
    """For and against."""
    first_bad_iteration: int | None = None
    action: Action = Action.NONE
    is_carried_out: bool = False
    """False: mwatch only observes, or there was nothing to do."""
    reason: str = ""
    resume_from: int | None = None
    resume_reason: str = ""
    times: IncidentTimes = field(default_factory=IncidentTimes)
    evidence: SavedEvidence | None = None
    lost_iterations: int | None = None
    """Done before, and to be done again."""
    gpu_seconds: float | None = None
    """From the fault to the first new iteration, times the ranks."""

    def with_outcome(
        self, times: IncidentTimes, *, world_size: int | None, lost_iterations: int | None
    ) -> IncidentRecord:
        start, end = times.fault or times.detected, times.first_new_iteration or times.closed
        cost = None
        if start is not None and end is not None and world_size:
            cost = max(0.0, end - start) * world_size
        return replace(self, times=times, lost_iterations=lost_iterations, gpu_seconds=cost)


def incident_id(at: float, attempt: int, cause: Cause, taken: Container[str] = ()) -> str:
    """`20260105T121314Z-a2-hang`: sorts by time, and is a name for a folder."""
    return bundle_id(at, attempt, cause.value.replace("_", "-"), taken)


def bundle_id(at: float, attempt: int, word: str, taken: Container[str] = ()) -> str:
    """Also of evidence that somebody asked for, without an incident."""
    moment = datetime.fromtimestamp(min(max(at, 0.0), _LAST_SECOND), UTC)
    name = f"{moment:%Y%m%dT%H%M%SZ}-a{attempt}-{word}"
    number = 1
    while (id := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return id


def is_incident_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def describe(
    id: str, run: str, finding: Finding, decision: Decision | None, *, attempt: int, is_act: bool
) -> IncidentRecord:
    """What is known when an incident opens, or when something is done about it."""
    about = IncidentRecord(
        id=id,
        run=run,
        attempt=attempt,
        cause=finding.cause,
        summary=finding.summary,
        confidence=finding.confidence,
        detector=finding.detector,
        fingerprint=finding.fingerprint,
        culprit=finding.culprit,
        first_bad_iteration=finding.since_iteration,
        times=IncidentTimes(fault=finding.since_time),
    )
    if decision is None:
        return about
    return replace(
        about,
        witnesses=decision.witnesses,
        action=decision.action,
        is_carried_out=is_act and decision.action is not Action.NONE,
        reason=decision.reason,
        resume_from=decision.resume_from,
        resume_reason=decision.resume_reason,
    )


def to_json(record: IncidentRecord) -> dict[str, Any]:
    culprit, kept = record.culprit, record.evidence
    heard = [each._asdict() for each in record.witnesses]
    return {
        "version": VERSION,
        "id": record.id,
        "run": record.run,
        "attempt": record.attempt,
        "cause": record.cause.value,
        "summary": record.summary,
        "confidence": record.confidence,
        "detector": record.detector,
        "fingerprint": record.fingerprint,
        "culprit": culprit_json(culprit),
        "witnesses": {
            "for": [each for each in heard if each["agrees"]],
            "against": [each for each in heard if not each["agrees"]],
        },
        "first_bad_iteration": record.first_bad_iteration,
        "checkpoint": {"iteration": record.resume_from, "why": record.resume_reason},
        "action": record.action.value,
        "is_carried_out": record.is_carried_out,
        "reason": record.reason,
        "times": {name: getattr(record.times, name) for name in IncidentTimes.__slots__},
        "evidence": None
        if kept is None
        else {"folder": kept.folder, "files": list(kept.files), "missing": list(kept.missing)},
        "cost": {"gpu_seconds": record.gpu_seconds, "lost_iterations": record.lost_iterations},
    }


def culprit_json(culprit: Culprit | None) -> dict[str, Any] | None:
    if culprit is None:
        return None
    return {
        "rank": culprit.rank,
        "state": culprit.state and culprit.state.value,
        "coordinates": dict(culprit.coordinates),
        "pod": culprit.pod,
        "node": culprit.node,
        "gpu_uuid": culprit.gpu_uuid,
        "xid": culprit.xid,
    }


def from_json(body: Mapping[str, Any]) -> IncidentRecord:
    """ValueError where it is no record of an incident."""
    try:
        return _read(body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no record of an incident: {type(error).__name__} {error}") from error


def _read(body: Mapping[str, Any]) -> IncidentRecord:
    heard = body.get("witnesses") or {}
    chosen, cost = body.get("checkpoint") or {}, body.get("cost") or {}
    times, kept = body.get("times") or {}, body.get("evidence")
    return IncidentRecord(
        id=str(body["id"]),
        run=str(body["run"]),
        attempt=int(body["attempt"]),
        cause=_cause(body["cause"]),
        summary=str(body.get("summary", "")),
        confidence=float(body.get("confidence", 0.0)),
        detector=str(body.get("detector", "")),
        fingerprint=str(body.get("fingerprint", "")),
        culprit=_culprit(body.get("culprit")),
        witnesses=tuple(
            Witness(str(each["name"]), bool(each["agrees"]), str(each["text"]))
            for each in [*heard.get("for", ()), *heard.get("against", ())]
        ),
        first_bad_iteration=body.get("first_bad_iteration"),
        action=Action(body.get("action", Action.NONE)),
        is_carried_out=bool(body.get("is_carried_out")),
        reason=str(body.get("reason", "")),
        resume_from=chosen.get("iteration"),
        resume_reason=str(chosen.get("why", "")),
        times=IncidentTimes(**{name: times.get(name) for name in IncidentTimes.__slots__}),
        evidence=None
        if kept is None
        else SavedEvidence(
            kept["folder"], tuple(kept.get("files", ())), tuple(kept.get("missing", ()))
        ),
        lost_iterations=cost.get("lost_iterations"),
        gpu_seconds=cost.get("gpu_seconds"),
    )


def _cause(name: str) -> Cause:
    """Of a newer release: unknown to us."""
    return Cause(name) if name in set(Cause) else Cause.UNKNOWN


def _culprit(body: Mapping[str, Any] | None) -> Culprit | None:
    if body is None:
        return None
    state = body.get("state")
    return Culprit(
        body.get("rank"),
        CulpritState(state) if state in set(CulpritState) else None,
        dict(body.get("coordinates") or {}),
        body.get("pod"),
        body.get("node"),
        body.get("gpu_uuid"),
        body.get("xid"),
    )
