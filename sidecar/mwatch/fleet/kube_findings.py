# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Findings and exits from the API server's view: Kubernetes causes, lost pods, ended containers.

Also findings about unreachable pods and an unusable policy, and the node and GPU of a culprit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from mwatch.checks.kube_causes import kube_causes
from mwatch.engine.engine import Assessment
from mwatch.fleet.visibility import PodsAnswering, PodView
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import SIDECAR, Container, KubePod
from mwatch.model.observation import Observed, ProcessExit

KUBERNETES_CAUSES = (
    Cause.SUSPENDED, Cause.PREEMPTED, Cause.DRAINED, Cause.VOLUME, Cause.IMAGE,
    Cause.UNSCHEDULABLE, Cause.DELETED_BY_USER,
)  # fmt: skip
"""The most relevant first: a reason that keeps new pods away outranks a past deletion."""
_ORDER = {cause: place for place, cause in enumerate(KUBERNETES_CAUSES)}
_PASSING = frozenset({Cause.PREEMPTED, Cause.DRAINED})
TAKEN_CAUSES = _PASSING | {Cause.DELETED_BY_USER}
"""Causes that remove pods of a running gang."""
_SETTLE_SECONDS = 60.0
_LONGEST_SECONDS = 1800.0
_MAX_NAMES = 3


class HeldCauses:
    """Keeps the cause of a preemption or a drain until the gang has been complete again for a
    while: the pod, and the reason with it, is soon gone from the API server."""

    def __init__(self) -> None:
        self._held: dict[Cause, tuple[Finding, float]] = {}
        self._attempt = 0
        self._whole_since: float | None = None

    def look(self, facts: KubeFacts, now: float, attempt: int) -> list[Finding]:
        """The causes, the most relevant first: pods of a suspended job are also pending or being
        deleted."""
        found = kube_causes(facts)
        if attempt != self._attempt:  # causes belong to one attempt
            self._attempt, self._held = attempt, {}
        for finding in found:
            if finding.cause in _PASSING:
                self._held[finding.cause] = finding, now
        is_quiet = is_whole(facts) and not any(each.cause in _PASSING for each in found)
        if not is_quiet:
            self._whole_since = None
        elif self._whole_since is None:
            self._whole_since = now
        settled = self._whole_since is not None and now - self._whole_since >= _SETTLE_SECONDS
        self._held = {
            cause: (finding, at)
            for cause, (finding, at) in self._held.items()
            if not settled and now - at < _LONGEST_SECONDS
        }
        known = {each.cause: each for each in (*(held for held, _ in self._held.values()), *found)}
        if facts.job is None or facts.job.is_deleting:
            return [each for each in found if each.cause is Cause.DELETED_BY_USER]
        return sorted(known.values(), key=lambda each: _ORDER.get(each.cause, len(_ORDER)))


def broken(finding: Finding, gone_at: float) -> Finding:
    """Make the finding critical: the rest of the gang cannot continue, and nothing else will
    restart it."""
    return replace(
        finding,
        severity=Severity.CRITICAL,
        summary=f"{finding.summary}; what is left of the gang cannot go on without it"[:500],
        since_time=gone_at,
        cannot_heal=True,
    )


def is_whole(facts: KubeFacts) -> bool:
    job = facts.job
    if job is None or len(facts.pods) < job.pods_wanted:
        return False
    return all(pod.phase == "Running" and not pod.is_deleting for pod in facts.pods)


def pods_unreachable(seen: PodsAnswering) -> Finding:
    """A finding for information only: other pods answer, so the job is not blind."""
    count, silent = len(seen.answering) + len(seen.silent), seen.silent
    why = silent[0].problem or "no answer yet"
    names = ", ".join(each.pod.name for each in silent[:_MAX_NAMES])
    names += f" and {len(silent) - _MAX_NAMES} more" if len(silent) > _MAX_NAMES else ""
    return Finding(
        detector="unseen",
        cause=Cause.UNKNOWN,
        severity=Severity.INFO,
        summary=f"{len(silent)} of {count} sidecars do not answer: {names} ({why})"[:500],
        since_time=min((each.answered_at or each.asked_since or 0.0) for each in silent) or None,
        culprit=Culprit(pod=silent[0].pod.name, node=silent[0].pod.node or None),
        fingerprint="unknown/unseen-pods",
    )


