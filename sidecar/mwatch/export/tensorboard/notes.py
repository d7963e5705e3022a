# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents and findings on the pages of TensorBoard, next to what the trainer shows there.

`mwatch/incident` counts them at the iteration where each happened, and the text `mwatch/incidents`
says what it was, who, what was done and where the evidence is. The value of the loss at that
iteration is repeated under the loss's own name, so that TensorBoard draws a point on the loss
curve. All of it is a run of its own, in a folder `mwatch` below the trainer's.

The loop only leaves notes here, and never waits (`tensorboard_writer`). After a restart training
goes back to an earlier iteration: then there are several values for one iteration, all true.

Incidents and findings in words, as TensorBoard's text page shows them (Markdown).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mwatch.export.tensorboard.writer import MAX_QUEUED, RETRY_SECONDS, NoteWriter, Room, TextNote
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from mwatch.model.incident import IncidentRecord
from mwatch.model.snapshot.snapshot import Snapshot

MAX_CELL = 400
MAX_EARLIER = 20
"""TensorBoard shows a few texts of a tag, and always the newest: so that one lists the others."""


def incident_words(
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


def finding_words(finding: Finding) -> str:
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
    """One line, which can end no cell of a table."""
    flat = " ".join(text.split())
    return flat[:MAX_CELL].replace("\\", "\\\\").replace("|", "\\|")


GOODPUT_SECONDS = 60.0
FINDING_SECONDS = 30.0
"""One that comes and goes is not told more often."""
MAX_TEXTS = 8
"""Of one incident: found, decided, acted, evidence, over."""
_MAX_KEPT = 256
_LEVELS = {Severity.INFO: 0.0, Severity.WARNING: 1.0, Severity.CRITICAL: 2.0}
_USUAL_LOSS = "lm loss"


class _Told(NamedTuple):
    step: int
    record: IncidentRecord
    text: str
    texts: int


class _Level(NamedTuple):
    """What was last told of a detector: how bad, and when."""

    level: float
    at: float


class TensorboardNotes:
    def __init__(
        self,
        folder: Path,
        *,
        name: str = "mwatch",
        patterns: Sequence[str] = (),
        room: Room | None = None,
        retry_seconds: float = RETRY_SECONDS,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        """`folder` is the trainer's --tensorboard-dir and must be made by the trainer; `name` is
        what the run of ours is called below it. `patterns`: the user's own secrets."""
        self._writer = NoteWriter(
            folder, name,
            patterns=patterns, room=room, retry_seconds=retry_seconds, max_queued=max_queued,
        )  # fmt: skip
        self._at = 0.0
        self._step = 0
        self._losses: deque[tuple[int, str, float]] = deque(maxlen=_MAX_KEPT)
        self._goodput_at = -math.inf
        self._attempt: int | None = None
        self._levels: dict[str, _Level] = {}
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._count = 0

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Notes that nobody will ever see."""
        return self._writer.dropped

    @property
    def failures(self) -> int:
        """How often the file could not be written."""
        return self._writer.failures

    @property
    def problem(self) -> str | None:
        """Why nothing is written now, in one line and without secrets."""
        return self._writer.problem

    def looked(self, snapshot: Snapshot) -> None:
        """At each look of the loop; most of them leave nothing behind."""
        self._at = snapshot.at
        iteration = snapshot.iteration
        if iteration is not None and iteration != self._step:
            self._step = iteration
            self._moved(snapshot)
        if snapshot.phase is not None and snapshot.attempt != self._attempt:
            self._attempt = snapshot.attempt
            self._put("mwatch/restarts", float(max(0, snapshot.attempt - 1)))
        self._tell_findings(snapshot)

    def incident(self, record: IncidentRecord, iteration: int | None = None) -> None:
        """When it is found, and whenever its record has changed. `iteration`: where it happened,
        where the record does not know it; else the newest that was looked at."""
        known = self._told.get(record.id) or self._first_word(record, iteration)
        others = [(each.step, each.record) for id, each in self._told.items() if id != record.id]
        text = incident_words(record, known.step, others[-MAX_EARLIER:])
        is_new = text != known.text and known.texts < MAX_TEXTS
        if is_new:
            self._put("mwatch/incidents", text, known.step)
        last = text if is_new else known.text
        self._told[record.id] = _Told(known.step, record, last, known.texts + is_new)
        while len(self._told) > _MAX_KEPT:
            self._told.popitem(last=False)

    def close(self, seconds: float = 2.0) -> None:
        """Writes what there is, for at most so long; what is left is counted as dropped."""
        self._writer.close(seconds)

    def _moved(self, snapshot: Snapshot) -> None:
        losses = snapshot.numbers.losses
        name = _USUAL_LOSS if _USUAL_LOSS in losses else next(iter(losses), None)
        if name is not None and math.isfinite(losses[name]):
            self._losses.append((self._step, name, losses[name]))
        is_due = snapshot.at - self._goodput_at >= GOODPUT_SECONDS
        if is_due and snapshot.goodput is not None:
            self._goodput_at = snapshot.at
            self._put("mwatch/goodput", snapshot.goodput)

    def _first_word(self, record: IncidentRecord, iteration: int | None) -> _Told:
        chosen = (record.first_bad_iteration, iteration, self._step)
        step = next(each for each in chosen if each is not None)
        self._count += 1
        self._put("mwatch/incident", float(self._count), step)
        before = [each for each in self._losses if each[0] <= step]
        if before:
            _, name, loss = before[-1]
            self._put(name, loss, step)
        return _Told(step, record, "", 0)

    def _tell_findings(self, snapshot: Snapshot) -> None:
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
            self._put(f"mwatch/finding/{detector}", level)
            if finding is not None and level > last.level:
                self._put("mwatch/findings", finding_words(finding))

    def _put(self, tag: str, value: float | str, step: int | None = None) -> None:
        self._writer.put(TextNote(tag, self._step if step is None else step, self._at, value))
