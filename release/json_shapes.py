# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What each kind of `--json` holds; prints `docs/json.schema.json`:
`python -m release.json_shapes > docs/json.schema.json`.

New keys may appear in any object. A key is not removed within a version of the format, nor does
its meaning change. `list[Item]` and `dict[str, Any]` are parts that are not promised yet.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from mwatch.model.cause import Cause
from mwatch.model.decision import Witness
from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
from mwatch.model.finding import Culprit, Severity

Moment = Annotated[
    str,
    msgspec.Meta(
        description="RFC 3339, with zone",
        pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$",
    ),
]
Seconds = Annotated[float, msgspec.Meta(description="seconds since 1970")]
LogTime = Annotated[
    str | float | None,
    msgspec.Meta(
        description="RFC 3339; without zone if the log names none (recording.clock is log); "
        "seconds since the first line if the log has no times (relative)"
    ),
]
Item = dict[str, Any]


class Envelope(TypedDict):
    version: Literal[1]
    time: Moment


class Since(TypedDict):
    iteration: int | None
    time: LogTime


class Verdict(TypedDict):
    cause: Cause
    summary: str
    since: Since
    culprit: Culprit | None
    confidence: float


class DecisionMade(TypedDict):
    action: str
    resume_from: int | None
    reason: str
    resume_reason: str | None
    witnesses: list[Witness]
    avoid_node: bool
    quarantine_from: int | None
    proposal: str | None
    at: NotRequired[LogTime]
    is_advice: NotRequired[bool]


class Quote(TypedDict):
    file: str | None
    line: int | None
    text: str
    time: NotRequired[LogTime]


class Found(TypedDict):
    detector: str | None
    cause: Cause
    severity: Severity
    summary: str
    since: Since
    confidence: float
    culprit: Culprit | None
    evidence: list[Quote]
    cannot_heal: bool
    fault: str | None
    stacks: list[Item]


class IncidentFound(Found):
    attempt: int
    detected: LogTime
    decided: LogTime
    acted: LogTime
    closed: LogTime
    decision: DecisionMade | None


class AttemptMade(TypedDict):
    number: int
    started: LogTime
    ended: LogTime
    first_iteration: int | None
    last_iteration: int | None
    resumed_from: int | None
    cause: Cause
    summary: str
    decision: DecisionMade | None


class GoodputShare(TypedDict):
    ratio: float | None
    wall_seconds: float
    gpus: int | None
    seconds: dict[str, float]
    gpu_hours: dict[str, float]


class Entry(TypedDict):
    time: LogTime
    kind: str
    text: str
    attempt: int
    iteration: int | None
    until: LogTime
    count: int
    file: str | None
    line: int | None


class RecordingFacts(TypedDict):
    files: list[str]
    lines: int | None
    first: LogTime
    last: LogTime
    clock: Literal["relative", "utc", "log"]
    iteration: int | None
    total_iterations: int | None


class RunBody(Envelope):
    verdict: Verdict
    decision: DecisionMade
    findings: list[Found]
    goodput: GoodputShare
    attempts: list[AttemptMade]
    incidents: list[IncidentFound]
    timeline: list[Entry]
    next_step: str | None
    runbook: str | None
    recording: RecordingFacts
    notes: list[str]


class Recording(RunBody):
    """`diagnose` and `replay` of logs or of a run of this machine."""

    kind: Literal["recording"]


class JobDiagnosis(RunBody):
    """`diagnose JOB`."""

    kind: Literal["job"]
    next_command: str | None
    job: Item
    pods: list[Item]
    nodes: list[Item] | None
    mwatch: Item
    checks: list[Item]
    unavailable: dict[str, str]
    unseen: dict[str, str]
    took_seconds: float


class OneRun(TypedDict):
    run: str
    files: list[str]
    verdict: Verdict
    decision: DecisionMade


class Runs(Envelope):
    """`diagnose`, `replay` and `report` of a folder with several runs."""

    kind: Literal["runs"]
    runs: list[OneRun]


class ReportVerdict(TypedDict):
    cause: Cause
    summary: str


class ReportFile(Envelope):
    """`report`."""

    kind: Literal["report"]
    report: str
    url: str
    bytes: int
    run: str
    verdict: ReportVerdict
    incidents: int
    goodput: float | None


class FleetJob(TypedDict):
    kind: str
    namespace: str
    name: str
    mode: str
    phase: str
    pods_running: int | None
    pods_wanted: int | None
    answering: int
    iteration: int | None
    total_iterations: int | None
    attempt: int | None
    cause: str
    summary: str
    since: Seconds | None
    since_time: NotRequired[Moment]
    source: str
    culprit: Culprit | None


class Status(Envelope):
    """`status` and `top`."""

    kind: Literal["status"]
    at: Seconds
    at_time: Moment
    jobs: list[FleetJob]
    problems: list[str]


class Change(Envelope):
    """`pause`, `resume`, `mode`, `restart` and `stop`; each command adds keys of its own."""

    kind: Literal["change"]
    command: str
    namespace: str
    job: str | None
    who: str
    text: str
    notes: list[str]
    until: NotRequired[Seconds | None]
    until_time: NotRequired[Moment]
    mode: NotRequired[str]


