# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reports on a terminal: `diagnose` on one screen, `replay` in full, a live job, a manifest.

One screen shows what happened, the culprit, since when, the evidence, the actions taken, and the
next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mwatch.cli.shared.formats import action_text, clock, culprit_text, duration, place, share
from mwatch.cli.shared.terminal import Line, cut_middle, table, width, wrapped
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.diagnose.manifest import ManifestReport
    from mwatch.diagnose.report import JobReport
    from mwatch.model.checks import Problem
    from mwatch.model.finding import Evidence, Finding
    from mwatch.report.run_report import RunReport


SCREEN = 24
"""Lines of the smallest supported terminal, including one for the next prompt."""
_LABEL = 11
_ROOM = ((4, 3), (3, 1), (2, 0))
"""Numbers of lines of evidence and of other findings: the first pair that fits is used."""
_NOTES = 3
STYLES = {0: "bold green", 1: "bold red", 3: "bold yellow"}
"""Style of the headline by exit code."""


def render_diagnosis(report: RunReport) -> list[Line]:
    head: list[Line] = [headline(report), *_summary(report, 3), []]
    lines: list[Line] = []
    for evidence, others in _ROOM:
        lines = [*head, *_facts(report, evidence, others)]
        if len(lines) < SCREEN:
            break
    notes = list(report.notes)
    if report.clock.is_relative:
        notes.insert(0, "the log prints no times: moments are relative to its first line")
    return [*lines, *_notes(notes, SCREEN - 1 - len(lines))]


def render_runs(folder: str, runs: Sequence[tuple[Sequence[str], RunReport]]) -> Iterator[Line]:
    """Several runs in one folder, each with its verdict and its files."""
    yield [(f"{folder} holds {len(runs)} runs; each is judged alone", "bold")]
    for files, report in runs:
        yield []
        more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
        yield [*headline(report), (f"  {files[0]}{more}", "")]
        yield from _summary(report, 2)
        yield [(f"next: {report.advice.step}", "dim")]


def headline(report: RunReport, now: float | None = None) -> Line:
    """`now`: given for a live run, to show how long ago the fault began."""
    verdict = report.verdict
    since = "" if verdict.since_iteration is None else f" since iteration {verdict.since_iteration}"
    if verdict.since_time is not None:
        ago = "" if now is None else f", {duration(max(0.0, now - verdict.since_time))} ago"
        since += f" ({clock(report, verdict.since_time)}{ago})"
    cause = verdict.cause.value.upper().replace("_", " ")
    return [(cause, STYLES[report.exit_code]), (since, "bold")]


def _summary(report: RunReport, most: int) -> Iterator[Line]:
    for text in wrapped(report.verdict.summary, width() - 1, most):
        yield [(text, "")]


def _facts(report: RunReport, evidence: int, others: int) -> Iterator[Line]:
    if report.files or report.attempts:
        yield from _row("run", _run(report), 1)
    culprit = culprit_text(report.verdict.culprit)
    if culprit:
        yield from _row("culprit", culprit, 3)
    yield from _evidence(report.finding, evidence)
    yield from _stacks(report.finding, others + 1)
    yield from _row("mwatch", _action(report), 2)
    if report.decision.resume_reason:
        yield from _row("", report.decision.resume_reason, 2)
    if report.decision.proposal:
        yield from _row("", report.decision.proposal, 2)
    yield from _others(report, others)
    if report.goodput is not None and report.wall_seconds > 0:
        spent = f"{report.goodput:.1%} of {duration(report.wall_seconds)}"
        yield from _row("goodput", spent + _worst(report), 1)
    yield from _row("next", report.advice.step, 2)
    if report.advice.runbook:
        yield from _row("runbook", f"mwatch runbook {report.advice.runbook}", 1)


def _row(label: str, text: str, most: int) -> Iterator[Line]:
    for index, part in enumerate(wrapped(text, width() - _LABEL - 1, most)):
        yield [((label if index == 0 else "").ljust(_LABEL), "cyan"), (part, "")]


def _run(report: RunReport) -> str:
    count = len(report.files)
    parts = [f"{report.run} ({report.mode})"]
    if count:
        files = report.files[0] if count == 1 else f"{count} files"
        parts = [f"{files}, {report.lines} lines"]
    if report.ended_at is not None:
        begin, end = clock(report, report.started_at), clock(report, report.ended_at)
        if begin != end or not report.clock.is_relative:  # otherwise the log has no timestamps
            parts.append(f"{begin} to {end}")
    if len(report.attempts) > 1:
        parts.append(f"{len(report.attempts)} attempts")
    if report.iteration is not None:
        of = "" if report.total_iterations is None else f" of {report.total_iterations}"
        parts.append(f"iteration {report.iteration}{of}")
    return ", ".join(parts)


