# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose JOB`: a live job, from the API server, its sidecars and its logs.

It only reads, needs no controller, and ends within seconds: what does not answer in time is told.

The one command that a person should type next, by the cause and whom it names.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mwatch.checks.kube_causes import kube_phase
from mwatch.checks.live import look
from mwatch.diagnose.cluster_facts import JobFacts, collect_facts
from mwatch.diagnose.pod_reports import PodReport, query_pods
from mwatch.diagnose.report import JobReport, actions_taken
from mwatch.diagnose.running_job import running_of
from mwatch.diagnose.timeline import JobHistory, tell
from mwatch.diagnose.verdict import besides, chained, judge
from mwatch.engine.advice import advise
from mwatch.kube.access import Access, open_access
from mwatch.kube.discovery import find_whole, no_such_job, parse_job_name
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause, Finding, Verdict
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.report.run_report import AttemptReport, RunReport
from mwatch.state.goodput import ledger

_PODS_WAIT = frozenset({Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.PREEMPTED})
_OF_NODE = frozenset({Cause.HARDWARE, Cause.DRAINED, Cause.LOST_POD, Cause.FABRIC})
_OF_FOLDER = frozenset(
    {Cause.CHECKPOINT, Cause.CHECKPOINT_OVERDUE, Cause.STARTED_FROM_RANDOM, Cause.STORAGE,
     Cause.RESUME_DIVERGED}
)  # fmt: skip
_RESTARTED = frozenset({Cause.HANG, Cause.FABRIC, Cause.LOST_POD, Cause.FINISHED_EARLY})
_ENDED = frozenset({Cause.CRASH, Cause.KILLED, Cause.OOM, Cause.USER_ERROR, Cause.DATA})


def next_command(facts: JobFacts, said: Verdict, decision: Decision, container: str) -> str:
    job = facts.job
    where = f"-n {job.namespace}"
    pod, node = (said.culprit.pod, said.culprit.node) if said.culprit else (None, None)
    if said.cause in _PODS_WAIT:
        return f"kubectl describe pod {where} {pod or _first_pending(facts)}"
    if said.cause in _OF_NODE and node:
        return f"kubectl describe node {node}"
    if said.cause in (Cause.SUSPENDED, Cause.DELETED_BY_USER):
        return f"kubectl get events {where} --for={job.kind.value.lower()}/{job.name}"
    if decision.action is Action.RESTART or said.cause in _RESTARTED:
        start = "" if decision.resume_from is None else f" --from {decision.resume_from}"
        return f"mwatch restart {job.name} {where}{start} --dry-run"
    if said.cause in _ENDED:
        return _log(facts, where, pod, container)
    if said.cause in _OF_FOLDER:
        return f"mwatch checkpoints {job.name} {where}"
    if said.cause in (Cause.BLIND, Cause.UNKNOWN):
        return f"kubectl describe {job.kind.value.lower()} {where} {job.name}"
    if said.cause in (Cause.HEALTHY, Cause.FINISHED):
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
    """As a person writes it: `gpt`, or `pytorchjob/gpt`."""
    namespace: str | None = None
    """None: the one of the configuration."""
    kubeconfig: str | None = None
    context: str | None = None
    settings: Settings | None = None
    wants_logs: bool = False
    """Also of pods whose sidecar answers: for a bundle."""


def diagnose_job(request: JobRequest, now: float | None = None) -> JobReport:
    """InputError where there is no such job; KubeError where nothing can be asked."""
    access = open_access(request.kubeconfig, request.context)
    try:
        return diagnose_with(access, request, time.time() if now is None else now)
    finally:
        access.close()


def diagnose_with(access: Access, request: JobRequest, now: float) -> JobReport:
    began = time.monotonic()
    namespace = request.namespace or access.namespace
    kind, name = parse_job_name(request.name)
    found = find_whole(access, namespace, name, kind)
    if found is None:
        raise no_such_job(access, namespace, name)
    facts = collect_facts(access, found, now, seconds=_FACTS_SECONDS)
    words = query_pods(
        access, facts.job.kind, facts.kube.pods, facts.bodies,
        seconds=_PODS_SECONDS, wants_logs=request.wants_logs,
    )  # fmt: skip
    return make_report(facts, words, request.settings, began)


