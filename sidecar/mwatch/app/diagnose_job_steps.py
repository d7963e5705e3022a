# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one command that a person should type next, by the cause and whom it names."""

from __future__ import annotations

from mwatch.app.diagnose_job_facts import JobFacts
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause
from mwatch.model.verdict import Verdict

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
