# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The whole story of a recorded run: timeline, attempts, findings with their lines, goodput."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mwatch.cli.render_diagnose import headline
from mwatch.cli.terminal import Line, width, wrapped
from mwatch.cli.words import clock, deed, duration, place, share, who

if TYPE_CHECKING:
    from mwatch.app.chronicle import Entry
    from mwatch.app.engine import Incident
    from mwatch.app.report import Report
    from mwatch.model.finding import Finding

_MAX_TIMELINE = 60
_SEVERITY = {"critical": "red", "warning": "yellow", "info": ""}
_KINDS = {"attempt": "bold", "action": "bold magenta", "incident": "red", "done": "green"}


def render(report: Report) -> list[Line]:
    return [
        headline(report),
        *([(text, "")] for text in wrapped(report.verdict.summary, width() - 1, 3)),
        *_timeline(report),
        *_attempts(report),
        *_findings(report),
        *_decision(report),
        *_goodput(report),
        *([(f"note: {note}", "dim")] for note in report.notes),
    ]


def _title(text: str) -> Iterator[Line]:
    yield []
    yield [(text, "bold cyan")]


def _timeline(report: Report) -> Iterator[Line]:
    told = [(entry.at, entry.kind, _told(report, entry)) for entry in report.timeline]
    told += _incidents(report)
    told.sort(key=lambda each: each[0])
    yield from _title("TIMELINE" + (" (from the first line)" if report.is_relative else ""))
    left_out = max(0, len(told) - _MAX_TIMELINE)
    half = _MAX_TIMELINE // 2
    kept = told if not left_out else [*told[:half], *told[-half:]]
    date = ""
    for index, (at, kind, text) in enumerate(kept):
        if left_out and index == half:
            yield [(f"  … {left_out + report.left_out} entries left out; --json has them", "dim")]
        whole = clock(report, at)
        shown = whole if whole[:10] != date else whole[11:].rjust(len(whole))
        date = date if report.is_relative else whole[:10]
        yield [(f"  {shown}  ", "dim"), (text, _KINDS.get(kind, ""))]


def _incidents(report: Report) -> Iterator[tuple[float, str, str]]:
    """What came and went again and again is told once."""
    groups: dict[tuple[int, str, str], list[Incident]] = {}
    for each in report.incidents:
        key = (each.attempt, each.finding.detector, each.cause.value)
        groups.setdefault(key, []).append(each)
    for (_, _, cause), group in groups.items():
        first, last = group[0], group[-1]
        text = f"{cause}: {first.finding.summary}"
        if len(group) > 1:
            text = f"{cause}, {len(group)} times until {clock(report, last.detected_at)}: "
            text += last.finding.summary
        yield first.detected_at, "incident", text
        has_healed = last.closed_at is not None and last.attempt == report.attempts[-1].number
        if has_healed and last.acted_at is None and last.closed_at is not None:
            yield last.closed_at, "healed", f"{cause}: no longer so"


def _told(report: Report, entry: Entry) -> str:
    if entry.kind == "save":
        if entry.count > 1:
            until = clock(report, entry.until, with_date=False)
            last = f"the last at iteration {entry.iteration} ({until})"
            return f"saved {entry.count} checkpoints, {last}"
        return f"saved checkpoint {entry.iteration}"
    if entry.kind == "validation":
        times = f" {entry.count} times, the last" if entry.count > 1 else ""
        return f"evaluated{times} at iteration {entry.iteration}"
    return entry.text


def _attempts(report: Report) -> Iterator[Line]:
    if not report.attempts:
        return
    head = ("#", "STARTED", "LASTED", "ITERATIONS", "FROM", "ENDED BY", "MWATCH WOULD")
    rows = [head]
    for each in report.attempts:
        ended = each.ended_at if each.ended_at is not None else report.last_at
        lasted = "?" if ended is None else duration(max(0.0, ended - each.started_at))
        first, last = each.first_iteration, each.last_iteration
        done = "-" if last is None else f"{first}-{last}"
        came_from = "-" if each.resumed_from is None else str(each.resumed_from)
        would = "-" if each.decision is None else deed(each.decision)
        rows.append(
            (str(each.number), clock(report, each.started_at), lasted, done, came_from,
             each.cause.value, would)
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    yield from _title("ATTEMPTS")
    for index, row in enumerate(rows):
        cells = (text.ljust(wide) for text, wide in zip(row, widths, strict=True))
        yield [("  " + "  ".join(cells), "dim" if index == 0 else "")]


def _findings(report: Report) -> Iterator[Line]:
    if not report.findings:
        return
    yield from _title("FINDINGS at the end")
    for finding in report.findings:
        yield [
            (f"  {finding.severity.value:<9}", _SEVERITY[finding.severity.value]),
            (f"{finding.cause.value} ", "bold"),
            (f"({finding.detector}) {finding.summary}", ""),
        ]
        yield from _proof(finding)


def _proof(finding: Finding) -> Iterator[Line]:
    culprit = who(finding.culprit)
    if culprit:
        yield [("           who: ", "cyan"), (culprit, "")]
    for each in finding.evidence:
        yield [(f"           {place(each)}", "dim"), (f"  {' '.join(each.text.split())}", "")]


def _decision(report: Report) -> Iterator[Line]:
    decision = report.decision
    yield from _title("MWATCH")
    when = "" if report.acted_at is None else f" at {clock(report, report.acted_at)}"
    yield [(f"  would {deed(decision)}{when}", "bold")]
    for text in (decision.reason, decision.resume_reason, decision.proposal or ""):
        for part in wrapped(text, width() - 4, 3) if text else ():
            yield [(f"  {part}", "")]
    for witness in decision.witnesses:
        voice = "for" if witness.agrees else "against"
        yield [(f"  {voice:<8}", "cyan"), (f"{witness.name}: {witness.text}", "")]
    yield [("  next: ", "cyan"), (report.advice.step, "")]
    if report.advice.runbook:
        yield [("  see:  ", "cyan"), (f"runbooks/{report.advice.runbook}.md", "")]


def _goodput(report: Report) -> Iterator[Line]:
    ledger = report.ledger
    whole = ledger.wall_seconds
    if ledger.goodput is None:
        return
    gpus = (
        ""
        if report.world_size is None
        else f", {report.world_size} GPU" + "s" * (report.world_size > 1)
    )
    yield from _title(f"GOODPUT {ledger.goodput:.1%} of {duration(whole)}{gpus}")
    for part, seconds in sorted(ledger.seconds.items(), key=lambda item: -item[1]):
        if seconds > 0:
            hours = ledger.gpu_seconds[part] / 3600.0
            name = part.value.replace("_", " ")
            yield [
                (f"  {name:<18}", "green" if part.value == "training" else ""),
                (f"{duration(seconds):>14}{share(seconds, whole):>8}{hours:>12.2f} GPU-h", ""),
            ]
