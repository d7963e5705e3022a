# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Causes outside the trainer: what Kubernetes or a person did to a job. They use no restart budget.

The facts are pods, Events and nodes as the API server has them; it keeps Events for only an hour. A
deleted pod counts as deleted by a person unless there is a trace of another cause. mwatch knows its
own deletions. Scheduler, drain, taints and a lost node leave a condition. The job's controller
reports the deletion in an Event, ends or suspends the job, or removes failed pods. One such trace
explains the whole gang.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mwatch.model.cause import Cause
from mwatch.model.finding import MAX_EVIDENCE, Culprit, Evidence, Finding, Severity
from mwatch.model.kube.facts import KubeEvent, KubeFacts, KubeWorkload
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import SIDECAR, KubePod
from mwatch.model.phase import JobPhase

_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_BY_CONTROLLER = frozenset({"SuccessfulDelete", "SuccessfulDeletePod"})
UNSCHEDULED_SECONDS = 30.0
"""Grace time: the scheduler may place a new pod on its next attempt."""
EVENT_SECONDS = 600.0
_IMAGE = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
        "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
    }
)  # fmt: skip
_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "ProvisioningFailed"})
_CLAIM = ("persistentvolumeclaim", "volume node affinity", "volume count")
_SHELL = "/bin/sh"
_MISSING = re.compile("no such file|not found")
_GATED = "SchedulingGated"
_MAX_NAMES = 3


def leaving(facts: KubeFacts) -> list[KubePod]:
    """Return pods that are being deleted or gone, as they were when that was first observed."""
    found = {pod.uid: pod for pod in facts.pods if pod.is_deleting}
    found.update({pod.uid: pod for pod in facts.left})
    return list(found.values())


def deleted_pods(facts: KubeFacts) -> list[KubePod]:
    others = [pod for pod in leaving(facts) if pod.uid not in facts.ours]
    pods = [pod for pod in others if pod.disruption is None and not pod.is_over]
    if not pods or _is_by_its_controller(others, facts):
        return []
    nodes = by_name(facts)
    return [] if any(on_lost_node(pod, nodes) for pod in pods) else pods


def _is_by_its_controller(going: list[KubePod], facts: KubeFacts) -> bool:
    if facts.wants_no_pods:
        return True
    if any(pod.phase == "Failed" for pod in going):
        return True  # it had failed before it was deleted
    if any(pod.phase == "Failed" and not pod.is_deleting for pod in facts.pods):
        return True
    events = [each for each in facts.events if each.reason in _BY_CONTROLLER]
    return any(_names(each, pod) for each in events for pod in going)


def _names(event: KubeEvent, pod: KubePod) -> bool:
    """Whether the Event names this pod, and not an earlier pod of the same name."""
    is_later = event.at is None or pod.created_at is None or event.at >= pod.created_at
    return is_later and pod.name in event.text.replace(",", " ").split()


def by_name(facts: KubeFacts) -> Mapping[str, KubeNode] | None:
    return None if facts.nodes is None else {node.name: node for node in facts.nodes}


def on_lost_node(pod: KubePod, nodes: Mapping[str, KubeNode] | None) -> bool:
    """Whether its node is lost. If nodes cannot be read, a taint eviction counts as lost."""
    if nodes is None:
        by_taint = pod.disruption is not None and pod.disruption.reason == "DeletionByTaintManager"
        return by_taint or pod.reason == "NodeLost"
    node = nodes.get(pod.node)
    if node is None:
        return bool(pod.node)
    return not node.is_ready or any(taint.key in _LOST_NODE for taint in node.taints)


def kube_causes(facts: KubeFacts) -> list[Finding]:
    """Findings, the most specific cause first; none for a crash."""
    return [found for cause in ALL if (found := cause(facts)) is not None]


def kube_phase(facts: KubeFacts) -> JobPhase | None:
    """Return a phase that only Kubernetes reports; None: pods run, or there is nothing to run."""
    job = facts.job
    if job is None or job.finished or job.is_deleting:
        return None
    if job.is_suspended:
        return JobPhase.QUEUED if job.queue and _is_waiting(facts.workload) else None
    pods = [pod for pod in facts.pods if not pod.is_deleting]
    if any(pod.unscheduled_reason == _GATED for pod in pods):
        return JobPhase.QUEUED
    waits = [pod for pod in pods if pod.phase == "Pending" and not pod.trains_alone]
    return JobPhase.SCHEDULING if waits or len(pods) < job.pods_wanted else None


