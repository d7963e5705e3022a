# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The tasks of the workers and their words, made from what the loop knows at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mwatch.app.hand_case import Case, Stage, next_start, record_of, wished
from mwatch.app.hand_task import Task, Words
from mwatch.app.pod_talk import PodAddress
from mwatch.model.decision import Action, Decision
from mwatch.model.gang import GangStep, Way
from mwatch.model.kube_ledger import JobEntry
from mwatch.model.kube_wrapper import wrappers_observe
from mwatch.model.next_start import Wish

if TYPE_CHECKING:
    from mwatch.app.job_watch import JobWatch

_ACT = "act"


def task_of(
    job: JobWatch,
    decision: Decision,
    id: str,
    *,
    is_asked: bool,
    token: str,
    in_place: bool,
    at_desk: frozenset[str],
) -> Task:
    """`in_place`: whether the fleet's settings allow it. `at_desk`: pods that wait there."""
    culprit = None if decision.finding is None else decision.finding.culprit
    blamed = culprit.pod if culprit is not None else None
    places, unseen = _places(job, blamed)
    can = in_place and bool(token) and not decision.avoid_node and _all_act(job, at_desk)
    return Task(
        id=id,
        key=job.key,
        job=job.kube,
        attempt=decision.attempt,
        action=decision.action,
        reason=decision.reason,
        is_asked=is_asked,
        pods=places,
        unseen=unseen,
        nodes=job.facts.nodes,
        can_in_place=can,
        avoid=(culprit.node or "") if culprit is not None and decision.avoid_node else "",
        blamed=next((each.uid for each in places if each.pod == blamed), ""),
        token=token,
    )


def taken_up(job: JobWatch, entry: JobEntry, step: GangStep, token: str) -> Task:
    """Of a step that somebody has begun before."""
    record = next((each for each in entry.incidents if each.id == step.id), None)
    places, unseen = _places(job, None)
    return Task(
        id=step.id,
        key=job.key,
        job=job.kube,
        attempt=step.attempt,
        action=Action.STOP if step.way is Way.STOP else Action.RESTART,
        reason="taken up again" if record is None else record.reason,
        is_asked=True,  # what was begun is finished
        pods=places,
        unseen=unseen,
        nodes=job.facts.nodes,
        can_in_place=False,
        token=token,
    )


def words_of(
    job: JobWatch, decision: Decision, id: str, entry: JobEntry, told: int, now: float
) -> Words:
    """After it was enacted. `told`: the highest attempt that a wrapper has told of."""
    act = job.engine.record.of_attempt(decision.attempt)
    assert act is not None
    # Wrappers that only observe ask nobody, and count for themselves.
    asks = job.kube.mode == _ACT and not wrappers_observe(job.kube)
    is_told = asks and decision.action is Action.RESTART
    start = next_start(job, decision, entry, told) if is_told else None
    return Words(act, record_of(id, job, decision, is_act=True, now=now), start)


def case_again(job: JobWatch, step: GangStep, reason: str, before: Case | None, now: float) -> Case:
    """Of such a step. `before`: what was known of it, where it was kept back: people were told."""
    decision = wished(job, Wish(step.id, now, "mwatch", reason))
    case = Case(job.key, job.kube.uid, step.id, decision, now, step.began_at)
    case.stage, case.way = Stage.CARRYING, step.way.value
    if before is not None and before.tried and before.id == step.id:
        case.tried, case.told = before.tried, before.told
    return case


def _places(
    job: JobWatch, blamed: str | None
) -> tuple[tuple[PodAddress, ...], tuple[tuple[str, str], ...]]:
    """Where the sidecars answer, the blamed pod's first; and who cannot be asked."""
    places, unseen = [], []
    for pod in job.facts.pods:
        sight = job.pods.get(pod.uid)
        if sight is None or not sight.address or not sight.port:
            unseen.append((pod.name, "its sidecar has no address"))
            continue
        places.append(PodAddress(pod.name, pod.uid, sight.address, sight.port))
    places.sort(key=lambda each: (each.pod != blamed, each.pod))
    return tuple(places), tuple(unseen)


def _all_act(job: JobWatch, at_desk: frozenset[str]) -> bool:
    """Every wrapper acts, and can be asked or waits already."""
    for pod in job.facts.pods:
        if pod.name in at_desk:
            continue  # who asks acts
        sight = job.pods.get(pod.uid)
        wrapper = None if sight is None or sight.snapshot is None else sight.snapshot.wrapper
        if sight is None or sight.problem or wrapper is None or wrapper.mode != _ACT:
            return False
    return bool(job.facts.pods)
