# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch report JOB`: the report of a live job as a page that can be read without the cluster.

The verdict is that of `mwatch diagnose JOB`. The history comes from the controller, which knows all
attempts, else from the sidecars; without either, from what the logs still contain. The ends of the
most relevant logs are added. Data that could not be read is listed in notes on the page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from mwatch.diagnose.cluster_facts import CONTROLLER, CONTROLLER_PORT
from mwatch.diagnose.job import JobRequest, diagnose_with
from mwatch.diagnose.pod_reports import PodReport, read_logs, sidecar_port
from mwatch.diagnose.report import JobReport
from mwatch.diagnose.timeline import log_name, without_times
from mwatch.kube.access import Access, open_access
from mwatch.kube.pod_pages import TAIL_LINES, Port
from mwatch.kube.resources import PODS, SERVICES
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.log_ends import MAX_LOGS, of_logs
from mwatch.report.model import TimelineEntry, short
from mwatch.report.run_report import RunReport
from mwatch.runtime.fanout import TimedOut, gather

_SECONDS = 6.0
"""Time limit for the history, and again for the logs: a sidecar may have to build its report."""
_CALL_SECONDS = 5.0
_MAX_PROBLEMS = 16


def report_job(request: JobRequest, now: float | None = None) -> RunReport:
    """Raise InputError if there is no such job, KubeError if the cluster is unreachable."""
    with closing(open_access(request.kubeconfig, request.context)) as access:
        return report_with(access, request, time.time() if now is None else now)


def report_with(access: Access, request: JobRequest, now: float) -> RunReport:
    job = diagnose_with(access, replace(request, has_curves=True), now)
    report = replace(job.report, notes=(*job.report.notes, *_missing(job)))
    report = _with_actions(job, _with_history(access, job, report))
    return _with_logs(access, job, report)


def controller_port(namespace: str) -> Port:
    return Port(SERVICES, namespace, CONTROLLER, CONTROLLER_PORT)


def sidecars_by_worth(job: JobReport) -> list[tuple[PodReport, Port]]:
    """Return the responding sidecars: the most iterations first, then in the order of pods."""
    answering = [each for each in job.pods if each.snapshot is not None]
    answering.sort(key=_iterations, reverse=True)
    bodies = job.facts.bodies
    ports = ((each, sidecar_port(each.pod, bodies.get(each.pod.name, {}))) for each in answering)
    return [
        (each, Port(PODS, each.pod.namespace, each.pod.name, port)) for each, port in ports if port
    ]


def _iterations(report: PodReport) -> int:
    found = None if report.snapshot is None else report.snapshot.view.iteration
    return -1 if found is None else found


def culprit_pod(job: JobReport) -> str | None:
    culprit = job.report.verdict.culprit
    return None if culprit is None else culprit.pod


def _with_history(access: Access, job: JobReport, report: RunReport) -> RunReport:
    """Query controller, best-informed sidecar and the culprit's sidecar in parallel."""
    kube = job.facts.job
    sidecars = sidecars_by_worth(job)
    chosen = [port for _, port in sidecars[:1]]
    chosen += [port for each, port in sidecars if each.pod.name == culprit_pod(job)]
    path = f"/jobs/{kube.namespace}/{kube.name}/{STORY}?kind={kube.kind.value}"
    places = {"controller": (controller_port(kube.namespace), path)}
    places |= {port.name: (port, f"/{STORY}") for port in chosen}
    asks = {key: partial(_story, access, *place) for key, place in places.items()}
    answers = gather(asks, seconds=_SECONDS)
    stories = {key: each for key, each in answers.items() if isinstance(each, RunReport)}
    if "controller" in stories:
        return _joined(stories["controller"], [], report)
    reason = answers["controller"].why
    if not stories:
        source = "the newest events that the sidecars keep" if job.answering else "the logs"
        text = f"history: only from {source}, because no watcher gives its own: {reason}"
        return _noted(report, text, *_cut_logs(job))
    first, *others = stories.values()
    text = f"history: from the sidecar of {next(iter(stories))}, since it started; the controller"
    return _noted(_joined(first, others, report), f"{text} does not answer: {reason}")


def _story(access: Access, port: Port, path: str) -> RunReport | TimedOut:
    data = access.page(f"{port.path}{path}", None, _CALL_SECONDS)
    story = story_json.from_json(data, f"{port.name}:{port.number}")
    return story if story.attempts else TimedOut("it has seen nothing of the job yet")


