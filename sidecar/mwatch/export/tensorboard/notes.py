# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shows incidents and findings in TensorBoard, as a run of its own beside the trainer's.

`mwatch/incident` counts incidents at the iteration where each happened; the text `mwatch/incidents`
has the details. The loss at that iteration is repeated under its own name, so that TensorBoard
draws a point on the loss curve. After a restart training goes back, so an iteration may have
several values.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.export.tensorboard.writer import NoteWriter, TextNote
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from mwatch.model.incident import IncidentRecord
from mwatch.model.snapshot.snapshot import Snapshot

MAX_CELL = 400
MAX_EARLIER = 20
"""TensorBoard shows only a few texts of a tag, so the newest lists the earlier incidents."""


def incident_markdown(
    record: IncidentRecord, step: int, earlier: Iterable[tuple[int, IncidentRecord]] = ()
) -> str:
    lines = [f"### {record.cause.value}: {_cell(record.summary)}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in _facts(record, step) if value]
    others = list(earlier)[-MAX_EARLIER:]
    if others:
        lines += ["", "Earlier:", "", "| iteration | when | cause | action |"]
        lines += ["| --- | --- | --- | --- |"]
        for number, each in reversed(others):
            when = _moment(each.times.detected) or ""
            lines.append(f"| {number} | {when} | {each.cause.value} | {each.action.value} |")
    return "\n".join(lines)


def finding_markdown(finding: Finding) -> str:
    culprit = None if finding.culprit is None else finding.culprit.label(" ")
    who = "" if culprit is None else f" ({_cell(culprit)})"
    return f"**{finding.detector}**, {finding.severity.value}: {_cell(finding.summary)}{who}"


def _facts(record: IncidentRecord, step: int) -> Iterable[tuple[str, str | None]]:
    times = record.times
    yield "incident", record.id
    yield "iteration", str(step)
    yield "attempt", str(record.attempt)
    yield "found", _moment(times.detected)
    yield "confidence", f"{record.confidence:.0%}"
    yield "culprit", None if record.culprit is None else record.culprit.label(" ")
    yield "action", _action(record)
    yield "resumed from", _resumed(record)
    yield "training again", _moment(times.first_new_iteration)
    yield "lost", _lost(record)
    yield "evidence", None if record.evidence is None else record.evidence.folder


def _action(record: IncidentRecord) -> str:
    if record.action is Action.NONE:
        return f"none: {record.reason}" if record.reason else "none"
    done = "" if record.is_carried_out else " (only observed: not carried out)"
    return f"{record.action.value}{done}: {record.reason}"


def _resumed(record: IncidentRecord) -> str | None:
    if record.action is not Action.RESTART:
        return None
    if record.resume_from is None:
        return "the beginning"
    why = f" ({record.resume_reason})" if record.resume_reason else ""
    return f"iteration {record.resume_from}{why}"


def _lost(record: IncidentRecord) -> str | None:
    parts = []
    if record.lost_iterations is not None:
        parts.append(f"{record.lost_iterations} iterations")
    if record.gpu_seconds is not None:
        parts.append(f"{record.gpu_seconds:.0f} GPU-seconds")
    return ", ".join(parts) or None


def _moment(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cell(text: str) -> str:
    """Return one line that is safe in a table cell."""
    flat = " ".join(text.split())
    return flat[:MAX_CELL].replace("\\", "\\\\").replace("|", "\\|")


GOODPUT_SECONDS = 60.0
FINDING_SECONDS = 30.0
"""A finding that comes and goes is not written more often."""
MAX_TEXTS = 8
"""Of one incident: found, decided, acted, evidence, over."""
_MAX_KEPT = 256
_LEVELS = {Severity.INFO: 0.0, Severity.WARNING: 1.0, Severity.CRITICAL: 2.0}
_USUAL_LOSS = "lm loss"


class _Written(NamedTuple):
    step: int
    record: IncidentRecord
    text: str
    texts: int


class _Level(NamedTuple):
    level: float
    at: float


class TensorboardNotes(NoteWriter):
    def __init__(self, folder: Path, **options: Any) -> None:
        """`folder` is the trainer's --tensorboard-dir; `options`: see NoteWriter."""
        super().__init__(folder, **options)
        self._at = 0.0
        self._step = 0
        self._losses: deque[tuple[int, str, float]] = deque(maxlen=_MAX_KEPT)
        self._goodput_at = -math.inf
        self._attempt: int | None = None
        self._levels: dict[str, _Level] = {}
        self._incidents: OrderedDict[str, _Written] = OrderedDict()
        self._count = 0

    def update(self, snapshot: Snapshot) -> None:
        self._at = snapshot.at
        iteration = snapshot.iteration
        if iteration is not None and iteration != self._step:
            self._step = iteration
            self._moved(snapshot)
        if snapshot.phase is not None and snapshot.attempt != self._attempt:
            self._attempt = snapshot.attempt
            self._note("mwatch/restarts", float(max(0, snapshot.attempt - 1)))
        self._write_findings(snapshot)

    def incident(self, record: IncidentRecord, iteration: int | None = None) -> None:
        """Note a new or changed incident. `iteration`: where it happened, if the record does not
        have it; by default the newest one."""
        known = self._incidents.get(record.id) or self._first_note(record, iteration)
        others = [
            (each.step, each.record) for id, each in self._incidents.items() if id != record.id
        ]
        text = incident_markdown(record, known.step, others[-MAX_EARLIER:])
        is_new = text != known.text and known.texts < MAX_TEXTS
        if is_new:
            self._note("mwatch/incidents", text, known.step)
        last = text if is_new else known.text
        self._incidents[record.id] = _Written(known.step, record, last, known.texts + is_new)
        while len(self._incidents) > _MAX_KEPT:
            self._incidents.popitem(last=False)

    def _moved(self, snapshot: Snapshot) -> None:
        losses = snapshot.numbers.losses
        name = _USUAL_LOSS if _USUAL_LOSS in losses else next(iter(losses), None)
        if name is not None and math.isfinite(losses[name]):
            self._losses.append((self._step, name, losses[name]))
        is_due = snapshot.at - self._goodput_at >= GOODPUT_SECONDS
        if is_due and snapshot.goodput is not None:
            self._goodput_at = snapshot.at
            self._note("mwatch/goodput", snapshot.goodput)

    def _first_note(self, record: IncidentRecord, iteration: int | None) -> _Written:
        chosen = (record.first_bad_iteration, iteration, self._step)
        step = next(each for each in chosen if each is not None)
        self._count += 1
        self._note("mwatch/incident", float(self._count), step)
        before = [each for each in self._losses if each[0] <= step]
        if before:
            _, name, loss = before[-1]
            self._note(name, loss, step)
        return _Written(step, record, "", 0)

    def _write_findings(self, snapshot: Snapshot) -> None:
        worst: dict[str, Finding] = {}
        for each in snapshot.findings:
            known = worst.get(each.detector, each)
            worst[each.detector] = max(known, each, key=lambda one: _LEVELS[one.severity])
        for detector in sorted(worst.keys() | self._levels.keys()):
            finding, last = worst.get(detector), self._levels.get(detector, _Level(0.0, -math.inf))
            level = 0.0 if finding is None else _LEVELS[finding.severity]
            if level == last.level or snapshot.at - last.at < FINDING_SECONDS:
                continue
            self._levels[detector] = _Level(level, snapshot.at)
            self._note(f"mwatch/finding/{detector}", level)
            if finding is not None and level > last.level:
                self._note("mwatch/findings", finding_markdown(finding))

    def _note(self, tag: str, value: float | str, step: int | None = None) -> None:
        self.put(TextNote(tag, self._step if step is None else step, self._at, value))
