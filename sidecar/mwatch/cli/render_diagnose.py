# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One screen about a run: what happened, who, since when, why we think so, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mwatch.cli.terminal import Line, width, wrapped
from mwatch.cli.words import clock, deed, duration, place, share, who

if TYPE_CHECKING:
    from mwatch.app.report import Report

SCREEN = 24
"""Lines of the smallest terminal; the prompt that follows needs one of them."""
_LABEL = 11
_ROOM = ((4, 3), (3, 1), (2, 0))
"""Lines of evidence, and of what else is wrong: the most that fits on the screen is shown."""
_NOTES = 3
STYLES = {0: "bold green", 1: "bold red", 3: "bold yellow"}
"""By exit code."""


def render(report: Report) -> list[Line]:
    head = list(_head(report))
    lines: list[Line] = []
    for evidence, others in _ROOM:
        lines = [*head, *_facts(report, evidence, others)]
        if len(lines) < SCREEN:
            break
    return [*lines, *_notes(report, SCREEN - 1 - len(lines))]


def headline(report: Report) -> Line:
    said = report.verdict
    since = "" if said.since_iteration is None else f" since iteration {said.since_iteration}"
    if said.since_time is not None:
        since += f" ({clock(report, said.since_time)})"
    cause = said.cause.value.upper().replace("_", " ")
    return [(cause, STYLES[report.exit_code]), (since, "bold")]


def _head(report: Report) -> Iterator[Line]:
    yield headline(report)
    for text in wrapped(report.verdict.summary, width() - 1, 3):
        yield [(text, "")]
    yield []


def _facts(report: Report, evidence: int, others: int) -> Iterator[Line]:
    if report.files:
        yield from _row("run", _run(report), 1)
    culprit = who(report.verdict.culprit)
    if culprit:
        yield from _row("who", culprit, 1)
    yield from _evidence(report, evidence)
    yield from _row("mwatch", _action(report), 2)
    if report.decision.resume_reason:
        yield from _row("", report.decision.resume_reason, 2)
    if report.decision.proposal:
        yield from _row("", report.decision.proposal, 2)
    yield from _others(report, others)
    if report.ledger.goodput is not None and report.ledger.wall_seconds > 0:
        spent = f"{report.ledger.goodput:.1%} of {duration(report.ledger.wall_seconds)}"
        yield from _row("goodput", spent + _worst(report), 1)
    yield from _row("next", report.advice.step, 2)
    if report.advice.runbook:
        yield from _row("runbook", f"runbooks/{report.advice.runbook}.md", 1)


def _row(label: str, text: str, most: int) -> Iterator[Line]:
    for index, part in enumerate(wrapped(text, width() - _LABEL - 1, most)):
        yield [((label if index == 0 else "").ljust(_LABEL), "cyan"), (part, "")]


def _run(report: Report) -> str:
    count = len(report.files)
    files = report.files[0] if count == 1 else f"{count} files"
    parts = [f"{files}, {report.lines} lines"]
    if report.last_at is not None:
        parts.append(f"{clock(report, report.first_at)} to {clock(report, report.last_at)}")
    if len(report.attempts) > 1:
        parts.append(f"{len(report.attempts)} attempts")
    if report.iteration is not None:
        of = "" if report.total_iterations is None else f" of {report.total_iterations}"
        parts.append(f"iteration {report.iteration}{of}")
    return ", ".join(parts)


def _evidence(report: Report, most: int) -> Iterator[Line]:
    finding = report.finding
    seen = finding.evidence if finding else ()
    for index, each in enumerate(seen[:most]):
        label = "evidence" if index == 0 else ""
        text = " ".join(each.text.split())
        yield [(label.ljust(_LABEL), "cyan"), (place(each), "dim"), (f"  {text}", "")]


def _action(report: Report) -> str:
    text = f"would {deed(report.decision)}"
    if report.acted_at is not None:
        text = f"would have acted at {clock(report, report.acted_at)}: {deed(report.decision)}"
    if report.decision.avoid_node:
        text += ", away from this node"
    if report.decision.action.value == "none" and report.decision.reason:
        text += f": {report.decision.reason}"
    return text


def _others(report: Report, most: int) -> Iterator[Line]:
    """What else is wrong, and what was wrong in earlier attempts."""
    said = report.verdict
    others = [
        each
        for each in report.findings
        if each.cause is not said.cause and each.summary != said.summary
    ]
    for index, each in enumerate(others[:most]):
        yield from _row("also" if index == 0 else "", f"{each.cause.value}: {each.summary}", 1)
    past = [each for each in report.attempts[:-1] if each.cause.value != "finished"]
    if past:
        shown = [f"{each.number} {each.cause.value.replace('_', ' ')}" for each in past[-4:]]
        more = f" (and {len(past) - 4} before)" if len(past) > 4 else ""
        yield from _row("earlier", f"attempt {', '.join(shown)}{more}", 1)


def _worst(report: Report) -> str:
    spent = report.ledger.seconds
    lost = {part: took for part, took in spent.items() if part.value != "training" and took > 0}
    worst = sorted(lost, key=lambda part: -lost[part])[:3]
    whole = report.ledger.wall_seconds
    named = ", ".join(
        f"{part.value.replace('_', ' ')} {share(lost[part], whole)}" for part in worst
    )
    return f"; {named}" if named else ""


def _notes(report: Report, room: int) -> Iterator[Line]:
    notes = list(report.notes)
    if report.is_relative:
        notes.insert(0, "the log prints no times: moments are relative to its first line")
    most = max(0, min(_NOTES, room))
    for note in notes[:most]:
        yield from _row("note", note, 1)