def not_watched(seen: PodsAnswering) -> Finding | None:
    """A finding about trainers that were started without the wrapper; None: all have one."""
    alone = [each for each in seen.answering if each.snapshot and each.snapshot.view.unwatched]
    if not alone:
        return None
    first, count = alone[0], len(seen.answering) + len(seen.silent)
    why = first.snapshot and first.snapshot.view.unwatched
    return Finding(
        detector="blind",
        cause=Cause.BLIND,
        severity=Severity.WARNING,
        summary=f"not watched: {len(alone)} of {count} pods train without mwatch: {why}"[:500],
        culprit=Culprit(pod=first.pod.name, node=first.pod.node or None),
        fingerprint="blind/unwatched",
    )


def policy_refused(problem: str) -> Finding:
    return Finding(
        detector="policy",
        cause=Cause.UNKNOWN,
        severity=Severity.INFO,
        summary=f"the job's policy is not used, the usual one is: {problem}"[:500],
        fingerprint="unknown/policy",
    )


def placed(assessment: Assessment, pods: Mapping[str, PodView]) -> Assessment:
    """Add node and GPU to the culprits."""
    by_name = {each.pod.name: each for each in pods.values()}
    found = tuple(_placed(each, by_name) for each in assessment.findings)
    decision = assessment.decision
    if decision.finding is not None:
        decision = replace(decision, finding=_placed(decision.finding, by_name))
    return assessment._replace(findings=found, decision=decision)


def _placed(finding: Finding, by_name: Mapping[str, PodView]) -> Finding:
    culprit = finding.culprit
    view = None if culprit is None or culprit.pod is None else by_name.get(culprit.pod)
    if culprit is None or view is None:
        return finding
    node = culprit.node or view.pod.node or None
    gpu = culprit.gpu_uuid or _gpu(view, culprit.rank)
    if (node, gpu) == (culprit.node, culprit.gpu_uuid):
        return finding
    return replace(finding, culprit=replace(culprit, node=node, gpu_uuid=gpu))


def _gpu(view: PodView, rank: int | None) -> str | None:
    gpus = () if view.snapshot is None or rank is None else view.snapshot.gpus
    return next((each.uuid for each in gpus if each.rank == rank), None)


_WENT_ON_SECONDS = 60.0
"""Progress within this time of a loss does not count: the other ranks may finish a step or two."""


class _Lost(NamedTuple):
    attempt: int
    gone_at: float | None
    """None: still terminating."""


class ExternallyLostPods:
    """Pods that the current attempt has lost for an outside reason.

    Pods that mwatch or the job's own controller removed are excused, and so are pods without which
    training continued.
    """

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._excused: set[str] = set()

    @property
    def gone_at(self) -> float | None:
        """When the last of them was gone; None: none is, or one is still terminating."""
        moments = [each.gone_at for each in self._lost.values()]
        known = [each for each in moments if each is not None]
        return max(known) if known and len(known) == len(moments) else None

    def see(self, facts: KubeFacts, job: Job) -> KubeFacts:
        here = {pod.uid for pod in facts.pods}
        self._excused &= {pod.uid for pod in facts.left}
        kept: dict[str, _Lost] = {}
        for pod in facts.left:
            known = self._lost.get(pod.uid, _Lost(job.attempt.number, None))
            if pod.uid not in here and known.gone_at is None:
                known = known._replace(gone_at=facts.now)
            if self._is_excused(pod, known, facts, job):
                self._excused.add(pod.uid)
            elif pod.name in job.streams:
                kept[pod.uid] = known
        self._lost = kept
        return replace(facts, left=tuple(pod for pod in facts.left if pod.uid in kept))

    def _is_excused(self, pod: KubePod, known: _Lost, facts: KubeFacts, job: Job) -> bool:
        if pod.uid in self._excused or pod.uid in facts.ours or facts.wants_no_pods:
            return True
        went_on = known.gone_at is not None and (
            job.attempt.last_progress > known.gone_at + _WENT_ON_SECONDS
        )
        return known.attempt != job.attempt.number or went_on