def _joined(story: RunReport, others: Sequence[RunReport], present: RunReport) -> RunReport:
    """Combine a watcher's history with incidents of the others and the current verdict."""
    incidents = list(story.incidents)
    for each in (*(one for other in others for one in other.incidents), *present.incidents):
        if all((each.attempt, each.cause) != (one.attempt, one.cause) for one in incidents):
            incidents.append(each)
    judged = story.judged(present.verdict, present.decision, present.advice)
    return replace(
        judged,
        run=present.run,
        uid=present.uid,
        clock=present.clock,
        findings=present.findings,
        incidents=tuple(incidents),
        is_over=present.is_over,
        iteration=present.iteration if story.iteration is None else story.iteration,
        total_iterations=story.total_iterations or present.total_iterations,
        world_size=present.world_size or story.world_size,
        checkpoints=present.checkpoints or story.checkpoints,
        source_states=present.source_states,
        notes=(*present.notes, *story.notes),
        files=present.files,
        lines=present.lines,
    )


def _missing(job: JobReport) -> Iterator[str]:
    """Yield notes on failed reads and on the problems that the checks found."""
    unread = [f"{name} ({why})" for name, why in job.facts.unavailable.items()]
    unread = [each for each in unread if not each.startswith("controller (")]
    if unread:
        yield short(f"not read: {', '.join(sorted(unread))}")
    found = job.found
    for each in found[:_MAX_PROBLEMS]:
        yield short(f"{each.level.value}: {each.what}" + (f"; {each.fix}" if each.fix else ""))
    if len(found) > _MAX_PROBLEMS:
        rest = len(found) - _MAX_PROBLEMS
        yield f"{rest} more problems of the settings are shown by 'mwatch diagnose'"


def _cut_logs(job: JobReport) -> Iterator[str]:
    cut = sum(log.is_cut for each in job.pods for log in each.logs)
    if cut:
        yield f"{cut} long logs: only the beginning and the last {TAIL_LINES} lines were read"


def _noted(report: RunReport, *notes: str) -> RunReport:
    return replace(report, notes=(*report.notes, *(short(note) for note in notes)))


def _with_actions(job: JobReport, report: RunReport) -> RunReport:
    """Add the actions of mwatch that the ledger and the events record."""
    attempt = report.attempts[-1].number if report.attempts else 0
    known = {each.text for each in report.timeline}
    taken = [
        TimelineEntry(each.at, "action", short(each.text, 600), attempt)
        for each in job.actions
        if each.at is not None and each.text not in known
    ]
    entries = sorted((*report.timeline, *taken), key=lambda each: each.at)
    return replace(report, timeline=tuple(entries))


def _with_logs(access: Access, job: JobReport, report: RunReport) -> RunReport:
    """Add log lines of the culprit, the pods in evidence, and those that print iterations."""
    named = [culprit_pod(job)]
    lead = (each.voices[0] for each in reversed(report.incidents) if each.voices)
    named += [one.file and one.file.partition(" ")[0] for each in lead for one in each.evidence]
    streams = job.history.engine.job.streams.values()
    named += [each.name for each in streams if each.prints_iterations]
    named += [each.pod.name for each in job.pods]
    by_name = {each.pod.name: each for each in job.pods if each.pod.phase != "Pending"}
    chosen = [by_name[name] for name in dict.fromkeys(named) if name in by_name][:MAX_LOGS]
    asks = {each.pod.name: partial(_read, access, each) for each in chosen}
    logs: dict[str, list[bytes]] = {}
    cut: set[str] = set()
    problems = []
    for name, answer in gather(asks, seconds=_SECONDS).items():
        if isinstance(answer, TimedOut) or answer.problem:
            why = answer.why if isinstance(answer, TimedOut) else answer.problem
            problems.append(f"the log of {name} is not in this page: {why}")
            continue
        for log in answer.logs[::-1]:
            lines = without_times(log.head + log.tail, []).splitlines()
            if lines and len(logs) < MAX_LOGS:
                logs[log_name(log)] = lines
                cut |= {log_name(log)} if log.is_cut else set()
    files = tuple(dict.fromkeys((*report.files, *logs)))
    return _noted(of_logs(replace(report, files=files), logs, cut), *problems)


def _read(access: Access, report: PodReport) -> PodReport:
    return report if report.logs else read_logs(access, report)