class Rollback(Envelope):
    """`rollback`."""

    kind: Literal["rollback"]
    command: str
    dry_run: bool
    folder: str
    iteration: int
    standing: str
    changes: list[str]
    abandoned: list[int]
    notes: list[str]


class DoctorCheck(TypedDict):
    name: str
    state: str
    text: str
    fix: str | None
    manifest: str | None


class DoctorResult(Envelope):
    """`doctor`."""

    kind: Literal["doctor"]
    is_well: bool
    checks: list[DoctorCheck]


class ListedOne(TypedDict):
    name: str
    format: str
    iteration: int | None
    state: str
    reason: str | None
    bytes: int
    files: int
    newest_mtime: Seconds | None
    newest_mtime_time: NotRequired[Moment]
    tracked: bool
    is_cut: bool
    age_seconds: float | None
    standing: str | None


class CheckpointFolder(Envelope):
    """`checkpoints DIR`."""

    kind: Literal["checkpoints"]
    folder: str
    observed_at: Seconds
    observed_at_time: Moment
    checkpoints: list[ListedOne]
    resume_from: str | None
    has_timeline: bool
    pointers: list[Item]
    leftovers: list[Item]
    left_out: int
    is_cut: bool
    notes: list[str]


class StoredOne(TypedDict):
    iteration: int
    state: str
    reason: str | None
    size_bytes: int | None
    written_at: Seconds | None
    written_at_time: NotRequired[Moment]
    age_seconds: float | None


class JobCheckpointList(Envelope):
    """`checkpoints JOB`."""

    kind: Literal["job_checkpoints"]
    job: str
    folder: str | None
    observed_at: Seconds
    observed_at_time: Moment
    pod: str | None
    tracker: str | int | None
    checkpoints: list[StoredOne]
    newest_complete: int | None
    why: str | None


class ManifestProblem(TypedDict):
    check: str
    level: str
    job: str
    line: int | None
    seen: str
    fix: str
    mend: str


class ManifestCheck(Envelope):
    """`diagnose -f`."""

    kind: Literal["manifest"]
    file: str
    jobs: list[str]
    checks: int
    findings: list[ManifestProblem]


class ManifestChange(Envelope):
    """`inject` and `uninject`."""

    kind: Literal["injected"]
    file: str
    jobs: list[str]
    notes: list[str]
    said: list[str]
    findings: list[ManifestProblem]
    objects: list[Item]


class FaultEntry(TypedDict):
    id: str
    title: str
    patterns: list[str]
    role: Role
    blame: Blame
    restart_helps: RestartHelps
    avoid_node: AvoidNode
    fix: str
    mend: str
    runbook: str
    source: str
    examples: list[str]
    xid: int | None
    cause: Cause | None
    origin: str


class OneFault(Envelope, FaultEntry):
    """`faults ID`."""

    kind: Literal["fault"]


class FaultList(Envelope):
    """`faults` without an ID."""

    kind: Literal["faults"]
    faults: list[FaultEntry]


class Plan(Envelope):
    """`plan`; the figures are there if the layout can be counted."""

    kind: Literal["plan"]
    works: bool
    model: Item
    cluster: Item
    layout: Item
    problems: list[Item]
    would_work: Item | None
    would_work_with_nodes: int | None
    memory_bytes: NotRequired[Item]
    megatron_report_mib: NotRequired[Item | None]
    bubble: NotRequired[float]
    step_seconds: NotRequired[float | None]
    step_seconds_is_estimate: NotRequired[bool]
    checkpoint_bytes: NotRequired[int]
    seconds_between_failures: NotRequired[float | None]
    saves: NotRequired[list[Item]]


class DemoFaultResult(TypedDict):
    fault: str
    detected_after_seconds: float | None
    cause: Cause | None
    rank: int | None
    action: str | None
    resume_from: int | None
    lost_iterations: int | None
    is_recovered: bool


class Demo(Envelope):
    """`demo`."""

    kind: Literal["demo"]
    is_fine: bool
    trainer: Literal["stand-in", "megatron-core"]
    seconds: float
    exit_codes: list[int]
    reports: list[str]
    faults: list[DemoFaultResult]


class RunEvent(Envelope):
    """One line of `run` and `demo` on standard error, of `sidecar` and `controller` on standard
    output; each event adds keys of its own."""

    kind: Literal["event"]
    event: str
    attempt: NotRequired[int | None]
    cause: NotRequired[Cause | None]
    summary: NotRequired[str]
    exit_code: NotRequired[int | None]
    left_out: NotRequired[int]


KINDS = (
    Recording, JobDiagnosis, Runs, ReportFile, Status, Change, CheckpointFolder, JobCheckpointList,
    Rollback, DoctorResult, ManifestCheck, ManifestChange, OneFault, FaultList, Plan, Demo,
    RunEvent,
)  # fmt: skip


def schema() -> dict[str, Any]:
    """One schema for all kinds; `$defs` has each by its name."""
    shapes, parts = msgspec.json.schema_components(KINDS, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What mwatch prints with --json",
        "oneOf": list(shapes),
        "$defs": parts,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1) + "\n")
