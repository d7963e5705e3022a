# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record of one incident: the fault, the culprit, the action and the cost.

One JSON object, kept beside the checkpoints and in the ledger. Unknown keys are ignored and missing
ones have defaults, so records of older and newer releases are readable.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from mwatch import json_codec
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.finding import Culprit, CulpritState, Finding
from mwatch.model.stacks import StackGroup

VERSION = 1
_LAST_SECOND = 253402300799.0  # of the year 9999: a recorded log may have any time
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-a[0-9]{1,9}-[a-z-]{1,40}(?:-[0-9]{1,6})?", re.ASCII)


class IncidentStage(StrEnum):
    """The stage of an incident; people are notified of each stage once."""

    OPENED = "opened"
    ACTED = "acted"
    RECOVERED = "recovered"


def is_later(stage: IncidentStage, known: IncidentStage | None) -> bool:
    order = tuple(IncidentStage)
    return known is None or order.index(stage) > order.index(known)


@dataclass(frozen=True, slots=True)
class IncidentTimes:
    """Seconds since 1970; None: not yet, or never."""

    fault: float | None = None  # the first bad sign
    detected: float | None = None
    decided: float | None = None
    acted: float | None = None
    first_new_iteration: float | None = None  # training is past the furthest earlier iteration
    closed: float | None = None


@dataclass(frozen=True, slots=True)
class SavedEvidence:
    folder: str
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be collected, each with the reason


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
    witnesses: tuple[Witness, ...] = ()  # for and against
    first_bad_iteration: int | None = None
    action: Action = Action.NONE
    is_carried_out: bool = False  # False: mwatch only observes, or no action was needed
    reason: str = ""
    resume_from: int | None = None
    resume_reason: str = ""
    times: IncidentTimes = field(default_factory=IncidentTimes)
    evidence: SavedEvidence | None = None
    lost_iterations: int | None = None  # done before the restart, and to be repeated
    gpu_seconds: float | None = None  # from the fault to the first new iteration, times the ranks
    stacks: tuple[StackGroup, ...] = ()  # where the main threads of all ranks were

    def with_outcome(
        self, times: IncidentTimes, *, world_size: int | None, lost_iterations: int | None
    ) -> IncidentRecord:
        start, end = times.fault or times.detected, times.first_new_iteration or times.closed
        cost = None
        if start is not None and end is not None and world_size:
            cost = max(0.0, end - start) * world_size
        return replace(self, times=times, lost_iterations=lost_iterations, gpu_seconds=cost)


def incident_id(at: float, attempt: int, cause: Cause, taken: Container[str] = ()) -> str:
    """`20260105T121314Z-a2-hang`: sorts by time, and names a folder."""
    return bundle_id(at, attempt, cause.value.replace("_", "-"), taken)


def bundle_id(at: float, attempt: int, word: str, taken: Container[str] = ()) -> str:
    """Return a unique folder name, also for evidence that was requested without an incident."""
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
    """Describe an incident as it opens, or as an action is taken."""
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
        stacks=finding.stacks,
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


class _Witnesses(Struct, rename={"agreeing": "for"}):
    agreeing: tuple[Witness, ...] = ()
    against: tuple[Witness, ...] = ()


class _Checkpoint(Struct):
    iteration: int | None = None
    why: str = ""


class _Cost(Struct):
    gpu_seconds: float | None = None
    lost_iterations: int | None = None


class _Document(Struct):
    """The JSON object of an incident."""

    version: int
    id: str
    run: str
    attempt: int
    cause: Cause
    summary: str = ""
    confidence: float = 0.0
    detector: str = ""
    fingerprint: str = ""
    culprit: Culprit | None = None
    witnesses: _Witnesses = msgspec.field(default_factory=_Witnesses)
    first_bad_iteration: int | None = None
    checkpoint: _Checkpoint = msgspec.field(default_factory=_Checkpoint)
    action: Action = Action.NONE
    is_carried_out: bool = False
    reason: str = ""
    times: IncidentTimes = IncidentTimes()
    evidence: SavedEvidence | None = None
    cost: _Cost = msgspec.field(default_factory=_Cost)
    stacks: tuple[StackGroup, ...] = ()


_SAME = tuple(name for name in _Document.__struct_fields__ if name in IncidentRecord.__slots__)


def to_json(record: IncidentRecord) -> dict[str, Any]:
    agreeing = tuple(each for each in record.witnesses if each.agrees)
    against = tuple(each for each in record.witnesses if not each.agrees)
    same = {name: getattr(record, name) for name in _SAME} | {
        "witnesses": _Witnesses(agreeing, against)
    }
    document = _Document(
        version=VERSION,
        checkpoint=_Checkpoint(record.resume_from, record.resume_reason),
        cost=_Cost(record.gpu_seconds, record.lost_iterations),
        **same,
    )
    found: dict[str, Any] = json_codec.to_builtins(document)
    # Records without stacks stay as older releases wrote them.
    if not record.stacks:
        del found["stacks"]
    for name in ("place", "file") if record.culprit is not None else ():
        if getattr(record.culprit, name) is None:
            del found["culprit"][name]
    return found


def from_json(body: Mapping[str, Any]) -> IncidentRecord:
    """Raises ValueError for an invalid record."""
    try:
        known = {key: each for key, each in body.items() if each is not None}
        found = json_codec.convert(
            with_known_cause({"version": VERSION, **known}), _Document, strict=False
        )
    except (ValueError, AttributeError) as error:
        raise ValueError(f"not a record of an incident: {error}") from error
    same = {name: getattr(found, name) for name in _SAME}
    return IncidentRecord(
        **same | {"witnesses": (*found.witnesses.agreeing, *found.witnesses.against)},
        resume_from=found.checkpoint.iteration,
        resume_reason=found.checkpoint.why,
        lost_iterations=found.cost.lost_iterations,
        gpu_seconds=found.cost.gpu_seconds,
    )


def with_known_cause(body: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a cause or a culprit's state that only a newer release knows."""
    found, culprit = dict(body), body.get("culprit")
    if found.get("cause") not in set(Cause):
        found["cause"] = Cause.UNKNOWN if isinstance(found.get("cause"), str) else None
    if isinstance(culprit, Mapping) and culprit.get("state") not in set(CulpritState):
        found["culprit"] = {**culprit, "state": None}
    return found
