# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose JOB`: a live job, from the API server, its sidecars and its logs.

It only reads, needs no controller, and ends within seconds: what does not answer in time is told.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mwatch.app.advice import advise
from mwatch.app.diagnose_job_deeds import deeds_of
from mwatch.app.diagnose_job_facts import JobFacts, gather
from mwatch.app.diagnose_job_pods import PodWords, listen
from mwatch.app.diagnose_job_report import JobReport
from mwatch.app.diagnose_job_running import running_of
from mwatch.app.diagnose_job_steps import next_command
from mwatch.app.diagnose_job_story import Story, tell
from mwatch.app.diagnose_job_verdict import besides, chained, judge
from mwatch.app.report import AttemptReport, Report
from mwatch.checks.kube_causes import kube_phase
from mwatch.checks.live import look
from mwatch.errors import InputError
from mwatch.kube.access import Access, Limits
from mwatch.kube.connect import connect
from mwatch.kube.find import find_whole, job_names
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause, Finding
from mwatch.model.kube_job import JobKind
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.verdict import Verdict
from mwatch.state import ledger

LIMITS = Limits(call_seconds=4.0, tries=2, total_seconds=6.0)
_FACTS_SECONDS = 4.0
_PODS_SECONDS = 4.0
_NEAR = 3


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


def open_access(kubeconfig: str | None, context: str | None) -> Access:
    """NoCluster or NoCredentials, each with its mend."""
    return Access(connect(kubeconfig, context), limits=LIMITS)


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
    kind, name = named(request.name)
    found = find_whole(access, namespace, name, kind)
    if found is None:
        raise no_such_job(access, namespace, name)
    facts = gather(access, found, now, seconds=_FACTS_SECONDS)
    words = listen(
        access, facts.job.kind, facts.kube.pods, facts.bodies,
        seconds=_PODS_SECONDS, wants_logs=request.wants_logs,
    )  # fmt: skip
    return make_report(facts, words, request.settings, began)


def named(text: str) -> tuple[JobKind | None, str]:
    """`pytorchjob/gpt` and `PyTorchJob/gpt` as kubectl takes them; InputError for another kind."""
    kind, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    by_name = {each.value.lower(): each for each in JobKind}
    singular = kind.lower().partition(".")[0].removesuffix("s")
    if singular in by_name:
        return by_name[singular], name
    kinds = ", ".join(each.value for each in JobKind)
    raise InputError(f"{text}: mwatch knows no {kind}; it knows {kinds}")


def no_such_job(access: Access, namespace: str, name: str) -> InputError:
    known = job_names(access, namespace)
    near = difflib.get_close_matches(name, known, _NEAR, 0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        hint = f"there are: {', '.join(sorted(known)[:_NEAR])}; see mwatch status -n {namespace}"
    else:
        hint = "there is none at all; give its namespace with -n, or see mwatch status -A"
    return InputError(f"no job is called {name} in namespace {namespace}; {hint}")


def make_report(
    facts: JobFacts,
    words: Sequence[PodWords],
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
        deeds=tuple(deeds_of(facts)),
        next_command=next_command(facts, said, decision, container),
        notes=tuple(_notes(facts, words)),
        phase=_phase(facts, story),
        took_seconds=0.0 if began is None else time.monotonic() - began,
    )


def _placed(finding: Finding, words: Sequence[PodWords]) -> Finding:
    return replace(finding, culprit=chained(finding.culprit, words))


def _phase(facts: JobFacts, story: Story) -> JobPhase | None:
    by_cluster = kube_phase(facts.kube)
    job = story.engine.job
    return by_cluster or (job.attempt.phase if job.has_started else None)


def _whole(
    facts: JobFacts,
    words: Sequence[PodWords],
    story: Story,
    said: Verdict,
    decision: Decision,
    findings: tuple[Finding, ...],
) -> Report:
    job = story.engine.job
    attempts = [*job.past, job.attempt] if job.has_started else []
    return Report(
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


def _attempt(story: Story, number: int, said: Verdict, decision: Decision) -> AttemptReport:
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
        "nothing tells how it ended" if ending is None else ending.summary,
        decision if is_last else None,
    )


def _notes(facts: JobFacts, words: Sequence[PodWords]) -> list[str]:
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
