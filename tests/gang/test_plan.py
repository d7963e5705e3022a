# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How each kind of job is restarted, and when it is not: one row for each trap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mwatch.gang.plan import GangFacts, may_stop, plan
from mwatch.model.kube.facts import KubeQuota, KubeWorkload
from mwatch.model.kube.gang import (
    GangPlan,
    GangRefusal,
    Method,
    Reason,
    from_json,
    step_of,
    to_json,
)
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode
from support.builders.kube import ACT, batch_job, job_set, pod, pytorch_job, stateful_set

KUEUE: dict[str, Any] = {"labels": {"mwatch.dev/watch": "true", "kueue.x-k8s.io/queue-name": "q"}}
BARE: dict[str, Any] = {"annotations": {"mwatch.dev/mode": "act"}}
PODS = (pod("train-0"), pod("train-1", node="n2"))
ADMITTED = KubeWorkload("w", "u", "1", "job-uid", True, True, "", "")
FACTS = GangFacts(PODS, 1.0, workload=ADMITTED)
RESTARTS = {"maxRestarts": 3}
FAIL = {"maxRestarts": 3, "rules": [{"action": "FailJobSet"}]}
ANYWAY = {"maxRestarts": 0, "rules": [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]}
OTHER = {"maxRestarts": 3, "rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["driver"]}]}
_RULE = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
USER = {"maxRestarts": 3, "rules": [_RULE]}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (pytorch_job("OnFailure"), Method.DELETE_PODS),
        (pytorch_job("Always"), Method.DELETE_PODS),
        (pytorch_job("Never"), Method.SUSPEND_RESUME),
        (pytorch_job("ExitCode"), Method.DELETE_PODS),
        (pytorch_job("ExitCode", **BARE), Method.SUSPEND_RESUME),
        (pytorch_job("OnFailure", **BARE), Method.SUSPEND_RESUME),
        (pytorch_job("OnFailure", **BARE, **KUEUE), Method.DELETE_PODS),
        (pytorch_job(run_policy={"backoffLimit": 3}), Method.SUSPEND_RESUME),
        (pytorch_job("OnFailure", **KUEUE), Method.DELETE_PODS),
        (pytorch_job("Never", **KUEUE), Reason.RESTART_POLICY),
        (pytorch_job("ExitCode", **KUEUE), Method.DELETE_PODS),
        (pytorch_job("ExitCode", **BARE, **KUEUE), Reason.RESTART_POLICY),
        (pytorch_job(run_policy={"backoffLimit": 3}, **KUEUE), Method.DELETE_PODS),
        (pytorch_job(run_policy={"backoffLimit": 0}, **KUEUE), Reason.BACKOFF_LIMIT),
        (batch_job(), Method.SUSPEND_RESUME),
        (batch_job(0), Method.SUSPEND_RESUME),
        (batch_job(6, **KUEUE), Method.DELETE_PODS),
        (batch_job(6, failed=5, **KUEUE), Reason.BACKOFF_LIMIT),
        (job_set(0, RESTARTS), Method.FAIL_ONE),
        (job_set(0, RESTARTS, **KUEUE), Method.FAIL_ONE),
        (job_set(0, RESTARTS, restarts=3), Method.SUSPEND_RESUME),
        (job_set(0, RESTARTS, restarts=3, **KUEUE), Reason.BACKOFF_LIMIT),
        (job_set(0, FAIL), Method.SUSPEND_RESUME),
        (job_set(0, ANYWAY, restarts=9), Method.FAIL_ONE),
        (job_set(0, OTHER), Method.FAIL_ONE),
        (job_set(0, USER), Method.FAIL_ONE),
        (job_set(0, None), Method.SUSPEND_RESUME),
        (job_set(None, RESTARTS), Method.DELETE_PODS),
        (job_set(1, RESTARTS), Method.SUSPEND_RESUME),
        (stateful_set(), Method.DELETE_PODS),
        (stateful_set(mode="act"), Method.DELETE_PODS),
        (stateful_set(mode="observe"), Reason.WRAPPERS_OBSERVE),
        (pytorch_job(run_policy={"suspend": True}), Reason.SUSPENDED),
        (
            pytorch_job(run_policy={"managedBy": "kueue.x-k8s.io/multikueue"}),
            Reason.MANAGED_ELSEWHERE,
        ),
        (pytorch_job(annotations={}), Reason.OBSERVING),
        (pytorch_job(annotations={"mwatch.dev/mode": "Act"}), Reason.OBSERVING),
        (pytorch_job(annotations={**ACT, "mwatch.dev/pause": "2h"}), Reason.PAUSED),
        (pytorch_job(deletionTimestamp="2026-01-01T00:00:00Z"), Reason.DELETING),
        (replace(pytorch_job(), finished="Succeeded"), Reason.FINISHED),
        (replace(pytorch_job(), finished="Failed"), Reason.FINISHED),
    ],
)  # fmt: skip
def test_each_job_is_restarted_in_the_way_that_it_survives(
    job: KubeJob, expected: Method | Reason
) -> None:
    found = plan(job, FACTS)
    assert (found.way if isinstance(found, GangPlan) else found.why) is expected, found