def _evidence(
    finding: Finding | None, most: int, stamp: Callable[[Evidence], str] = lambda each: ""
) -> Iterator[Line]:
    for index, each in enumerate((finding.evidence if finding else ())[:most]):
        label = "evidence" if index == 0 else ""
        where = f"{stamp(each)}{place(each)}"
        text = cut_middle(scrub_text(each.text), width() - _LABEL - len(where) - 2)
        yield [(label.ljust(_LABEL), "cyan"), (where, "dim"), (f"  {text}", "")]


def _stacks(finding: Finding | None, most: int) -> Iterator[Line]:
    """Where in the code the ranks are; with little room, only the largest and smallest group."""
    groups = finding.stacks if finding is not None else ()
    shown = groups if len(groups) <= most else (*groups[: most - 1], groups[-1])
    for index, each in enumerate(shown[-most:]):
        yield from _row("stacks" if index == 0 else "", each.text, 1)


def _action(report: RunReport) -> str:
    text = _acted(report)
    if report.decision.avoid_node:
        text += ", away from this node"
    if report.decision.action.value == "none" and report.decision.reason:
        text += f": {report.decision.reason}"
    return text


def _acted(report: RunReport) -> str:
    is_act = report.mode == "act"
    if report.acted_at is not None:
        verb = "acted" if is_act else "would have acted"
        return f"{verb} at {clock(report, report.acted_at)}: {action_text(report.decision)}"
    times = sum(each.acted_at is not None for each in report.incidents)
    if is_act and times:
        return "acted once" if times == 1 else f"acted {times} times"
    if report.decision.is_advice:
        return f"advises: {action_text(report.decision)}; {_own_action(report)}"
    return f"would {action_text(report.decision)}"


def _own_action(report: RunReport) -> str:
    """The action that mwatch would take by itself, if it differs from the advice."""
    own = report.attempts[-1].decision if report.attempts else None
    if own is None or own.is_advice or own.action.value == "none":
        return "mwatch itself would not act"
    return f"mwatch itself would {action_text(own)}"


def _others(report: RunReport, most: int) -> Iterator[Line]:
    yield from _other_findings(report, most)
    past = [each for each in report.attempts[:-1] if each.cause.value != "finished"]
    if past:
        shown = [f"{each.number} {each.cause.value.replace('_', ' ')}" for each in past[-4:]]
        more = f" (and {len(past) - 4} before)" if len(past) > 4 else ""
        yield from _row("earlier", f"attempt {', '.join(shown)}{more}", 1)


def _worst(report: RunReport) -> str:
    lost = [each for each in report.spent if each.name != "training" and each.seconds > 0]
    worst = sorted(lost, key=lambda each: -each.seconds)[:3]
    named = ", ".join(
        f"{each.name.replace('_', ' ')} {share(each.seconds, report.wall_seconds)}"
        for each in worst
    )
    return f"; {named}" if named else ""


def _notes(notes: Sequence[str], room: int) -> Iterator[Line]:
    for note in notes[: max(0, min(_NOTES, room))]:
        yield from _row("note", note, 1)


_MAX_TIMELINE = 60
_SEVERITY = {"critical": "red", "warning": "yellow", "info": ""}
_KINDS = {"attempt": "bold", "action": "bold magenta", "incident": "red", "done": "green"}


