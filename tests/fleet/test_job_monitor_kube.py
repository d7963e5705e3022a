# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes did to a job, and ends that no sidecar lives to tell of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.decide import history
from mwatch.model.decision import Action
from mwatch.model.event import Error
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import Container, Disruption
from mwatch.model.observation import ProcessExit
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.snapshot.pod import TrainerEnd
from mwatch.remediate.case import due
from support.builders import kube
from support.runs.job_monitor_runs import START, Fleet

TAKEN = {
    "deleted_by_user": "",
    "drained": "EvictionByEvictionAPI",
    "preempted": "PreemptionByScheduler",
}


@pytest.mark.parametrize("cause", TAKEN)
def test_a_gang_that_lost_a_pod_is_restarted_without_budget_when_it_is_whole_again(
    cause: str,
) -> None:
    fleet = Fleet(3).run(60)
    fleet.take_away("train-1", by=TAKEN[cause])
    fleet.run(30)
    assert set(fleet.causes[-32:]) == {cause}, "from the first look on"
    assert fleet.decision.action is Action.NONE and fleet.watch.is_broken, "its place is empty"
    fleet.fill("train-1")
    fleet.run(15)
    assert fleet.cause == cause and "stalled" not in fleet.findings
    decision = fleet.decision
    assert decision.action is Action.RESTART and not decision.spends_budget
    assert decision.act_at is not None and decision.act_at <= fleet.now
    fleet.watch.engine.record_action(decision, fleet.now)
    assert history.spent(fleet.watch.engine.record, fleet.now, Settings().act) == 0
    fleet.run(5)
    assert fleet.decision.action is Action.NONE, "once"
    fleet.pods[1].answers = True
    fleet.restart(2)
    fleet.run(30)
    assert fleet.cause == "healthy" and not fleet.watch.is_broken


def test_the_logs_word_of_a_deletion_is_explained_also_where_it_comes_first() -> None:
    fleet = Fleet(2).run(60)
    report = Error("elastic", "SignalException", "got signal: 15", None, None, None, None, None,
                   "SIGTERM", None, None, None, None, None, None, "trainer.log", 70)  # fmt: skip
    fleet.pods[1].say(fleet.now, report)
    fleet.run(6)
    assert fleet.cause == "healthy", "the wrapper has seen no end: a line alone proves none"
    fleet.pods[1].say(fleet.now, ProcessExit(None, "SIGTERM", None))
    fleet.run(6)
    assert fleet.cause == "killed"
    assert due(fleet.watch, fleet.now) is None, "not acted on before the cluster had its say"
    fleet.take_away("train-1")
    fleet.run(1)
    assert fleet.cause == "deleted_by_user" and fleet.decision.action is Action.NONE


def test_a_pod_that_is_gone_at_once_was_deleted_too() -> None:
    fleet = Fleet(2).run(60)
    del fleet.kube["train-1"]
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.run(3)
    assert fleet.cause == "deleted_by_user"


def test_a_crashed_pod_that_its_controller_replaces_was_deleted_by_no_person() -> None:
    fleet = Fleet(2).run(60)
    fleet.pods[1].say(fleet.now, ProcessExit(139, None, None))
    fleet.pods[1].stalls_at = fleet.pods[0].stalls_at = fleet.now
    fleet.pods[1].exit = TrainerEnd(fleet.now, 139, returned=139)
    fleet.run(6)
    fleet.replace("train-1", phase="Failed")
    fleet.run(1)
    fleet.take_away("train-1")
    fleet.fill("train-1")
    fleet.run(20)
    assert "deleted_by_user" not in fleet.causes
    assert fleet.decision.action is Action.RESTART and fleet.decision.spends_budget