def why(job: KubeJob, **facts: Any) -> Reason | Method:
    found = plan(job, replace(FACTS, **facts))
    return found.why if isinstance(found, GangRefusal) else found.way


@pytest.mark.parametrize("age", [None, 31.0])
def test_nobody_acts_on_an_old_view(age: float | None) -> None:
    assert why(pytorch_job(), view_age_seconds=age) is Reason.STALE_VIEW


def test_without_pods_there_is_nothing_to_restart() -> None:
    assert why(pytorch_job(), pods=()) is Reason.NO_PODS


def test_a_person_may_restart_a_job_that_is_paused_or_only_observed() -> None:
    job = pytorch_job(annotations={"mwatch.dev/pause": "2h"})
    assert why(job, is_asked=True) is Method.SUSPEND_RESUME


@pytest.mark.parametrize(
    "work",
    [
        None,
        ADMITTED._replace(is_admitted=False),
        ADMITTED._replace(is_active=False),
        ADMITTED._replace(evicted="Preempted"),
    ],
)
def test_a_job_that_its_queue_has_not_admitted_waits(work: KubeWorkload | None) -> None:
    assert why(pytorch_job(**KUEUE), workload=work) is Reason.QUEUED


def test_hyperpod_and_mwatch_do_not_both_delete() -> None:
    job = pytorch_job(annotations={**ACT, "sagemaker.amazonaws.com/enable-job-auto-resume": "true"})
    health = "sagemaker.amazonaws.com/node-health-status"
    well = [KubeNode(name, labels={health: "Schedulable"}) for name in ("n1", "n2", "n3")]
    sick = KubeNode("n1", labels={health: "UnschedulablePendingReboot"})
    assert why(job, nodes=tuple(well)) is Method.DELETE_PODS
    assert why(job, nodes=(sick, *well[1:])) is Reason.SECOND_ACTOR
    assert why(job, nodes=None) is Reason.SECOND_ACTOR, "what is not seen is not healthy"


def test_in_place_comes_first_where_every_pod_can() -> None:
    job = pytorch_job("Never")
    assert why(job, can_in_place=True) is Method.IN_PLACE
    assert why(job, can_in_place=True, avoid=frozenset({"n2"})) is Method.SUSPEND_RESUME
    assert why(job, can_in_place=True, pods=PODS[:1]) is Method.SUSPEND_RESUME
    dying = (PODS[0], pod("train-1", deleting=True))
    assert why(job, can_in_place=True, pods=dying) is Method.SUSPEND_RESUME
    nodes = (KubeNode("n1"), KubeNode("n2", is_ready=False), KubeNode("n3"))
    assert why(job, can_in_place=True, nodes=nodes) is Method.SUSPEND_RESUME


