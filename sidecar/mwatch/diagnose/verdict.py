# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict on a live job: the engine's, unless Kubernetes has better information.

An action of a person or of the cluster on the job takes precedence, because it explains all other
symptoms. A finished job is not hung; a job whose pods have not started is not blind. If no data of
any pod can be read, the verdict is blind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mwatch.checks.kube_causes import kube_causes, kube_phase
from mwatch.decide.verdict import ended_as_asked, verdict
from mwatch.diagnose.cluster_facts import JobFacts
from mwatch.diagnose.pod_reports import PodReport
from mwatch.diagnose.timeline import JobHistory
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Evidence, Finding, Severity, Verdict
from mwatch.model.job import Job
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.fields import condition, text
from mwatch.model.kube.pod import KubePod
from mwatch.model.observation import Beat

_QUIET = frozenset({Cause.UNKNOWN, Cause.BLIND, Cause.HEALTHY, Cause.HANG, Cause.SLOW})
_UNKNOWN = frozenset({Cause.UNKNOWN, Cause.BLIND})
_DEATHS = frozenset({Cause.CRASH, Cause.OOM, Cause.USER_ERROR, Cause.DATA, Cause.KILLED})
_PAST = frozenset({Cause.PREEMPTED, Cause.DRAINED})
"""Causes that are ignored once all pods run again."""
NO_PODS_SECONDS = 60.0


def besides(facts: KubeFacts) -> list[Finding]:
    """Return findings from Kubernetes for the engine to take into account."""
    found = kube_causes(facts)
    if _all_run(facts):
        found = [each for each in found if each.cause not in _PAST]
    lost = _lost_node(facts)
    return [*found, lost] if lost is not None else found


def _all_run(facts: KubeFacts) -> bool:
    job, pods = facts.job, facts.pods
    wanted = 1 if job is None else job.pods_wanted
    running = [pod for pod in pods if pod.phase == "Running" and not pod.is_deleting]
    return len(running) == len(pods) and len(pods) >= wanted > 0


def _lost_node(facts: KubeFacts) -> Finding | None:
    if facts.nodes is None or facts.job is None or facts.job.finished:
        return None
    ready = {node.name: node for node in facts.nodes}
    for pod in facts.pods:
        if not pod.node or pod.is_over:
            continue
        node = ready.get(pod.node)
        if node is not None and node.is_ready:
            continue
        why = (
            "is gone" if node is None else f"is not ready: {node.unready_text or 'no reason given'}"
        )
        return Finding(
            detector="node_lost",
            cause=Cause.LOST_POD,
            severity=Severity.CRITICAL,
            summary=f"node {pod.node} {why}; {pod.name} was on it",
            since_time=None if node is None else node.unready_since,
            culprit=Culprit(pod=pod.name, node=pod.node),
            evidence=(Evidence(f"node/{pod.node}", None, why),),
            confidence=0.9,
            fingerprint="lost_pod/node",
        )
    return None


def judge(
    facts: JobFacts, history: JobHistory, reports: Sequence[PodReport]
) -> tuple[Verdict, Decision]:
    engine, seen = history.engine, history.assessment
    found = verdict(engine.job, seen.findings, seen.decision)
    decision = seen.decision
    better = _by_state(facts, found, reports, engine.job)
    if better is not None:
        found = better
        decision = Decision(Action.NONE, found.cause, decision.attempt, found.summary)
    culprit = found.culprit or _crashed_pod(found, seen.findings, reports)
    return replace(found, culprit=locate(culprit, reports)), decision


def _crashed_pod(
    found: Verdict, findings: Sequence[Finding], reports: Sequence[PodReport]
) -> Culprit | None:
    """Name the pod that printed the error. Not for a hang, where that pod may only be waiting."""
    pods = {each.pod.name for each in reports}
    for each in findings if found.cause in _DEATHS else ():
        files = ((one.file or "").partition(" ")[0] for one in each.evidence)
        named = next((file for file in files if file in pods), None)
        if each.cause is found.cause and named is not None:
            return Culprit(pod=named)
    return None