def test_a_gang_that_is_taken_as_a_whole_comes_back_by_itself() -> None:
    fleet = Fleet(2).run(60)
    for name in list(fleet.kube):
        fleet.take_away(name)
    fleet.run(10)
    assert fleet.cause == "deleted_by_user" and not fleet.watch.is_broken
    for name in ("train-0", "train-1"):
        fleet.fill(name, uid=f"new-{name}")
    fleet.run(30)
    assert fleet.cause == "deleted_by_user" and fleet.decision.action is Action.NONE
    for pod in fleet.pods:
        pod.answers = pod.is_new = True
    fleet.restart(2)
    fleet.run(30)
    assert fleet.cause == "healthy"


def test_a_job_that_is_resumed_was_not_deleted_by_a_person() -> None:
    fleet = Fleet(2).run(60)
    fleet.job = replace(fleet.job, is_suspended=True)
    for name in list(fleet.kube):
        fleet.take_away(name)
    fleet.run(5)
    assert fleet.cause == "suspended"
    fleet.job = replace(fleet.job, is_suspended=False)
    for name in ("train-0", "train-1"):
        fleet.fill(name, uid=f"new-{name}")
    fleet.run(10)
    assert fleet.cause != "deleted_by_user"


def test_a_deleted_pod_that_training_goes_on_without_is_forgotten() -> None:
    fleet = Fleet(3).run(60)
    del fleet.kube["train-1"]
    fleet.run(20)
    assert fleet.cause == "deleted_by_user"
    fleet.fill("train-1")
    fleet.run(10)
    assert fleet.decision.action is Action.NONE, "others go on"
    fleet.run(60)
    assert fleet.cause == "lost_pod" and fleet.decision.action is Action.NONE


def test_a_pod_that_mwatch_itself_deletes_is_not_lost() -> None:
    fleet = Fleet(2).run(60)
    fleet.watch.ours = frozenset(pod.uid for pod in fleet.kube.values())
    fleet.run(1)
    fleet.watch.ours = frozenset()  # the hands are done before the API server tells of it
    fleet.kube.clear()
    fleet.detectors.clear()
    fleet.run(60)
    assert not fleet.detectors
    assert fleet.watch.phase is JobPhase.SCHEDULING


def test_a_preempted_pod_is_explained_by_that_also_when_it_is_gone() -> None:
    fleet = Fleet(3).run(60)
    gone = Disruption("PreemptionByScheduler", "preempting", fleet.now)
    fleet.replace("train-1", disruption=gone, deleting_at=fleet.now + 30)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.run(3)
    del fleet.kube["train-1"]
    fleet.run(60)
    assert fleet.cause == "preempted"
    said = fleet.watch.assessment
    assert said is not None and said.decision.action is Action.NONE
    assert not said.decision.spends_budget
    assert "stalled" not in fleet.findings


def test_a_drained_gang_that_is_back_and_hangs_is_a_hang() -> None:
    fleet = Fleet(3).run(60)
    fleet.take_away("train-1", by="EvictionByEvictionAPI")
    fleet.fill("train-1")
    fleet.pods[1].answers = True
    fleet.restart(2)
    fleet.run(50)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.run(120)
    assert fleet.cause == "hang"


def test_a_suspended_job_is_no_hang_and_no_crash() -> None:
    fleet = Fleet(2).run(60)
    fleet.job = replace(fleet.job, is_suspended=True)
    fleet.run(1)
    fleet.kube.clear()
    fleet.detectors.clear()
    fleet.run(120)
    assert fleet.cause == "suspended"
    assert "stalled" not in fleet.detectors and "blind" not in fleet.detectors


def test_pods_that_wait_for_a_place_are_scheduling_and_not_blind() -> None:
    fleet = Fleet(2)
    for name in list(fleet.kube):
        fleet.replace(name, phase="Pending")
    for pod in fleet.pods:
        pod.answers = False
    fleet.run(300)
    assert fleet.watch.phase is JobPhase.SCHEDULING
    assert "blind" not in fleet.detectors


def test_an_unschedulable_pod_takes_the_place_of_the_silence_that_follows_from_it() -> None:
    fleet = Fleet(2).run(60)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    waits = replace(
        kube.pod("train-1", phase="Pending"), uid="second", scheduled=False,
        unscheduled_reason="Unschedulable", unscheduled_text="0/9 nodes", unscheduled_since=START,
    )  # fmt: skip
    fleet.kube["train-1"] = waits
    fleet.run(200)
    assert fleet.cause == "unschedulable"
    assert "stalled" not in fleet.findings