def render_replay(report: RunReport) -> list[Line]:
    return [
        headline(report),
        *_summary(report, 3),
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


def _timeline(report: RunReport) -> Iterator[Line]:
    entries = [(entry.at, entry.kind, entry.text) for entry in report.timeline]
    entries += _incidents(report)
    entries.sort(key=lambda each: each[0])
    yield from _title("TIMELINE" + (" (from the first line)" if report.clock.is_relative else ""))
    left_out = max(0, len(entries) - _MAX_TIMELINE)
    half = _MAX_TIMELINE // 2
    kept = entries if not left_out else [*entries[:half], *entries[-half:]]
    date = ""
    for index, (at, kind, text) in enumerate(kept):
        if left_out and index == half:
            yield [(f"  … {left_out + report.left_out} entries left out; --json has them", "dim")]
        whole = clock(report, at)
        shown = whole if whole[:10] != date else whole[11:].rjust(len(whole))
        date = date if report.clock.is_relative else whole[:10]
        yield [(f"  {shown}  ", "dim"), (text, _KINDS.get(kind, ""))]


def _incidents(report: RunReport) -> Iterator[tuple[float, str, str]]:
    for each in report.incidents:
        times = f", {each.times} times" if each.times > 1 else ""
        yield each.detected_at, "incident", f"{each.cause}{times}: {each.summary}"
        is_last = each.attempt == report.attempts[-1].number
        if each.closed_at is not None and is_last and each.acted_at is None:
            yield each.closed_at, "healed", f"{each.cause}: no longer present"


def _attempts(report: RunReport) -> Iterator[Line]:
    if not report.attempts:
        return
    acts = "MWATCH DID" if report.mode == "act" else "MWATCH WOULD"
    head = ("#", "STARTED", "LASTED", "ITERATIONS", "FROM", "ENDED BY", acts)
    rows = [head]
    for each in report.attempts:
        ended = each.ended_at if each.ended_at is not None else report.ended_at
        lasted = "?" if ended is None else duration(max(0.0, ended - each.started_at))
        first, last = each.first_iteration, each.last_iteration
        done = "-" if last is None else f"{first}-{last}"
        came_from = "-" if each.resumed_from is None else str(each.resumed_from)
        would = "-" if each.decision is None else action_text(each.decision)
        rows.append(
            (str(each.number), clock(report, each.started_at), lasted, done, came_from,
             each.cause.value, would)
        )  # fmt: skip
    yield from _title("ATTEMPTS")
    for index, line in enumerate(table(rows)):
        yield [(f"  {line}", "dim" if index == 0 else "")]


def _findings(report: RunReport) -> Iterator[Line]:
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
    culprit = culprit_text(finding.culprit)
    if culprit:
        yield [("           culprit: ", "cyan"), (culprit, "")]
    for each in finding.evidence:
        text = cut_middle(scrub_text(each.text), width() - _LABEL - len(place(each)) - 2)
        yield [(f"           {place(each)}", "dim"), (f"  {text}", "")]
    if finding.stacks:
        from mwatch.model.stacks import tree  # not needed for --help

        for line in tree(finding.stacks):
            yield [("           stacks: ", "cyan"), (line, "")]


def _decision(report: RunReport) -> Iterator[Line]:
    decision = report.decision
    yield from _title("MWATCH")
    yield [(f"  {_acted(report)}", "bold")]
    for text in (decision.reason, decision.resume_reason, decision.proposal or ""):
        for part in wrapped(text, width() - 4, 3) if text else ():
            yield [(f"  {part}", "")]
    for witness in decision.witnesses:
        voice = "for" if witness.agrees else "against"
        yield [(f"  {voice:<8}", "cyan"), (f"{witness.name}: {witness.text}", "")]
    yield [("  next: ", "cyan"), (report.advice.step, "")]
    if report.advice.runbook:
        yield [("  see:  ", "cyan"), (f"mwatch runbook {report.advice.runbook}", "")]


def _goodput(report: RunReport) -> Iterator[Line]:
    whole = report.wall_seconds
    if report.goodput is None:
        return
    ranks = report.world_size
    gpus = "" if ranks is None else f", {ranks} GPU" + "s" * (ranks > 1)
    yield from _title(f"GOODPUT {report.goodput:.1%} of {duration(whole)}{gpus}")
    for each in sorted(report.spent, key=lambda each: -each.seconds):
        if each.seconds > 0:
            seconds, hours = each.seconds, each.gpu_seconds / 3600.0
            yield [
                (f"  {each.name.replace('_', ' '):<18}", "green" * (each.name == "training")),
                (f"{duration(seconds):>14}{share(seconds, whole):>8}{hours:>12.2f} GPU-h", ""),
            ]


_JOB_ROOM = ((4, 3, 3), (3, 2, 2), (2, 1, 1), (1, 0, 1))
"""Numbers of lines of evidence, other findings and checks: the first that fit are used."""
_LEVELS = {"error": "red", "warning": "yellow", "info": "cyan"}


def render_job(job: JobReport) -> list[Line]:
    head = list(_job_head(job))
    lines: list[Line] = []
    for evidence, others, checks in _JOB_ROOM:
        lines = [*head, *_job_facts(job, evidence, others, checks)]
        if len(lines) < SCREEN:
            break
    return [*lines, *_notes(job.report.notes, SCREEN - 1 - len(lines))]


def _job_head(job: JobReport) -> Iterator[Line]:
    about = job.facts.job
    title = f"  {about.kind.value} {about.namespace}/{about.name}"
    yield [*headline(job.report, job.facts.kube.now), (title, "dim")]
    yield from _summary(job.report, 2)
    yield []


def _job_facts(job: JobReport, evidence: int, others: int, checks: int) -> Iterator[Line]:
    def stamp(each: Evidence) -> str:
        at = job.history.time_of(each)
        return "" if at is None else f"{clock(job.report, at, with_date=False)} "

    yield from _row("job", _state(job), 1)
    culprit = culprit_text(job.report.verdict.culprit)
    if culprit:
        yield from _row("culprit", culprit, 3)
    yield from _evidence(_lead(job), evidence, stamp)
    yield from _stacks(job.report.finding, others + 1)
    yield from _mwatch(job)
    yield from _other_findings(job.report, others)
    yield from _checks(job, checks)
    yield from _row("next", job.report.advice.step, 2)
    yield [("type".ljust(_LABEL), "cyan"), (job.next_command, "bold")]
    if job.report.advice.runbook:
        yield from _row("runbook", f"mwatch runbook {job.report.advice.runbook}", 1)


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
    sidecars = f"{job.answering} sidecars and " if job.answering else ""
    read = f"{sidecars}{job.logs_read} logs read" + ("" if job.answering else ", no sidecar")
    return f"{', '.join(parts)}; {read}"


def _lead(job: JobReport) -> Finding | None:
    """The finding of the verdict, or one of the same cause that has evidence."""
    found = job.report.finding
    if found is not None and found.evidence:
        return found
    same = [each for each in job.report.findings if each.cause is job.report.verdict.cause]
    return next((each for each in same if each.evidence), found)


def _mwatch(job: JobReport) -> Iterator[Line]:
    kube, decision = job.facts.job, job.report.decision
    texts = [
        text if at is None else f"{clock(job.report, at)} {text}" for at, text, _ in job.actions[:3]
    ]
    if not kube.is_watched:
        texts.append("does not watch this job (no label mwatch.dev/watch)")
    would = f"would {action_text(decision)}"
    if decision.action.value == "none" and decision.reason != job.report.verdict.summary:
        would += f": {decision.reason}"
    texts.append(f"{would} (mode {kube.mode})")
    for index, text in enumerate(texts):
        yield from _row("mwatch" if index == 0 else "", text, 1)


def _other_findings(report: RunReport, most: int) -> Iterator[Line]:
    lead = report.verdict
    others = [
        each
        for each in report.findings
        if each.cause is not lead.cause and each.summary != lead.summary
    ]
    for index, each in enumerate(others[:most]):
        yield from _row("also" if index == 0 else "", f"{each.cause.value}: {each.summary}", 1)


def _checks(job: JobReport, most: int) -> Iterator[Line]:
    found = job.found
    counts = [f"{sum(one.level.value == level for one in found)} {level}s" for level in _LEVELS]
    unknown = sum(each.state.value == "not observable" for each in job.checks)
    total = f"{len(job.checks)} made: {', '.join(counts[:2])}, {unknown} not observable"
    yield from _row("checks", total + ("" if len(found) <= most else "; all of them: --json"), 1)
    for each in found[:most]:
        style = _LEVELS[each.level.value]
        text = wrapped(f"{each.what}; {each.fix}", width() - _LABEL - 10, 1)[0]
        yield [(" " * _LABEL, ""), (each.level.value.ljust(9), style), (text, "")]


_MANIFEST_LABEL, _MANIFEST_LINES = 8, 6


def render_manifest(checked: ManifestReport) -> list[Line]:
    jobs = ", ".join(checked.jobs)
    lines: list[Line] = [[(jobs, "bold"), (f"  {checked.file}, {checked.checks} checks", "dim")]]
    if not checked.found:
        return [*lines, [("nothing found", "green")]]
    for each in checked.found:
        lines += _problem(each, checked.file)
    return lines


def _problem(found: Problem, file: str) -> list[Line]:
    """The lines of one problem. The fix, which comes last, is never cut; a long path may be."""
    place = file if found.line is None else f"{file}:{found.line}"
    columns, indent = width() - _MANIFEST_LABEL - 1, " " * _MANIFEST_LABEL
    first, *rest = wrapped(f"{found.what}  [{found.check}]", columns, _MANIFEST_LINES)
    fix = wrapped(f"fix: {found.fix}", columns, _MANIFEST_LINES)
    level = found.level.value
    style = "bold red" if level == "error" else _LEVELS[level]
    return [
        [(level.ljust(_MANIFEST_LABEL), style), (first, "")],
        *([(indent, ""), (each, "")] for each in rest),
        *([(indent, ""), (each, "dim")] for each in (*fix, place)),
    ]
