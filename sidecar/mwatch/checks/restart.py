# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the operator does when a pod ends, and who else restarts pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mwatch.checks.pods import has_arguments, training
from mwatch.model.checks.check import Check, CheckHit, CheckLevel
from mwatch.model.checks.workload import Replica, Workload

_SPEC_KEYS = {
    "PyTorchJob": {"runPolicy", "elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs"},
}
_RUN_POLICY = frozenset({
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
    "suspend", "schedulingPolicy", "managedBy",
})  # fmt: skip
_AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
_QUEUE = "kueue.x-k8s.io/queue-name"
_MODE = "mwatch.dev/mode"


def _backoff(workload: Workload) -> Iterator[CheckHit]:
    limit, pods = _policy(workload).get("backoffLimit"), workload.pods
    if workload.kind == "PyTorchJob" and isinstance(limit, int) and pods and limit < pods:
        yield CheckHit(
            ("spec", "runPolicy", "backoffLimit"),
            f"backoffLimit {limit} is less than the {pods} pods: restarts are summed over all of "
            "them, so one restart of the gang fails the job",
            "leave it out, or give pods x restarts",
        )


def _restart_policy(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "PyTorchJob":
        return
    for each in training(workload):
        path = (*each.path[:-1], "restartPolicy")
        if each.is_wrapped:
            continue
        if each.restart_policy == "ExitCode":
            yield CheckHit(
                path,
                f"{each.name} has restartPolicy ExitCode, but torchrun exits 1 for every failure "
                "and also on SIGTERM: the job fails at the first one",
                "use OnFailure, or mwatch inject, whose wrapper distinguishes exit codes",
            )
        elif each.restart_policy == "Never":
            yield CheckHit(
                path,
                f"{each.name} has restartPolicy Never: the first failure, or a deleted pod, "
                "fails the job",
                "use OnFailure",
            )


def _misplaced(workload: Workload) -> Iterator[CheckHit]:
    """The API server drops what it does not know, without a word."""
    known = _SPEC_KEYS.get(workload.kind)
    for key in workload.spec if known else ():
        if key not in (known or ()):
            yield CheckHit(
                ("spec", str(key)),
                f"{key} at spec is silently dropped",
                f"put it at spec.runPolicy.{key}"
                if key in _RUN_POLICY
                else f"take it away: a {workload.kind} has no such field there",
            )


def _auto_resume(workload: Workload) -> Iterator[CheckHit]:
    if str(workload.annotations.get(_AUTO_RESUME, "")).lower() != "true":
        return
    if workload.annotations.get(_MODE) == "act":
        yield CheckHit(
            ("metadata", "annotations", _AUTO_RESUME),
            "HyperPod's auto-resume and mwatch may both restart this job",
            f"take one away: this annotation, or {_MODE}: observe",
        )


def _queue(workload: Workload) -> Iterator[CheckHit]:
    if workload.labels.get(_QUEUE):
        yield CheckHit(
            ("metadata", "labels", _QUEUE),
            "Kueue owns the suspend field of this job",
            "nothing: mwatch restarts it by deleting pods, not by suspending it",
        )


def _elastic(workload: Workload) -> Iterator[CheckHit]:
    policy = workload.spec.get("elasticPolicy")
    if not isinstance(policy, Mapping):
        return
    path = ("spec", "elasticPolicy")
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    replicas = training(workload)
    reasons = ["a Megatron layout has one size"] if any(map(has_arguments, replicas)) else []
    if not any(each.name == "Master" for each in workload.replicas):
        reasons.append("the first worker that succeeds ends the job")
    if least != most and reasons:
        yield CheckHit(
            path,
            f"elasticPolicy allows {least} to {most} replicas, but {' and '.join(reasons)}",
            "take elasticPolicy away, or make both equal",
        )
    if isinstance(policy.get("maxRestarts"), int) and policy["maxRestarts"] > 0:
        yield CheckHit(
            (*path, "maxRestarts"),
            f"torchrun may restart its ranks {policy['maxRestarts']} times inside the container, "
            "which Kubernetes does not notice",
            "set it to 0 where mwatch acts",
            CheckLevel.INFO,
        )


def _gang(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "JobSet" or workload.pods == 1:
        return
    policy = workload.spec.get("failurePolicy")
    policy = policy if isinstance(policy, Mapping) else {}
    if policy.get("restartStrategy") == "InPlaceRestart":
        return  # the pods restart themselves, all at once
    alone = [each for each in training(workload) if _retries_alone(workload, each)]
    for each in alone:
        yield CheckHit(
            each.path,
            f"{each.name} has restartPolicy {each.restart_policy or 'OnFailure'} and "
            f"backoffLimit {_limit_of(workload, each)}: a pod that fails is retried alone, "
            "without its gang",
            "use restartPolicy: Never, backoffLimit: 0 and a failurePolicy of the JobSet",
        )
    if not alone and not policy.get("maxRestarts") and not policy.get("rules"):
        yield CheckHit(
            ("spec", "failurePolicy"),
            "no failurePolicy lets the JobSet restart: the first pod that fails ends it",
            "give spec.failurePolicy.maxRestarts",
        )


def _retries_alone(workload: Workload, replica: Replica) -> bool:
    """Whether its Job retries one pod."""
    return replica.restart_policy != "Never" or _limit_of(workload, replica) != 0


def _limit_of(workload: Workload, replica: Replica) -> Any:
    job = _at(workload.content, replica.path[:-1])
    return job.get("backoffLimit", 6) if isinstance(job, Mapping) else 6


def _policy(workload: Workload) -> Mapping[str, Any]:
    found = workload.spec.get("runPolicy")
    return found if isinstance(found, Mapping) else {}


def _at(content: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


CHECKS = (
    Check("backoff-limit", CheckLevel.ERROR, "backoffLimit leaves room for the gang", _backoff),
    Check(
        "restart-policy", CheckLevel.WARNING, "the operator restarts a failed pod", _restart_policy
    ),
    Check("misplaced-policy", CheckLevel.ERROR, "no policy stands at the wrong level", _misplaced),
    Check("auto-resume", CheckLevel.WARNING, "one actor alone restarts the job", _auto_resume),
    Check("queue", CheckLevel.INFO, "the job is Kueue's", _queue),
    Check("elastic", CheckLevel.WARNING, "the gang has one size", _elastic),
    Check("jobset-gang", CheckLevel.WARNING, "a JobSet restarts its gang as one", _gang),
)