def container(**change: object) -> Container:
    usual = Container("pytorch", False, False, True, 0, "", "", None, "", None)
    return usual._replace(**change)  # type: ignore[arg-type]


def test_a_container_that_the_kernel_killed_without_a_word_is_out_of_memory() -> None:
    fleet = Fleet(2)
    for name in fleet.kube:
        fleet.replace(name, containers=(container(),))
    fleet.run(60)
    killed = container(restarts=1, exit_code=137, exit_reason="OOMKilled")
    fleet.replace("train-1", containers=(killed,))
    fleet.run(3)
    assert fleet.cause == "oom"


def test_a_pod_whose_sidecar_cannot_be_pulled_trains_and_is_not_watched() -> None:
    """Kubernetes calls it Pending, although its trainer runs."""
    fleet = Fleet(2)
    sidecar = container(name="mwatch", is_running=False, waiting="ErrImagePull", waiting_text="no")
    for pod in fleet.pods:
        pod.answers = False
        fleet.replace(pod.name, phase="Pending", containers=(container(), sidecar))
    fleet.run(30)
    assert fleet.cause == "blind" and fleet.watch.phase is None
    found = fleet.watch.verdict
    assert found is not None and found.summary.startswith("not watched: train-0 runs, but its ")
    assert "(ErrImagePull: no)" in found.summary
    assert "kubectl set image -n ns pod/train-0 mwatch=IMAGE" in found.summary
    assert fleet.decision.action is Action.NONE
    fleet.replace("train-0", containers=(container(is_running=False, waiting="x"), sidecar))
    fleet.replace("train-1", containers=(container(is_running=False, waiting="x"), sidecar))
    fleet.run(5)
    assert fleet.cause == "image", "nothing runs: that is the image's fault"


def test_trainers_without_the_wrapper_are_not_watched() -> None:
    fleet = Fleet(2, has_probe=False, has_log=False, unwatched="no Python here")
    fleet.pods[-1].prints = False
    fleet.run(30)
    found = fleet.watch.verdict
    assert found is not None and found.cause.value == "blind"
    assert found.summary == "not watched: 2 of 2 pods train without mwatch: no Python here"
    assert fleet.decision.action is Action.NONE


def test_a_container_that_was_restarted_before_we_came_is_not_reported() -> None:
    fleet = Fleet(2)
    for name in fleet.kube:
        killed = container(restarts=3, exit_code=137, exit_reason="OOMKilled")
        fleet.replace(name, containers=(killed,))
    fleet.run(60)
    assert fleet.cause == "healthy"


def test_a_pod_on_a_node_that_is_lost_is_lost_only_when_it_does_not_answer_either() -> None:
    fleet = Fleet(3)
    fleet.nodes = (KubeNode("n1"), KubeNode("n2"))
    fleet.replace("train-1", node="n2")
    fleet.run(60)
    fleet.nodes = (KubeNode("n1"), KubeNode("n2", is_ready=False))
    fleet.run(120)
    assert fleet.cause == "healthy"
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.pods[1].answers = False
    fleet.run(75)
    assert fleet.cause == "lost_pod"


def test_a_wrapper_that_says_how_it_ended_is_believed_over_the_container() -> None:
    fleet = Fleet(2).run(30)
    fleet.pods[1].say(fleet.now, ProcessExit(1, None, None))
    fleet.pods[1].stalls_at = fleet.pods[0].stalls_at = fleet.now
    fleet.run(8)
    assert fleet.cause == "crash"


def test_a_job_that_has_succeeded_before_anything_was_seen_has_finished() -> None:
    fleet = Fleet(2)
    fleet.job = replace(fleet.job, finished="Succeeded")
    fleet.kube.clear()
    fleet.run(5)
    assert fleet.cause == "finished"
