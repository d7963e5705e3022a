# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A gang restart on the real API server: exactly the old pods go, whoever retries, however late."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cluster import kube_things as things
from mwatch.gang import restart as restart_module
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import AlreadyUnderWay, GangLimits, GangProgress, GangRestart, ledger_key
from mwatch.gang.suspend import start_job, stop_job
from mwatch.kube.access import Access, CallLimits, CallOutcome
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import EVENTS, JOBS, PODS
from mwatch.model.kube.gang import GangPlan, GangStep, Method, Target
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.restart_state import RestartState

NOW = 1_800_000_000.0
SLOW_SECONDS = 60.0
"""For what takes a moment, unless the machine is busy."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete that a busy server answers late would be sent again, and not be counted then."""
    monkeypatch.setattr(restart_module, "ACTING", CallLimits(call_seconds=SLOW_SECONDS))


def the_plan(access: Access, job: KubeJob, way: Method = Method.DELETE_PODS) -> GangPlan:
    targets = tuple(Target(pod.name, pod.uid, pod.node) for pod in pods_of(access, job))
    return GangPlan(way, job.kind, job.namespace, job.name, job.uid, targets, targets[0].uid)


def restarter(
    access: Access, namespace: str, may_act: object = None, **more: object
) -> GangRestart:
    limits = GangLimits(look_seconds=0.02)
    allowed = may_act if callable(may_act) else lambda: True
    return GangRestart(access, Ledger(access, namespace), may_act=allowed, limits=limits)


def uids(access: Access, job: KubeJob) -> set[str]:
    return {pod.uid for pod in pods_of(access, job)}


def test_all_pods_of_the_gang_go_and_no_others(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    for index in range(3):
        things.make_pod(access, job, f"train-{index}")
    other = things.make_job(access, namespace, "other")
    things.make_pod(access, other, "other-0")
    # The label of the job, but of another owner: not its pod.
    things.make_pod(access, job, "stranger", owner=other)
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)

    done = gang.advance(step, seconds=SLOW_SECONDS, now=NOW)

    assert (done.progress, done.deleted, done.left) == (GangProgress.DONE, 3, 0)
    left = access.call("GET", PODS.path(namespace)).body
    assert things.names(left) == {"other-0", "stranger"}


