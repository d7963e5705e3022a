# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose JOB`: diagnoses a live job from the API server, its sidecars and its logs.

The diagnosis is read-only, needs no controller and finishes within seconds; sources that do not
respond in time are noted. The last part of this module prepares the same data for the checks of
running jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from mwatch.checks.kube_causes import kube_phase
from mwatch.checks.live import look
from mwatch.decide.verdict import ended_as_asked
from mwatch.diagnose.cluster_facts import JobFacts, collect_facts
from mwatch.diagnose.pod_reports import MAX_PODS, PodReport, query_pods
from mwatch.diagnose.report import JobReport, actions_taken
from mwatch.diagnose.timeline import JobHistory, build_history
from mwatch.diagnose.verdict import besides, judge, locate
from mwatch.kube.access import Access, open_access
from mwatch.kube.jobs import find_whole, no_such_job, parse_job_name
from mwatch.manifests import shell_text
from mwatch.manifests.containers import environment_of, trainer_of
from mwatch.manifests.facts import workload_of
from mwatch.model import checks as names
from mwatch.model.cause import Cause
from mwatch.model.checks import JobProgress, Running, Workload
from mwatch.model.decision import Action, Decision
from mwatch.model.event import Arguments
from mwatch.model.finding import Verdict
from mwatch.model.job import Job
from mwatch.model.kube.fields import mapping
from mwatch.model.settings import Settings
from mwatch.report.conclusion import RunConclusion

_PODS_WAIT = frozenset({Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.PREEMPTED})
_OF_NODE = frozenset({Cause.HARDWARE, Cause.DRAINED, Cause.LOST_POD, Cause.FABRIC})
_OF_FOLDER = frozenset(
    {Cause.CHECKPOINT, Cause.CHECKPOINT_OVERDUE, Cause.STARTED_FROM_RANDOM, Cause.STORAGE,
     Cause.RESUME_DIVERGED}
)  # fmt: skip
_RESTARTED = frozenset({Cause.HANG, Cause.FABRIC, Cause.LOST_POD, Cause.FINISHED_EARLY})
_ENDED = frozenset({Cause.CRASH, Cause.KILLED, Cause.OOM, Cause.USER_ERROR, Cause.DATA})


def next_command(facts: JobFacts, verdict: Verdict, decision: Decision, container: str) -> str:
    """Choose the one command that the user should run next."""
    job = facts.job
    where = f"-n {job.namespace}"
    pod, node = (verdict.culprit.pod, verdict.culprit.node) if verdict.culprit else (None, None)
    if verdict.cause in _PODS_WAIT:
        return f"kubectl describe pod {where} {pod or _first_pending(facts)}"
    if verdict.cause in _OF_NODE and node:
        return f"kubectl describe node {node}"
    if verdict.cause in (Cause.SUSPENDED, Cause.DELETED_BY_USER):
        return f"kubectl get events {where} --for={job.kind.value.lower()}/{job.name}"
    if decision.action is Action.RESTART or verdict.cause in _RESTARTED:
        start = "" if decision.resume_from is None else f" --from {decision.resume_from}"
        return f"mwatch restart {job.name} {where}{start} --dry-run"
    if verdict.cause in _ENDED:
        return _log(facts, where, pod, container)
    if verdict.cause in _OF_FOLDER:
        return f"mwatch checkpoints {job.name} {where}"
    if verdict.cause in (Cause.BLIND, Cause.UNKNOWN):
        return f"kubectl describe {job.kind.value.lower()} {where} {job.name}"
    if verdict.cause in (Cause.HEALTHY, Cause.FINISHED):
        return f"mwatch status {where}"
    return f"mwatch top {where}"


def _first_pending(facts: JobFacts) -> str:
    waits = [pod.name for pod in facts.kube.pods if pod.phase == "Pending"]
    return waits[0] if waits else f"-l job={facts.job.name}"


def _log(facts: JobFacts, where: str, pod: str | None, container: str) -> str:
    pods = {each.name: each for each in facts.kube.pods}
    chosen = pods.get(pod or "") or next(
        (each for each in facts.kube.pods if each.restarts or each.phase == "Failed"), None
    )
    if chosen is None:
        return f"kubectl describe {facts.job.kind.value.lower()} {where} {facts.job.name}"
    trainer = next((each for each in chosen.containers if each.name == container), None)
    previous = " --previous" if trainer is not None and trainer.restarts else ""
    return f"kubectl logs {where} {chosen.name} -c {container}{previous} --tail=100"