def _by_state(
    facts: JobFacts, found: Verdict, reports: Sequence[PodReport], seen: Job
) -> Verdict | None:
    """Derive a verdict from the state of the job and its pods; None: keep the engine's."""
    job, kube = facts.job, facts.kube
    if job.finished == "Succeeded" and found.cause in _QUIET:
        return _succeeded(job.kind.value, seen)
    if job.finished == "Failed" and found.cause in _QUIET:
        return Verdict(Cause.CRASH, _why_failed(facts), confidence=0.7)
    if job.finished or found.cause not in _UNKNOWN:
        return None
    phase = kube_phase(kube)
    if not kube.pods:
        return _without_pods(facts)
    if phase is not None:
        running = sum(pod.phase == "Running" for pod in kube.pods)
        summary = f"{phase.value}: {running} of {job.pods_wanted} pods run"
        return Verdict(Cause.HEALTHY, summary, confidence=0.5)
    if not any(each.has_data for each in reports):
        return Verdict(Cause.BLIND, _why_blind(reports), confidence=0.0)
    return None


def _succeeded(kind: str, seen: Job) -> Verdict:
    """Check the progress: Kubernetes relies on exit codes, which a shell script may hide."""
    done, total = seen.attempt.iteration, seen.layout.total_iterations
    is_over = seen.attempt.is_finished or ended_as_asked(seen) or seen.ended_itself_twice
    if done is not None and total is not None and done < total and not is_over:
        text = f"{kind} is Succeeded, but training stopped at iteration {done} of {total}"
        return Verdict(Cause.FINISHED_EARLY, text, since_iteration=done + 1)
    unknown = "" if done is not None else "; how far it got is unknown"
    return Verdict(Cause.FINISHED, f"{kind} is Succeeded{unknown}")


def _why_failed(facts: JobFacts) -> str:
    message = text(condition(facts.found.body, "Failed"), "message")
    summary = f"{facts.job.kind.value} is Failed" + (f": {message}" if message else "")
    ended = [_end(pod) for pod in facts.kube.pods if pod.phase == "Failed"]
    return "; ".join([summary, *ended[:2]])


def _end(pod: KubePod) -> str:
    codes = [each for each in pod.containers if each.exit_code]
    if codes:
        return f"{pod.name} exited with {codes[0].exit_code} ({codes[0].exit_reason})"
    return f"{pod.name} failed{f': {pod.reason}' if pod.reason else ''}"


def _without_pods(facts: JobFacts) -> Verdict:
    job, now = facts.job, facts.kube.now
    age = None if job.created_at is None else now - job.created_at
    phase = kube_phase(facts.kube)
    if phase is not None and (phase.value == "queued" or age is None or age < NO_PODS_SECONDS):
        return Verdict(Cause.HEALTHY, f"{phase.value}: no pods yet", confidence=0.5)
    since = "" if age is None else f" {age / 60:.0f} min after it was created"
    summary = f"{job.name} has no pods{since}: is the operator of {job.kind.value} running?"
    return Verdict(Cause.UNKNOWN, summary, confidence=0.0)


def _why_blind(reports: Sequence[PodReport]) -> str:
    reasons = [each.sidecar or each.problem for each in reports if each.sidecar or each.problem]
    running = sum(each.pod.phase == "Running" for each in reports)
    summary = f"{running} pods run, but neither sidecars nor logs can be read"
    return f"{summary}: {reasons[0]}" if reasons else summary


def locate(culprit: Culprit | None, reports: Sequence[PodReport]) -> Culprit | None:
    """Complete a culprit: add pod, node and GPU of its rank, as far as known."""
    if culprit is None:
        return None
    pod = culprit.pod or _pod_of_rank(culprit.rank, reports)
    mine = next((each for each in reports if each.pod.name == pod), None)
    if mine is None:
        return replace(culprit, pod=pod)
    gpus = mine.snapshot.gpus if mine.snapshot is not None else ()
    gpu = next((each for each in gpus if culprit.rank is not None and each.rank == culprit.rank),
               None)  # fmt: skip
    return replace(
        culprit,
        pod=pod,
        node=culprit.node or mine.pod.node or None,
        gpu_uuid=culprit.gpu_uuid or (gpu.uuid if gpu is not None else None),
        xid=culprit.xid if culprit.xid is not None or gpu is None else gpu.xid,
    )


def _pod_of_rank(rank: int | None, reports: Sequence[PodReport]) -> str | None:
    if rank is None:
        return None
    for each in reports:
        beats = each.snapshot.beats if each.snapshot is not None else ()
        if any(isinstance(one.what, Beat) and one.what.rank == rank for one in beats):
            return each.pod.name
    return None