OURS = "ended by mwatch"
TAKEN = "taken by the cluster"
_LOST_NODE_SECONDS = 60.0
"""A pod on a node that is not ready counts as lost if it has not answered for this long."""


class _Known(NamedTuple):
    pod: KubePod
    restarts: int
    started_at: float | None
    """Start time of its wrapper, as last seen."""
    has_ended: bool


class JobEnds:
    """Exits that a sidecar may not live to report.

    A pod that vanishes is lost, unless Kubernetes knows a reason (`checks.kube_causes`). The end of
    the training container counts if its wrapper recorded no exit: then the whole container was
    killed, usually by the kernel for its memory.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, facts: KubeFacts, views: Mapping[str, PodView], now: float) -> list[Observed]:
        found: list[Observed] = []
        here = {pod.uid: pod for pod in facts.pods}
        for uid in [uid for uid in self._known if uid not in here]:
            known = self._known.pop(uid)
            if not known.has_ended:
                end = ProcessExit(None, None, _why_gone(known.pod, facts))
                found.append(Observed(now, known.pod.name, end))
        for uid, pod in here.items():
            if (exit := self._end(pod, views.get(uid), facts, now)) is not None:
                found.append(Observed(now, pod.name, exit))
        return found

    def _end(
        self, pod: KubePod, view: PodView | None, facts: KubeFacts, now: float
    ) -> ProcessExit | None:
        snapshot = None if view is None else view.snapshot
        wrapper = None if snapshot is None else snapshot.wrapper
        started = None if wrapper is None else wrapper.started_at
        trainer = _trainer(pod)
        restarts = 0 if trainer is None else trainer.restarts
        known = self._known.get(pod.uid)
        is_new_start = known is not None and known.started_at != started
        has_ended = known is not None and known.has_ended and not is_new_start
        end = None
        if known is not None and not has_ended and not is_new_start:
            has_exit = wrapper is not None and wrapper.exit is not None
            end = _exit(known, pod, trainer, facts, has_exit, _lost_for(view, now))
        elif known is None and pod.is_over:
            has_ended = True  # before this controller started
        has_ended = has_ended or end is not None
        self._known[pod.uid] = _Known(pod, restarts, started, has_ended)
        return end


def _exit(
    known: _Known,
    pod: KubePod,
    trainer: Container | None,
    facts: KubeFacts,
    has_exit: bool,
    lost_for: float,
) -> ProcessExit | None:
    if pod.is_over and not has_exit:
        code, reason = (None, "") if trainer is None else (trainer.exit_code, trainer.exit_reason)
        reason = TAKEN if pod.disruption is not None else pod.reason or reason
        return ProcessExit(code, None, reason or None)
    if trainer is not None and trainer.restarts > known.restarts and not has_exit:
        return ProcessExit(trainer.exit_code, None, trainer.exit_reason or None)
    if lost_for > _LOST_NODE_SECONDS and _is_node_lost(pod, facts.nodes):
        return ProcessExit(None, None, f"pod lost: node {pod.node} is not ready")
    return None


def _lost_for(view: PodView | None, now: float) -> float:
    """Seconds without an answer; 0: it answers, or never did."""
    if view is None or view.answered_at is None or not view.problem:
        return 0.0
    return now - view.answered_at


def _is_node_lost(pod: KubePod, nodes: tuple[KubeNode, ...] | None) -> bool:
    return any(node.name == pod.node and not node.is_ready for node in nodes or ())


def _why_gone(pod: KubePod, facts: KubeFacts) -> str:
    job = facts.job
    if pod.uid in facts.ours:
        return OURS
    if job is None or job.is_deleting or job.finished or pod.phase == "Succeeded":
        return "its job has ended"
    if job.is_suspended:
        return "suspended"
    if pod.disruption is not None and not _is_node_lost(pod, facts.nodes):
        return TAKEN
    return "pod lost: a person deleted it" if pod.is_deleting else "pod lost: it is gone"


def _trainer(pod: KubePod) -> Container | None:
    return next(
        (each for each in pod.containers if not each.is_init and each.name != SIDECAR), None
    )
