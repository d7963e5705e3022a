# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of an opened job in `mwatch top`: verdict, ranks, incidents, checkpoints, log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mwatch.cli.shared.formats import clock, duration
from mwatch.cli.shared.terminal import Line, table, width, wrapped

if TYPE_CHECKING:
    from mwatch.cli.render.job_sources import JobDetail, RankRow
    from mwatch.report.model import IncidentStory
    from mwatch.report.run_report import RunReport

_MAX_RANKS = 512
_MAX_INCIDENTS = 50
_MAX_CHECKPOINTS = 100
_SEVERITY = {"critical": "bold red", "warning": "yellow"}
_STATES = {"good": "green", "broken": "bold red", "abandoned": "yellow"}
_INDENT = "    "


def ranks(detail: JobDetail) -> Iterator[Line]:
    """The table of ranks: the culprit first, then ranks that are behind, then the others."""
    if not detail.ranks:
        yield [("no rank has reported: the probe writes one record a second in each rank", "dim")]
        return
    culprit = detail.report.verdict.culprit
    blamed = None if culprit is None else culprit.rank
    front = max(each.iteration or 0 for each in detail.ranks)
    has_pods = any(each.pod for each in detail.ranks)
    rows, styles = [("RANK", "STATE", "PHASE", "ITERATION", "LAST RECORD", "POD" * has_pods)], [""]

    def urgency(row: RankRow) -> tuple[bool, int, float, int]:
        return row.rank != blamed, row.iteration or 0, -(row.silence or 0.0), row.rank

    order = sorted(detail.ranks, key=urgency)
    for each in order[:_MAX_RANKS]:
        behind = 0 if each.iteration is None else front - each.iteration
        state = f"behind by {behind}" if behind > 1 else ""
        state = "culprit" if each.rank == blamed else state
        done = "-" if each.iteration is None else str(each.iteration)
        age = "-" if each.silence is None else f"{duration(each.silence)} ago"
        rows.append((str(each.rank), state, each.phase, done, age, each.pod))
        styles.append("bold red" if state == "culprit" else "yellow" if state else "")
    for text, style in zip(table(rows), styles, strict=True):
        yield [(text, style or ("bold" if text.startswith("RANK") else ""))]
    if len(order) > _MAX_RANKS:
        yield [(f"and {len(order) - _MAX_RANKS} more ranks", "dim")]


def incidents(detail: JobDetail) -> Iterator[Line]:
    report = detail.report
    if not report.incidents:
        yield [("no incident", "green")]
    for each in list(reversed(report.incidents))[:_MAX_INCIDENTS]:
        yield from _incident(report, each)
        yield []


def _incident(report: RunReport, incident: IncidentStory) -> Iterator[Line]:
    name = incident.cause.replace("_", " ")
    since = incident.since_iteration
    place = "" if since is None else f" since iteration {since}"
    yield [
        (f"{clock(report, incident.detected_at)}  ", "dim"),
        (name, _SEVERITY.get(incident.severity, "")),
        (f"{place}, attempt {incident.attempt}", ""),
    ]
    texts = [("culprit: ", incident.culprit or ""), ("", incident.summary)]
    if incident.action != "none":
        texts.append((f"{incident.action}: ", incident.reason))
    texts += [("stacks: ", each.text) for each in incident.stacks[:4]]
    texts += [
        (f"{'for' if each.agrees else 'against'}: ", f"{each.name}: {each.text}")
        for each in incident.witnesses
    ]
    if incident.recovered_at is not None:
        texts.append(("recovered: ", clock(report, incident.recovered_at)))
    texts.append(("next: ", incident.advice))
    for label, text in texts:
        yield from _paragraph(label, text)


def _paragraph(label: str, text: str) -> Iterator[Line]:
    if not text:
        return
    for index, part in enumerate(wrapped(f"{label}{text}", width() - len(_INDENT) - 1, 4)):
        head = label if index == 0 and part.startswith(label) else ""
        yield [(_INDENT, ""), (head, "cyan"), (part.removeprefix(head), "")]


def checkpoints(detail: JobDetail) -> Iterator[Line]:
    report = detail.report
    newest = sorted(report.checkpoints, key=lambda each: -each.iteration)[:_MAX_CHECKPOINTS]
    if not newest:
        yield [("no checkpoint is known", "dim")]
        return
    rows = [("ITERATION", "SAVED", "STATE", "IN THE FOLDER", "REMARK")]
    rows += [
        (str(each.iteration), clock(report, each.saved_at), each.state, each.stored or "-",
         each.reason)
        for each in newest
    ]  # fmt: skip
    styles = ["bold", *(_STATES.get(each.state, "") for each in newest)]
    for text, style in zip(table(rows), styles, strict=True):
        yield [(text, style)]


def log(detail: JobDetail) -> Iterator[Line]:
    shown = [each for each in detail.log if each.lines]
    if not shown:
        yield [("no line of the log could be read", "dim")]
    for each in shown:
        yield [(f"end of {each.file}", "bold cyan")]
        yield from ([(line, "")] for line in each.lines)
        yield []


SECTIONS: dict[str, Callable[[JobDetail], Iterator[Line]]] = {
    "Verdict": lambda detail: iter(detail.verdict()),
    "Ranks": ranks,
    "Incidents": incidents,
    "Checkpoints": checkpoints,
    "Log": log,
}
"""The sections by title, in the order of the keys 1 to 5."""