def deleted_by_user(facts: KubeFacts) -> Finding | None:
    if facts.job is None or facts.job.is_deleting:
        return _found(Cause.DELETED_BY_USER, f"{facts.name} was deleted")
    pods = deleted_pods(facts)
    if not pods:
        return None
    is_all = {pod.uid for pod in pods} >= {pod.uid for pod in facts.pods}
    names = ", ".join(pod.name for pod in pods[:_MAX_NAMES])
    names += f" and {len(pods) - _MAX_NAMES} more" if len(pods) > _MAX_NAMES else ""
    who = f"all {len(pods)} pods of {facts.name}" if is_all else names
    verb = "were" if len(pods) > 1 else "was"
    return _found(Cause.DELETED_BY_USER, f"{who} {verb} deleted, and not by mwatch", pods)


def suspended(facts: KubeFacts) -> Finding | None:
    job = facts.job
    if job is None or job.is_deleting or not job.is_suspended or job.finished:
        return None
    if job.queue and _is_waiting(facts.workload):
        return None  # waiting in a queue is a phase, not a cause
    return _found(Cause.SUSPENDED, f"{facts.name} is suspended")


def preempted(facts: KubeFacts) -> Finding | None:
    work = facts.workload
    if work is not None and work.evicted:
        summary = f"Kueue took {facts.name} off its nodes ({work.evicted}): {work.evicted_text}"
        return _found(Cause.PREEMPTED, summary)
    pods = [pod for pod in _every(facts) if _disrupted(pod) == "PreemptionByScheduler"]
    reported = _events(facts, {"Preempted"}, "Pod")
    if not pods and not reported:
        return None
    who = pods[0].name if pods else reported[0].about_name
    return _found(Cause.PREEMPTED, f"{who} was preempted by pods that come first", pods, reported)


def drained(facts: KubeFacts) -> Finding | None:
    every = _every(facts)
    nodes = by_name(facts) if any(pod.disruption for pod in every) else None
    pods = [pod for pod in every if _is_drained(pod, nodes)]
    if not pods:
        return None
    first = pods[0]
    why = (first.disruption.text if first.disruption else "") or first.text or "evicted"
    summary = f"{first.name} was asked to leave {first.node or 'its node'}: {why}"
    return _found(Cause.DRAINED, summary, pods)


def volume(facts: KubeFacts) -> Finding | None:
    pending = [pod for pod in facts.pods if pod.phase == "Pending" and not pod.is_deleting]
    waits = {pod.name: pod for pod in pending if not pod.has_volumes}
    reported = [each for each in _events(facts, _VOLUME, None) if _is_about(each, waits)]
    claims = [pod for pod in waits.values() if _is_claim(pod)]
    if not reported and not claims:
        return None
    pods = claims or [waits[each.about_name] for each in reported if each.about_name in waits]
    text = claims[0].unscheduled_text if claims else reported[0].text
    name = pods[0].name if pods else facts.name
    return _found(Cause.VOLUME, f"{name} waits for a volume: {text}", pods, reported)


def image(facts: KubeFacts) -> Finding | None:
    waits = [pod for pod in facts.pods if not pod.is_deleting and not pod.trains_alone]
    pods = [pod for pod in waits if _image_trouble(pod)]
    if not pods:
        return None
    summary = f"{pods[0].name} cannot get its image: {_image_trouble(pods[0])}"
    return _found(Cause.IMAGE, summary, pods)


def no_shell(facts: KubeFacts) -> Finding | None:
    """The command that `inject` writes starts with a shell, and the image has none."""
    pods = [pod for pod in facts.pods if not pod.is_deleting and _lacks_shell(pod)]
    if not pods:
        return None
    summary = (
        f"{pods[0].name} cannot start: its image has no {_SHELL}, which the command of mwatch "
        "begins with; fix: an image with a shell, or mwatch uninject"
    )
    return _found(Cause.IMAGE, summary, pods)


def _lacks_shell(pod: KubePod) -> bool:
    errors = (each.start_error for each in pod.containers)
    return any(_SHELL in each and _MISSING.search(each) for each in errors)


def unwatched(facts: KubeFacts) -> Finding | None:
    """The trainer runs, but mwatch's own container cannot start."""
    pods = [pod for pod in facts.pods if pod.trains_alone and not pod.is_deleting]
    if not pods:
        return None
    first = pods[0]
    ours = next(each for each in first.containers if each.name == SIDECAR)
    fix = f"kubectl set image -n {first.namespace} pod/{first.name} {SIDECAR}=IMAGE"
    text = f": {ours.waiting_text}" if ours.waiting_text else ""
    return _found(
        Cause.BLIND,
        f"not watched: {first.name} runs, but its container {SIDECAR} does not start "
        f"({ours.waiting}{text[:200]}): it cannot end; fix: {fix}",
        pods,
    )


def unschedulable(facts: KubeFacts) -> Finding | None:
    pods = [pod for pod in facts.pods if _is_unscheduled(pod, facts.now) and not _is_claim(pod)]
    reported = [
        each
        for each in _events(facts, {"FailedCreate", "FailedCreatePod"}, None)
        if "exceeded quota" in each.text and each.about_name == facts.name
    ]
    is_short = facts.job is not None and len(facts.pods) < facts.job.pods_wanted
    if pods:
        summary = f"{len(pods)} pods find no node: {pods[0].unscheduled_text}"
        return _found(Cause.UNSCHEDULABLE, summary, pods)
    if reported and is_short:
        return _found(
            Cause.UNSCHEDULABLE, f"no room in the quota: {reported[0].text}", (), reported
        )
    return None