def make_report(
    facts: JobFacts,
    words: Sequence[PodReport],
    settings: Settings | None = None,
    began: float | None = None,
) -> JobReport:
    """`began`: by the monotonic clock, when the first question was asked."""
    pods = facts.kube.pods
    is_up = any(pod.phase == "Running" for pod in pods) and not facts.job.finished
    story = tell(
        facts.job.name, words, facts.kube.now,
        besides=besides(facts.kube), settings=settings, is_up=is_up,
    )  # fmt: skip
    job = story.engine.job
    if job.has_started:
        ledger.settle(job, job.now)
    said, decision = judge(facts, story, words)
    findings = tuple(_placed(each, words) for each in story.assessment.findings)
    report = _whole(facts, words, story, said, decision, findings)
    container = next((each.container for each in words if each.container), "pytorch")
    return JobReport(
        facts=facts,
        words=tuple(words),
        story=story,
        report=report,
        checks=tuple(look(running_of(facts, words, story))),
        deeds=tuple(actions_taken(facts)),
        next_command=next_command(facts, said, decision, container),
        notes=tuple(_notes(facts, words)),
        phase=_phase(facts, story),
        took_seconds=0.0 if began is None else time.monotonic() - began,
    )


def _placed(finding: Finding, words: Sequence[PodReport]) -> Finding:
    return replace(finding, culprit=chained(finding.culprit, words))


def _phase(facts: JobFacts, story: JobHistory) -> JobPhase | None:
    by_cluster = kube_phase(facts.kube)
    job = story.engine.job
    return by_cluster or (job.attempt.phase if job.has_started else None)


def _whole(
    facts: JobFacts,
    words: Sequence[PodReport],
    story: JobHistory,
    said: Verdict,
    decision: Decision,
    findings: tuple[Finding, ...],
) -> RunReport:
    job = story.engine.job
    attempts = [*job.past, job.attempt] if job.has_started else []
    return RunReport(
        verdict=said,
        decision=decision,
        acted_at=None,
        advice=advise(said.cause, decision.finding, job.catalogue),
        findings=findings,
        incidents=tuple(story.engine.incidents),
        attempts=tuple(_attempt(story, each.number, said, decision) for each in attempts),
        ledger=job.ledger,
        world_size=job.layout.world_size,
        timeline=(),
        files=tuple(each.pod.name for each in words if each.has_told),
        lines=story.lines,
        first_at=attempts[0].started_at if attempts else None,
        last_at=story.last_at,
        is_relative=False,
        notes=tuple(_notes(facts, words)),
        iteration=job.attempt.iteration,
        total_iterations=job.layout.total_iterations,
    )


def _attempt(story: JobHistory, number: int, said: Verdict, decision: Decision) -> AttemptReport:
    job = story.engine.job
    attempt = next(each for each in (*job.past, job.attempt) if each.number == number)
    is_last = attempt is job.attempt
    ending = said if is_last else story.endings.get(number)
    return AttemptReport(
        attempt.number,
        attempt.started_at,
        attempt.ended_at,
        attempt.first_iteration,
        attempt.iteration,
        attempt.resumed_from,
        Cause.UNKNOWN if ending is None else ending.cause,
        "how it ended is unknown" if ending is None else ending.summary,
        decision if is_last else None,
    )


def _notes(facts: JobFacts, words: Sequence[PodReport]) -> list[str]:
    """What was not seen, for people; the whole of it is in `unseen`."""
    found: list[str] = []
    forbidden = [each for each in words if each.is_forbidden]
    silent = [each for each in words if each.sidecar and not each.is_forbidden]
    if forbidden:
        found.append(
            f"{len(forbidden)} sidecars were not asked: you may not get pods/proxy; logs only"
        )
    if silent:
        found.append(
            f"{len(silent)} sidecars do not answer, such as {silent[0].pod.name}: "
            f"{silent[0].sidecar}; logs only"
        )
    unread = [each for each in words if each.problem]
    if unread:
        found.append(
            f"{len(unread)} logs could not be read, such as {unread[0].pod.name}: "
            f"{unread[0].problem}"
        )
    left_out = len(facts.kube.pods) - len(words)
    if left_out > 0:
        found.append(f"{left_out} pods were not asked: there are too many")
    return found