_FACTS_SECONDS = 4.0
_PODS_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    name: str
    """`gpt`, or `pytorchjob/gpt`."""
    namespace: str | None = None
    """Defaults to that of the kubeconfig."""
    kubeconfig: str | None = None
    context: str | None = None
    settings: Settings | None = None
    wants_logs: bool = False
    """Read the logs of all pods, even if the sidecar answers: for a bundle."""
    has_curves: bool = False
    """Also record the data for a page."""


def diagnose_job(request: JobRequest, now: float | None = None) -> JobReport:
    """Raise InputError if there is no such job, KubeError if the cluster is unreachable."""
    with closing(open_access(request.kubeconfig, request.context)) as access:
        return diagnose_with(access, request, time.time() if now is None else now)


def diagnose_with(access: Access, request: JobRequest, now: float) -> JobReport:
    began = time.monotonic()
    namespace = request.namespace or access.namespace
    kind, name = parse_job_name(request.name)
    found = find_whole(access, namespace, name, kind)
    if found is None:
        raise no_such_job(access, namespace, name)
    facts = collect_facts(access, found, now, seconds=_FACTS_SECONDS)
    reports = query_pods(
        access, facts.job.kind, facts.kube.pods, facts.bodies,
        seconds=_PODS_SECONDS, wants_logs=request.wants_logs,
    )  # fmt: skip
    return make_report(facts, reports, request.settings, began, has_curves=request.has_curves)


def make_report(
    facts: JobFacts,
    reports: Sequence[PodReport],
    settings: Settings | None = None,
    began: float | None = None,
    *,
    has_curves: bool = False,
) -> JobReport:
    """Build the report. `began`: start of the diagnosis by the monotonic clock."""
    pods = facts.kube.pods
    is_up = any(pod.phase == "Running" for pod in pods) and not facts.job.finished
    history = build_history(
        facts.job.name, reports, facts.kube.now,
        besides=besides(facts.kube), settings=settings, is_up=is_up, has_curves=has_curves,
    )  # fmt: skip
    verdict, decision = judge(facts, history, reports)
    findings = tuple(
        replace(each, culprit=locate(each.culprit, reports)) for each in history.assessment.findings
    )
    for incident in history.engine.incidents:
        history.recorder.incident(incident)
    report = replace(
        history.recorder.report(concluded=RunConclusion(verdict, decision, None, findings)),
        ended_at=history.last_at,
        is_over=bool(facts.job.finished),
        uid=facts.job.uid,
        files=tuple(each.pod.name for each in reports if each.has_data),
        lines=history.lines,
        notes=tuple(_notes(facts, reports)),
    )
    container = next((each.container for each in reports if each.container), "pytorch")
    job = history.engine.job
    return JobReport(
        facts=facts,
        pods=tuple(reports),
        history=history,
        report=report,
        checks=tuple(look(running_of(facts, reports, history))),
        actions=tuple(actions_taken(facts)),
        next_command=next_command(facts, verdict, decision, container),
        phase=kube_phase(facts.kube) or (job.attempt.phase if job.has_started else None),
        took_seconds=0.0 if began is None else time.monotonic() - began,
    )


def _notes(facts: JobFacts, reports: Sequence[PodReport]) -> list[str]:
    """Describe failed reads for the user; `JobFacts.unavailable` has the complete list."""
    found: list[str] = []
    forbidden = [each for each in reports if each.is_forbidden]
    silent = [each for each in reports if each.sidecar and not each.is_forbidden]
    if forbidden:
        found.append(
            f"{len(forbidden)} sidecars were not asked: you may not get pods/proxy; logs only"
        )
    if silent:
        found.append(
            f"{len(silent)} sidecars do not answer, such as {silent[0].pod.name}: "
            f"{silent[0].sidecar}; logs only"
        )
    unread = [each for each in reports if each.problem]
    if unread:
        found.append(
            f"{len(unread)} logs could not be read, such as {unread[0].pod.name}: "
            f"{unread[0].problem}"
        )
    left_out = len(facts.kube.pods) - len(reports)
    if left_out > 0:
        found.append(f"{left_out} pods were not asked: the limit is {MAX_PODS}")
    return found


_RENDEZVOUS = ("RDZV_ID", "PET_RDZV_ID")
_FIELDS = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "save": "--save",
    "load": "--load",
    "save_interval": "--save-interval",
    "train_iters": "--train-iters",
    "global_batch_size": "--global-batch-size",
    "micro_batch_size": "--micro-batch-size",
    "log_interval": "--log-interval",
}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RANDOM = "started_from_random"
_FEW = 2