def test_known_pods_are_read_again_by_their_metadata(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    for index in range(3):
        things.make_pod(access, job, f"train-{index}")
    known = pods_of(access, job)
    (first, *_) = access.list(PODS, namespace, only_metadata=True).objects
    assert first["metadata"]["uid"] and not {"spec", "status"} & first.keys()
    assert pods_of(access, job, known) == known
    labelled = {"metadata": {"labels": {"changed": "yes"}}}
    assert access.patch(PODS, namespace, "train-1", labelled).is_ok
    assert pods_of(access, job, known) == pods_of(access, job) != known


def test_a_pod_made_anew_under_the_same_name_survives_a_late_retry(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    old = things.make_pod(access, job, "train-0")
    assert access.delete(PODS, namespace, "train-0", uid=old).is_ok
    new = things.make_pod(access, job, "train-0")

    late = access.delete(PODS, namespace, "train-0", uid=old)

    assert late.outcome is CallOutcome.CONFLICT
    assert uids(access, job) == {new}


def test_a_controller_killed_in_the_middle_is_followed_by_one_that_repeats_nothing(
    access: Access,
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    for index in range(4):
        things.make_pod(access, job, f"train-{index}")
    left = iter([True, True])  # two deletes, then the lease is lost
    first = restarter(access, namespace, lambda: next(left, False))
    step = first.begin(the_plan(access, job), id="i1", attempt=7, at=NOW)
    cut = first.advance(step, seconds=SLOW_SECONDS, now=NOW)
    assert (cut.progress, cut.deleted) == (GangProgress.NOT_LEADER, 2)
    gone = {f"train-{index}" for index in range(4)} - {pod.name for pod in pods_of(access, job)}
    new = {things.make_pod(access, job, name) for name in gone}

    kept = Ledger(access, namespace).read().of(ledger_key("Job", "train")).step
    assert kept is not None and set(kept.uids) == set(step.uids)
    done = restarter(access, namespace).advance(kept, seconds=SLOW_SECONDS, now=NOW)

    assert (done.progress, done.deleted) == (GangProgress.DONE, 2)
    assert uids(access, job) == new
    again = Ledger(access, namespace).read().of(ledger_key("Job", "train")).step
    assert again is not None and again.state is RestartState.DONE
    assert restarter(access, namespace).advance(again, seconds=1, now=NOW).deleted == 0
    assert uids(access, job) == new


def test_what_is_meant_is_written_down_before_the_first_delete(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    things.make_pod(access, job, "train-0")
    ledger = Ledger(access, namespace)
    kept: list[GangStep | None] = []

    def may_act() -> bool:
        kept.append(ledger.read().of(ledger_key("Job", "train")).step)
        return True

    gang = restarter(access, namespace, may_act)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)
    gang.advance(step, seconds=SLOW_SECONDS, now=NOW)

    assert kept[0] == step


def test_a_second_restart_of_a_job_waits_for_the_first(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    things.make_pod(access, job, "train-0")
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)

    with pytest.raises(AlreadyUnderWay):
        gang.begin(the_plan(access, job), id="i2", attempt=1, at=NOW)
    assert gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW) == step


def test_a_job_of_the_same_name_that_was_made_anew_is_left_alone(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    things.make_pod(access, job, "train-0")
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)
    old = uids(access, job).pop()
    access.delete(PODS, namespace, "train-0", uid=old)
    access.call("DELETE", JOBS.path(namespace, "train"), body={"propagationPolicy": "Background"})
    another = things.make_job(access, namespace)
    new = things.make_pod(access, another, "train-0")

    done = gang.advance(step, seconds=SLOW_SECONDS, now=NOW)

    assert done.progress is GangProgress.DONE and "another one" in done.text
    assert uids(access, another) == {new}


def test_force_is_used_on_a_node_that_is_gone_for_long_and_on_no_other(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    for node in ("gone", "away", "here"):
        things.make_node(access, f"{node}-{namespace}")
        things.make_pod(access, job, f"train-{node}", node=f"{node}-{namespace}")
    nodes = (
        KubeNode(f"gone-{namespace}", is_ready=False, unready_since=NOW - 301),
        KubeNode(f"away-{namespace}", is_ready=False, unready_since=NOW - 60),
        KubeNode(f"here-{namespace}"),
    )
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)

    def leaves_two() -> bool:
        """Nobody runs kubelets here: pods that were asked to end wait for theirs."""
        seen = gang.advance(step, seconds=0.2, now=NOW, nodes=nodes)
        assert seen.progress is GangProgress.WAITING
        return seen.left == 2

    things.wait_for(leaves_two, "the end of the pod on the node that is gone")
    left = {pod.name: pod for pod in pods_of(access, job)}
    assert set(left) == {"train-away", "train-here"}
    assert all(pod.is_deleting and pod.grace_seconds == 30 for pod in left.values())


def test_a_job_that_counts_deleted_pods_is_suspended_and_resumed(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=2)
    old = [things.make_pod(access, job, f"train-{index}") for index in range(2)]
    wanted = plan(job, GangFacts(pods_of(access, job), 0.0, is_asked=True))
    assert isinstance(wanted, GangPlan) and wanted.way is Method.SUSPEND_RESUME
    gang = restarter(access, namespace)
    step = gang.begin(wanted, id="i1", attempt=1, at=NOW)
    assert gang.advance(step, seconds=0.1, now=NOW).progress is GangProgress.WAITING
    paused = find_job(access, namespace, "train")
    assert paused is not None and paused.is_suspended
    for index, uid in enumerate(old):  # what the Job's own controller does
        access.delete(PODS, namespace, f"train-{index}", uid=uid)

    kept = Ledger(access, namespace).read().of(ledger_key("Job", "train")).step
    assert kept is not None and kept.state is RestartState.SUSPENDED
    done = restarter(access, namespace).advance(kept, seconds=SLOW_SECONDS, now=NOW)

    assert done == (GangProgress.DONE, 0, 0, "suspended and resumed")
    again = find_job(access, namespace, "train")
    assert again is not None and not again.is_suspended


def test_a_person_who_suspends_the_job_meanwhile_keeps_it_suspended(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    uid = things.make_pod(access, job, "train-0")
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job, Method.SUSPEND_RESUME), id="i1", attempt=1, at=NOW)
    gang.advance(step, seconds=0.05, now=NOW)
    theirs = {"metadata": {"annotations": {"mwatch.dev/suspended-by": "alice"}}}
    access.patch(JOBS, namespace, "train", theirs)
    access.delete(PODS, namespace, "train-0", uid=uid)

    kept = Ledger(access, namespace).read().of(ledger_key("Job", "train")).step
    assert kept is not None
    done = gang.advance(kept, seconds=SLOW_SECONDS, now=NOW)

    assert done.progress is GangProgress.DONE and "someone else" in done.text
    after = find_job(access, namespace, "train")
    assert after is not None and after.is_suspended


def test_one_pod_is_deleted_where_the_jobset_does_the_rest_and_all_where_it_does_not(
    access: Access,
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    made = [things.make_pod(access, job, f"train-{index}") for index in range(3)]
    gang = restarter(access, namespace)
    wanted = replace(the_plan(access, job, Method.FAIL_ONE), first=made[1])
    step = gang.begin(wanted, id="i1", attempt=1, at=NOW)

    seen = gang.advance(step, seconds=0.05, now=NOW)
    assert (seen.progress, seen.deleted) == (GangProgress.WAITING, 1)
    assert uids(access, job) == {made[0], made[2]}

    late = gang.advance(step, seconds=SLOW_SECONDS, now=NOW + 61)
    assert (late.progress, late.deleted) == (GangProgress.DONE, 2)


def test_a_stop_says_why_on_the_job(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    assert stop_job(access, Events(access, "one"), job, None, id="i1", reason="out of memory")
    stopped = find_job(access, namespace, "train")
    assert stopped is not None and stopped.is_suspended
    (event,) = access.call("GET", EVENTS.path(namespace)).body["items"]
    assert event["reason"] == "MwatchStopped" and "out of memory" in event["message"]
    assert start_job(access, Events(access, "one"), stopped, None, who="alice", why="fixed")
    again = find_job(access, namespace, "train")
    assert again is not None and not again.is_suspended


@pytest.mark.timeout(900)
def test_five_hundred_pods_go_within_seconds(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=500)
    began = time.monotonic()
    for index in range(500):
        things.make_pod(access, job, f"train-{index}")
    one_by_one = time.monotonic() - began
    gang = restarter(access, namespace)
    step = gang.begin(the_plan(access, job), id="i1", attempt=1, at=NOW)
    began = time.monotonic()

    done = gang.advance(step, seconds=600, now=NOW)
    took = time.monotonic() - began

    assert (done.progress, done.deleted) == (GangProgress.DONE, 500)
    # On a machine so busy that 500 calls take longer, they may: several are sent at a time.
    assert took < max(30.0, one_by_one)
