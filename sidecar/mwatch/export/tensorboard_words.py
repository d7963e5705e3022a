# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents and findings in words, as TensorBoard's text page shows them (Markdown)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from mwatch.model.decision import Action
from mwatch.model.finding import Finding
from mwatch.model.incident import IncidentRecord

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
    culprit = None if finding.culprit is None else finding.culprit.told(" ")
    who = "" if culprit is None else f" ({_cell(culprit)})"
    return f"**{finding.detector}**, {finding.severity.value}: {_cell(finding.summary)}{who}"


def _facts(record: IncidentRecord, step: int) -> Iterable[tuple[str, str | None]]:
    times = record.times
    yield "incident", record.id
    yield "iteration", str(step)
    yield "attempt", str(record.attempt)
    yield "found", _moment(times.detected)
    yield "confidence", f"{record.confidence:.0%}"
    yield "culprit", None if record.culprit is None else record.culprit.told(" ")
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