ALL: tuple[Callable[[KubeFacts], Finding | None], ...] = (
    deleted_by_user, suspended, preempted, drained, volume, image, no_shell, unwatched,
    unschedulable,
)  # fmt: skip


def _found(
    cause: Cause, summary: str, pods: Sequence[KubePod] = (), events: Sequence[KubeEvent] = ()
) -> Finding:
    lines = [Evidence(f"pod/{pod.name}", None, "; ".join(_state_parts(pod))[:300]) for pod in pods]
    lines += [
        Evidence(f"event/{each.about_name}", None, f"{each.reason}: {each.text}") for each in events
    ]
    times = [each for pod in pods for each in (_since(pod),) if each is not None]
    times += [each.at for each in events if each.at is not None]
    wanted = (Cause.SUSPENDED, Cause.DELETED_BY_USER)
    return Finding(
        detector=cause.value,
        cause=cause,
        severity=Severity.INFO if cause in wanted else Severity.WARNING,
        summary=summary[:500],
        since_time=min(times, default=None),
        culprit=Culprit(pod=pods[0].name, node=pods[0].node or None) if pods else None,
        evidence=tuple(lines[:MAX_EVIDENCE]),
        fingerprint=f"kubernetes/{cause.value}",
    )


def _events(facts: KubeFacts, reasons: Iterable[str], kind: str | None) -> list[KubeEvent]:
    """Newest first, without outdated ones."""
    found = [
        each
        for each in facts.events
        if each.reason in reasons
        and (kind is None or each.about_kind == kind)
        and (each.at is None or facts.now - each.at <= EVENT_SECONDS)
    ]
    return sorted(found, key=lambda each: -(each.at or 0.0))


def _is_about(event: KubeEvent, waits: dict[str, KubePod]) -> bool:
    """Whether it concerns a waiting pod; a mount that failed and then succeeded is ignored."""
    if event.about_kind == "Pod":
        pod = waits.get(event.about_name)
        return pod is not None and event.about_uid in ("", pod.uid)
    return event.about_kind == "PersistentVolumeClaim" and bool(waits)


def _is_waiting(workload: KubeWorkload | None) -> bool:
    return workload is None or (workload.is_active and not workload.is_admitted)


def _every(facts: KubeFacts) -> list[KubePod]:
    here = {pod.uid for pod in facts.pods}
    return [*facts.pods, *(pod for pod in leaving(facts) if pod.uid not in here)]


def _disrupted(pod: KubePod) -> str:
    return "" if pod.disruption is None else pod.disruption.reason


def _is_drained(pod: KubePod, nodes: Mapping[str, KubeNode] | None) -> bool:
    reason = _disrupted(pod)
    if reason == "EvictionByEvictionAPI":
        return True
    if reason == "TerminationByKubelet":
        return pod.reason == "Terminated" or "shutdown" in pod.text.lower()
    if reason == "DeletionByTaintManager":
        return not on_lost_node(pod, nodes)
    return False


def _is_claim(pod: KubePod) -> bool:
    text = pod.unscheduled_text.lower()
    return pod.scheduled is False and any(word in text for word in _CLAIM)


def _is_unscheduled(pod: KubePod, now: float) -> bool:
    if pod.scheduled is not False or pod.is_deleting or pod.is_over:
        return False
    since = pod.unscheduled_since or pod.created_at
    waited = since is None or now - since >= UNSCHEDULED_SECONDS
    return pod.unscheduled_reason == "Unschedulable" and waited


def _image_trouble(pod: KubePod) -> str:
    for each in pod.containers:
        if each.waiting in _IMAGE:
            return f"{each.waiting} of {each.name}: {each.waiting_text}"
    return ""


def _state_parts(pod: KubePod) -> Iterator[str]:
    yield pod.phase + (", being deleted" if pod.is_deleting else "")
    if pod.disruption is not None:
        yield f"{pod.disruption.reason}: {pod.disruption.text}"
    if pod.scheduled is False:
        yield f"{pod.unscheduled_reason}: {pod.unscheduled_text}"
    if trouble := _image_trouble(pod):
        yield trouble
    yield from (f"{each.name}: {each.start_error}" for each in pod.containers if each.start_error)


def _since(pod: KubePod) -> float | None:
    if pod.disruption is not None:
        return pod.disruption.at
    if pod.deleting_at is not None:
        return pod.deleting_at - (pod.grace_seconds or 0.0)
    return pod.unscheduled_since if pod.scheduled is False else pod.created_at