def running_of(facts: JobFacts, reports: Sequence[PodReport], history: JobHistory) -> Running:
    """Prepare the input of the checks.

    Arguments come from the command line that a wrapper reports, else from the arguments that the
    trainer printed, else from the manifest.
    """
    wrappers = (each.snapshot.wrapper for each in reports if each.snapshot is not None)
    argv = next((each.argv for each in wrappers if each is not None and each.argv), ())
    given = {**_printed(history.arguments), **(shell_text.arguments(argv, {}) if argv else {})}
    return Running(
        facts=facts.kube,
        workload=_workload(facts, given),
        applied=_applied(facts),
        progress=_progress(reports, history),
        rendezvous=_rendezvous(facts, reports),
        pods={
            each.pod.name: each.snapshot.pod
            for each in reports
            if each.snapshot is not None and each.snapshot.pod is not None
        },
        stored=history.stored,
        arguments=given,
        lists=_lists(argv),
        claims=facts.claims,
        services=facts.services,
        keeps_sidecar=facts.keeps_sidecar,
        unavailable=_unavailable(facts, reports),
    )


def _printed(block: Arguments | None) -> dict[str, str | None]:
    """Turn printed arguments into flags; a switch that is off is left out."""
    if block is None:
        return {}
    values = {flag: getattr(block, name) for name, flag in _FIELDS.items()}
    for name, value in block.extra.items():
        values["--" + name.replace("_", "-")] = value
    found: dict[str, str | None] = {}
    for flag, value in values.items():
        if value is not None and value is not False and value != "None":
            found[flag] = None if value is True else str(value)
    return found


def _workload(facts: JobFacts, given: Mapping[str, str | None]) -> Workload:
    """Arguments of the running trainer override those parsed from a script in the manifest."""
    found = workload_of(facts.found.body, facts.others)
    if found is None:  # cannot happen: the job is of a known kind
        raise ValueError(f"{facts.job.kind.value} is not a training job")
    known = {flag: value for flag, value in given.items() if value is not None}
    replicas = tuple(
        replace(each, arguments={**each.arguments, **known}) if each.container is not None else each
        for each in found.replicas
    )
    return replace(found, replicas=replicas)


def _applied(facts: JobFacts) -> Workload | None:
    text = facts.job.annotations.get(_LAST_APPLIED, "")
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return workload_of(content) if isinstance(content, dict) else None


def _lists(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            if flag.endswith("-data-path"):
                found[flag] = [value] if value else []
        elif flag in found:
            found[flag].append(word)
    return {name: tuple(values) for name, values in found.items()}


def _progress(reports: Sequence[PodReport], history: JobHistory) -> JobProgress:
    job = history.engine.job
    attempt, layout = job.attempt, job.layout
    ats = [step.at for step in attempt.steps][-20:]
    gaps = [after - before for before, after in pairwise(ats) if after > before]
    seconds = [step.seconds for step in attempt.steps if step.seconds][-20:]
    printing = [each.name for each in job.streams.values() if each.prints_iterations]
    return JobProgress(
        iteration=attempt.iteration,
        total_iterations=layout.total_iterations,
        line_at=attempt.line_at,
        line_seconds=median(gaps) if len(gaps) >= _FEW else None,
        line_pods=tuple(printing),
        read_pods=sum(each.has_data for each in reports),
        step_seconds=median(seconds) if seconds else None,
        save_interval=layout.save_interval,
        world_size=layout.world_size,
        attempts=len(job.past) + 1,
        is_done=attempt.is_finished,
        asked_to_end=ended_as_asked(job),
        random_start=_random(history, job),
    )


def _random(history: JobHistory, job: Job) -> str:
    for each in history.assessment.findings:
        if each.detector == _RANDOM:
            return next((one.text for one in each.evidence), each.summary)[:200]
    return "no checkpoint was loaded" if job.attempt.load == "random" else ""


def _rendezvous(facts: JobFacts, reports: Sequence[PodReport]) -> dict[str, str]:
    """Return the rendezvous ids, without pods that are being replaced: theirs may be old."""
    found: dict[str, str] = {}
    going = {pod.name for pod in facts.kube.pods if pod.is_deleting or pod.is_over}
    for name, body in facts.bodies.items():
        container = next((each.container for each in reports if each.pod.name == name), None)
        trainer = trainer_of(mapping(body, "spec"), container)
        values = environment_of(trainer) if trainer is not None else {}
        value = next((values[each] for each in _RENDEZVOUS if each in values), None)
        if value is not None and name not in going:
            found[name] = value
    return found


def _unavailable(facts: JobFacts, reports: Sequence[PodReport]) -> dict[str, str]:
    found = dict(facts.unavailable)
    if not any(each.has_data for each in reports):
        problems = [each.problem for each in reports if each.problem]
        found[names.LOGS] = problems[0] if problems else "no pod has started"
    if not any(each.snapshot is not None for each in reports):
        refused = [each.sidecar for each in reports if each.sidecar]
        if refused:
            found[names.VOLUME] = f"no sidecar answers: {refused[0]}"
    return found