def test_what_is_not_seen_is_reported() -> None:
    found = plan(pytorch_job(), FACTS)
    assert isinstance(found, GangPlan)
    assert "nodes are not seen" in found.notes[0] and "quotas" in found.notes[1]


def test_quota_and_nodes_are_checked_before_anything_is_deleted() -> None:
    small = KubeQuota("team", {"pods": 1.0}, {"pods": 2.0}, ())
    assert why(pytorch_job(), quotas=(small,)) is Reason.QUOTA
    job = pytorch_job(gpus=8)
    node = KubeNode("n1", allocatable={"nvidia.com/gpu": 8.0, "pods": 100.0})
    assert why(job, nodes=(node,)) is Reason.NODES
    assert why(job, nodes=(node, replace(node, name="n2"))) is Method.DELETE_PODS
    assert why(pytorch_job(), quotas=(small,), can_in_place=True) is Method.IN_PLACE


def test_the_pod_to_blame_is_the_one_that_is_failed() -> None:
    found = plan(job_set(0, RESTARTS), replace(FACTS, blamed="uid-train-1"))
    assert isinstance(found, GangPlan) and found.first == "uid-train-1"
    found = plan(job_set(0, RESTARTS), replace(FACTS, blamed="of-another-job"))
    assert isinstance(found, GangPlan) and found.first == "uid-train-0"


def test_the_record_of_a_step_is_read_back() -> None:
    found = plan(pytorch_job(), FACTS)
    assert isinstance(found, GangPlan)
    step = step_of(found, id="i1", attempt=4, at=12.5)
    assert step.uids == ("uid-train-0", "uid-train-1")
    assert from_json(to_json(step)) == step
    with pytest.raises(ValueError):
        from_json({"id": "x"})


@pytest.mark.parametrize("job", [pytorch_job("OnFailure"), pytorch_job("Never"), batch_job()])
def test_a_gang_that_is_new_already_learns_its_attempt_and_is_not_deleted(job: KubeJob) -> None:
    """A person has deleted all pods, or the operator has: what waits for its image is healthy."""
    waits = tuple(pod(name, phase="Pending") for name in ("train-0", "train-1"))
    found = plan(job, replace(FACTS, pods=waits))
    assert isinstance(found, GangPlan)
    assert found.way is Method.DELETE_PODS and found.targets == () and "new" in found.notes[0]
    asked = plan(job, replace(FACTS, pods=waits, is_asked=True))
    assert isinstance(asked, GangPlan) and len(asked.targets) == 2
    half = plan(job, replace(FACTS, pods=(PODS[0], waits[1])))
    assert isinstance(half, GangPlan) and len(half.targets) == 2


def test_a_pod_that_came_later_and_waits_for_its_first_attempt_stays() -> None:
    facts = replace(FACTS, unused=frozenset({"train-1"}))
    found = plan(pytorch_job("OnFailure"), facts)
    assert isinstance(found, GangPlan) and found.way is Method.DELETE_PODS
    assert [each.name for each in found.targets] == ["train-0"]
    assert "1 new pods stay" in found.notes[-1]
    for other in (
        plan(pytorch_job("Never"), facts),  # all of them go with the suspended job
        plan(pytorch_job("OnFailure"), replace(facts, avoid=frozenset({"n2"}))),
        plan(
            pytorch_job("OnFailure"), replace(facts, pods=(PODS[0], pod("train-1", deleting=True)))
        ),
    ):
        assert isinstance(other, GangPlan) and len(other.targets) == 2


def test_pods_that_were_made_to_observe_are_not_restarted_unless_a_person_asks() -> None:
    """Their wrappers count each gang from 1: the second incident would pass for the first."""
    job = stateful_set(mode="observe")
    found = plan(job, FACTS)
    assert isinstance(found, GangRefusal) and "mwatch inject --mode act" in found.text
    assert isinstance(plan(job, replace(FACTS, is_asked=True)), GangPlan)
    assert may_stop(job, FACTS) is None  # nothing starts after it
