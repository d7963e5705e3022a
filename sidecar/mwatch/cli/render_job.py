# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One screen about a live job: what, since when, who, why we think so, what was done, what next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mwatch.cli.render_diagnose import SCREEN, STYLES
from mwatch.cli.terminal import Line, width, wrapped
from mwatch.cli.words import deed, duration, place, who

if TYPE_CHECKING:
    from mwatch.app.diagnose_job_report import JobReport
    from mwatch.model.finding import Finding

_LABEL = 11
_ROOM = ((4, 3, 3), (3, 2, 2), (2, 1, 1), (1, 0, 1))
"""Lines of evidence, of other findings, of checks: the most that fits is shown."""
_LEVELS = {"error": "red", "warning": "yellow", "info": "cyan"}


def render(job: JobReport) -> list[Line]:
    head = list(_head(job))
    lines: list[Line] = []
    for evidence, others, checks in _ROOM:
        lines = [*head, *_facts(job, evidence, others, checks)]
        if len(lines) < SCREEN:
            break
    room = SCREEN - 1 - len(lines)
    notes = [line for note in job.notes[: max(0, min(3, room))] for line in _row("note", note, 1)]
    return [*lines, *notes]


def _head(job: JobReport) -> Iterator[Line]:
    said = job.report.verdict
    since = "" if said.since_iteration is None else f" since iteration {said.since_iteration}"
    if said.since_time is not None:
        ago = max(0.0, job.facts.kube.now - said.since_time)
        since += f" ({_clock(said.since_time)}, {duration(ago)} ago)"
    about = job.facts.job
    title = f"  {about.kind.value} {about.namespace}/{about.name}"
    cause = said.cause.value.upper().replace("_", " ")
    yield [(cause, STYLES[job.exit_code]), (since, "bold"), (title, "dim")]
    for text in wrapped(said.summary, width() - 1, 2):
        yield [(text, "")]
    yield []


def _facts(job: JobReport, evidence: int, others: int, checks: int) -> Iterator[Line]:
    yield from _row("job", _state(job), 1)
    culprit = who(job.report.verdict.culprit)
    if culprit:
        yield from _row("who", culprit, 1)
    yield from _evidence(job, evidence)
    yield from _mwatch(job)
    yield from _others(job, others)
    yield from _checks(job, checks)
    yield from _row("next", job.report.advice.step, 2)
    yield [("type".ljust(_LABEL), "cyan"), (job.next_command, "bold")]
    if job.report.advice.runbook:
        yield from _row("runbook", f"runbooks/{job.report.advice.runbook}.md", 1)


def _row(label: str, text: str, most: int) -> Iterator[Line]:
    for index, part in enumerate(wrapped(text, width() - _LABEL - 1, most)):
        yield [((label if index == 0 else "").ljust(_LABEL), "cyan"), (part, "")]


def _state(job: JobReport) -> str:
    kube = job.facts.job
    pods = job.facts.kube.pods
    running = sum(pod.phase == "Running" for pod in pods)
    parts = [kube.finished or ("Suspended" if kube.is_suspended else "Active")]
    if job.phase is not None and not kube.finished:
        parts[0] += f", {job.phase.value}"
    parts.append(f"{running} of {kube.pods_wanted} pods run")
    restarts = sum(pod.restarts for pod in pods)
    if restarts:
        parts.append(f"{restarts} restarts")
    if job.report.iteration is not None:
        of = job.report.total_iterations
        parts.append(f"iteration {job.report.iteration}" + (f" of {of}" if of else ""))
    if len(job.report.attempts) > 1:
        parts.append(f"attempt {job.report.attempts[-1].number}")
    return f"{', '.join(parts)}; {_seen(job)}"


def _seen(job: JobReport) -> str:
    if job.answering:
        return f"{job.answering} sidecars and {job.logs_read} logs read"
    return f"{job.logs_read} logs read, no sidecar"


def _evidence(job: JobReport, most: int) -> Iterator[Line]:
    finding = _lead(job)
    for index, each in enumerate((finding.evidence if finding else ())[:most]):
        label = "evidence" if index == 0 else ""
        at = job.evidence_time(each)
        stamp = "" if at is None else f"{_clock(at)[-8:]} "
        text = " ".join(each.text.split())
        yield [(label.ljust(_LABEL), "cyan"), (f"{stamp}{place(each)}", "dim"), (f"  {text}", "")]


def _lead(job: JobReport) -> Finding | None:
    found = job.report.finding
    if found is not None and found.evidence:
        return found
    same = [each for each in job.report.findings if each.cause is job.report.verdict.cause]
    return next((each for each in same if each.evidence), found)


def _mwatch(job: JobReport) -> Iterator[Line]:
    kube, decision = job.facts.job, job.report.decision
    told = [_deed(at, text) for at, text, _ in job.deeds[:3]]
    if not kube.is_watched:
        told.append("does not watch this job (no label mwatch.dev/watch)")
    wish = f"would {deed(decision)}"
    if decision.action.value == "none" and decision.reason != job.report.verdict.summary:
        wish += f": {decision.reason}"
    told.append(f"{wish} (mode {kube.mode})")
    for index, text in enumerate(told):
        yield from _row("mwatch" if index == 0 else "", text, 1)


def _deed(at: float | None, text: str) -> str:
    return text if at is None else f"{_clock(at)} {text}"


def _others(job: JobReport, most: int) -> Iterator[Line]:
    said = job.report.verdict
    others = [
        each
        for each in job.report.findings
        if each.cause is not said.cause and each.summary != said.summary
    ]
    for index, each in enumerate(others[:most]):
        yield from _row("also" if index == 0 else "", f"{each.cause.value}: {each.summary}", 1)


def _checks(job: JobReport, most: int) -> Iterator[Line]:
    found = job.found
    counts = [f"{sum(one.level.value == level for one in found)} {level}s" for level in _LEVELS]
    unseen = sum(each.state.value == "not observable" for each in job.checks)
    total = f"{len(job.checks)} made: {', '.join(counts[:2])}, {unseen} not observable"
    yield from _row("checks", total + ("" if len(found) <= most else "; all of them: --json"), 1)
    for each in found[:most]:
        style = _LEVELS[each.level.value]
        text = wrapped(f"{each.what}; {each.mend}", width() - _LABEL - 10, 1)[0]
        yield [(" " * _LABEL, ""), (each.level.value.ljust(9), style), (text, "")]


def _clock(at: float) -> str:
    from mwatch.app.report import iso

    return iso(at).replace("T", " ")[:19]
