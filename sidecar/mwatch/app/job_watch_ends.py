# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ends that a sidecar may not live to tell of: what the API server says of pods and containers.

A pod that vanishes is lost, unless somebody had a reason that Kubernetes knows: then that cause
explains it (`checks.kube_causes`), and here it is only over. The training container's end counts
when its wrapper left no word: it was killed as a whole, by the kernel for its memory as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mwatch.app.pod_sight import PodSight
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_node import KubeNode
from mwatch.model.kube_pod import Container, KubePod
from mwatch.model.observation import Observed, ProcessExit

OURS = "ended by mwatch"
TAKEN = "taken by the cluster"
SIDECAR = "mwatch"
_LOST_NODE_SECONDS = 60.0
"""A node that is not ready, and whose pods have not answered for so long, is lost."""


class _Known(NamedTuple):
    pod: KubePod
    restarts: int
    started_at: float | None
    """Of the wrapper that the engine knows."""
    is_told: bool
    """Its end: once is enough."""


class JobEnds:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, facts: KubeFacts, sights: Mapping[str, PodSight], now: float) -> list[Observed]:
        """What is new."""
        found: list[Observed] = []
        here = {pod.uid: pod for pod in facts.pods}
        for uid in [uid for uid in self._known if uid not in here]:
            known = self._known.pop(uid)
            if not known.is_told:
                found.append(_ended(known.pod, now, _why_gone(known.pod, facts)))
        for uid, pod in here.items():
            end = self._end(pod, sights.get(uid), facts, now)
            found += [] if end is None else [end]
        return found

    def _end(
        self, pod: KubePod, sight: PodSight | None, facts: KubeFacts, now: float
    ) -> Observed | None:
        snapshot = None if sight is None else sight.snapshot
        wrapper = None if snapshot is None else snapshot.wrapper
        started = None if wrapper is None else wrapper.started_at
        trainer = _trainer(pod)
        restarts = 0 if trainer is None else trainer.restarts
        known = self._known.get(pod.uid)
        is_new_start = known is not None and known.started_at != started
        is_told = known is not None and known.is_told and not is_new_start
        end = None
        if known is not None and not is_told and not is_new_start:
            has_word = wrapper is not None and wrapper.exit is not None
            end = _judged(known, pod, trainer, facts, has_word, _lost_for(sight, now))
        elif known is None and pod.is_over:
            is_told = True  # before we came
        is_told = is_told or end is not None
        self._known[pod.uid] = _Known(pod, restarts, started, is_told)
        return None if end is None else Observed(now, pod.name, end)


def _judged(
    known: _Known,
    pod: KubePod,
    trainer: Container | None,
    facts: KubeFacts,
    has_word: bool,
    lost_for: float,
) -> ProcessExit | None:
    if pod.is_over and not has_word:
        code = None if trainer is None else trainer.exit_code
        return ProcessExit(code, None, _reason(pod, trainer))
    if trainer is not None and trainer.restarts > known.restarts and not has_word:
        return ProcessExit(trainer.exit_code, None, trainer.exit_reason or None)
    if lost_for > _LOST_NODE_SECONDS and _is_node_lost(pod, facts.nodes):
        return ProcessExit(None, None, f"pod lost: node {pod.node} is not ready")
    return None


def _lost_for(sight: PodSight | None, now: float) -> float:
    """Seconds without an answer; 0: it answers, or never has."""
    if sight is None or sight.answered_at is None or not sight.problem:
        return 0.0
    return now - sight.answered_at


def _is_node_lost(pod: KubePod, nodes: tuple[KubeNode, ...] | None) -> bool:
    return any(node.name == pod.node and not node.is_ready for node in nodes or ())


def _reason(pod: KubePod, trainer: Container | None) -> str | None:
    if pod.disruption is not None:
        return TAKEN
    return pod.reason or (trainer.exit_reason if trainer is not None else "") or None


def _ended(pod: KubePod, now: float, reason: str) -> Observed:
    return Observed(now, pod.name, ProcessExit(None, None, reason))


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
    return "pod lost: somebody deleted it" if pod.is_deleting else "pod lost: it is gone"


def _trainer(pod: KubePod) -> Container | None:
    """The first that is not ours: the sidecar's ends are its own."""
    return next(
        (each for each in pod.containers if not each.is_init and each.name != SIDECAR), None
    )
