# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods' streams joined into one job: what is found, when, and what must not be taken for a hang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.fleet.visibility import Polled
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.restart_state import RestartState
from mwatch.model.observation import ProcessExit, Source
from mwatch.model.phase import JobPhase
from mwatch.remediate.case import due
from support.runs.job_monitor_runs import START, Fleet


def stopped(fleet: Fleet, name: str) -> Fleet:
    """A rank is stopped, and the others wait for it."""
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    next(pod for pod in fleet.pods if pod.name == name).stops_at = fleet.now
    return fleet


def test_a_job_that_trains_is_healthy_whatever_the_clocks_of_its_pods_say() -> None:
    fleet = Fleet(3).run(60)
    assert fleet.cause == "healthy"
    assert fleet.watch.phase is JobPhase.TRAINING
    assert fleet.watch.engine.job.attempt.iteration == pytest.approx(60, abs=6)
    assert not fleet.findings
    assert fleet.watch.attempt == 1


def test_a_stopped_rank_is_found_within_one_poll_and_two_seconds_of_the_probes_own_time() -> None:
    fleet = stopped(Fleet(3).run(60), "train-1")
    took = 0
    while fleet.cause != "hang" and took < 60:
        fleet.run(1)
        took += 1
    assert took <= 5 + 5 + 2
    said = fleet.watch.assessment
    assert said is not None and said.decision.finding is not None
    culprit = said.decision.finding.culprit
    assert culprit is not None and (culprit.rank, culprit.pod) == (1, "train-1")
    assert culprit.node == "n1"


def test_a_long_step_is_no_silent_rank_when_a_poll_is_missed() -> None:
    fleet = Fleet(3, step_seconds=20.0).run(100)
    for _ in range(4):
        fleet.pods[0].answers = False
        fleet.run(6)
        fleet.pods[0].answers = True
        fleet.run(24)
    assert "rank_silent" not in fleet.detectors
    assert "stalled" not in fleet.detectors


def test_sidecars_that_do_not_answer_make_the_job_blind_and_never_hung() -> None:
    fleet = Fleet(2).run(60)
    for pod in fleet.pods:
        pod.answers = False
    fleet.run(10)
    assert fleet.cause == "blind"
    fleet.detectors.clear()
    fleet.run(300)
    assert fleet.cause == "blind"
    assert fleet.detectors == {"blind"}
    assert "Connection refused" in fleet.findings["blind"]

    for pod in fleet.pods:
        pod.answers = True
    fleet.run(15)
    assert fleet.cause == "healthy"


def test_one_sidecar_of_many_that_does_not_answer_is_reported_and_its_rank_is_not_silent() -> None:
    fleet = Fleet(4).run(60)
    fleet.pods[1].answers = False
    fleet.detectors.clear()
    fleet.run(120)
    assert fleet.cause == "healthy"
    assert fleet.detectors == {"unseen"}
    assert fleet.findings["unseen"].startswith("1 of 4 sidecars do not answer: train-1 (Conn")


def test_the_silence_of_pods_that_never_print_is_no_silence_of_the_log() -> None:
    fleet = Fleet(3, has_probe=False).run(60)
    assert fleet.cause == "healthy"
    fleet.pods[-1].answers = False  # it prints the iterations
    fleet.detectors.clear()
    fleet.run(600)
    assert fleet.detectors == {"blind", "unseen"}
    assert not fleet.watch.engine.job.sees(Source.LOG)


def test_a_hang_is_still_seen_by_those_that_answer() -> None:
    fleet = Fleet(4).run(60)
    fleet.pods[1].answers = False
    fleet.run(10)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.run(30)
    assert fleet.cause == "hang"


def test_a_pod_without_a_sidecar_is_blind_after_its_start() -> None:
    fleet = Fleet(2)
    for pod in fleet.pods:
        pod.answers = False
    fleet.run(30)
    assert fleet.cause == "unknown"
    fleet.run(60)
    assert fleet.cause == "blind"


def test_who_has_just_started_and_reported_nothing_yet_leaves_nobody_blind() -> None:
    fleet = Fleet(2, has_probe=False, has_log=False)
    fleet.pods[-1].prints = False
    fleet.run(55)
    assert "blind" not in fleet.detectors
    fleet.run(30)
    assert fleet.cause == "blind"


def test_a_new_attempt_of_all_pods_starts_clean_though_they_start_at_different_moments() -> None:
    fleet = stopped(Fleet(3).run(60), "train-1").run(30)
    assert fleet.cause == "hang"
    first, *others = fleet.pods
    fleet.restart(2, [first])
    fleet.run(4)
    fleet.restart(2, others)
    fleet.run(40)
    assert fleet.watch.attempt == 2
    assert fleet.cause == "healthy"
    assert fleet.watch.engine.job.attempt.iteration == pytest.approx(90, abs=6)


def test_what_a_pod_of_the_last_attempt_still_does_is_not_of_the_new_one() -> None:
    fleet = Fleet(2).run(60)
    fleet.restart(2, [fleet.pods[0]], resume_from=10)
    fleet.run(12)
    iteration = fleet.watch.engine.job.attempt.iteration
    assert fleet.watch.attempt == 2
    assert iteration is not None and 10 < iteration < 25


def entry(**change: object) -> JobEntry:
    act = Act(START - 500, 3, Action.RESTART, Cause.NAN, "nan/x", 400, 450, True, 451, 401)
    usual = JobEntry(uid="job-uid", attempt=3, acts=(act,))
    return replace(usual, **change)  # type: ignore[arg-type]


def test_what_was_done_before_is_known_to_a_controller_that_has_just_started() -> None:
    fleet = Fleet(2, attempt=4)
    fleet.watch.restore(entry())
    fleet.run(10)
    watch = fleet.watch
    assert watch.attempt == 4
    act = watch.engine.record.of_attempt(3)
    assert act is not None and act.cause is Cause.NAN
    timeline = watch.engine.job.timeline
    assert timeline.is_abandoned(450, START - 600)
    assert not timeline.is_abandoned(400, START - 600)


def test_an_action_that_was_taken_is_not_decided_again_after_a_restart_of_the_controller() -> None:
    fleet = Fleet(3, attempt=3).run(30)
    stopped(fleet, "train-1").run(1)
    later = Fleet(3, attempt=3)
    later.watch.restore(entry())
    later.pods, later.now = fleet.pods, fleet.now
    later.run(120)
    said = later.watch.assessment
    assert said is not None and said.decision.action is Action.NONE
    assert "already decided" in said.decision.reason


def step_of(fleet: Fleet, way: Method) -> GangStep:
    """A restart of all its pods, under way."""
    uids = tuple(pod.uid for pod in fleet.kube.values())
    return GangStep("i1", way, JobKind.PYTORCH_JOB, "ns", "train", "job-uid", uids, START, 3)


def test_a_restart_that_was_under_way_is_still_ours_after_a_restart_of_the_controller() -> None:
    fleet = Fleet(2)
    step = step_of(fleet, Method.DELETE_PODS)
    fleet.watch.restore(entry(step=step))
    assert fleet.watch.ours == {pod.uid for pod in fleet.kube.values()}
    fleet.watch = Fleet(2).watch
    fleet.watch.restore(entry(step=replace(step, state=RestartState.DONE)))
    assert not fleet.watch.ours


def test_pods_of_a_restart_in_place_are_not_ours_to_lose() -> None:
    """They stay: whoever deletes one later was not mwatch."""
    fleet = Fleet(2)
    fleet.watch.restore(entry(step=step_of(fleet, Method.IN_PLACE)))
    assert not fleet.watch.ours


def test_a_policy_that_cannot_be_used_is_reported_and_wakes_nobody() -> None:
    fleet = Fleet(2)
    fleet.watch.policy_problem = "ConfigMap mine: hang.probe_flor: no such setting"
    fleet.run(30)
    assert fleet.cause == "healthy"
    assert "probe_flor" in fleet.findings["policy"]


def test_the_key_is_the_one_of_the_ledger() -> None:
    assert Fleet(2).watch.key == "PyTorchJob.train"


def test_a_look_that_fails_leaves_no_old_decision_to_be_acted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = stopped(Fleet(3).run(60), "train-1").run(30)
    assert fleet.cause == "hang" and fleet.watch.assessment is not None
    assert fleet.watch.assessment.decision.action is not Action.NONE

    def fails(*_: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(fleet.watch.engine, "evaluate", fails)
    with pytest.raises(ValueError):
        fleet.run(1)
    assert fleet.watch.assessment is None


def test_a_pod_whose_events_cannot_be_taken_is_unreachable_and_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(2).run(60)

    def fails(*_: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(fleet.watch.engine, "observe", fails)
    uid = fleet.kube["train-1"].uid
    before = fleet.watch.pods[uid]
    fleet.now += 1
    with pytest.raises(ValueError):
        fleet.poll(fleet.pods[1])
    assert fleet.watch.pods[uid].answered_at == before.answered_at


def test_a_controller_that_starts_does_nothing_before_it_has_asked_every_pod() -> None:
    """Two of three still tell of the end of the last attempt; the third trains the next one."""
    fleet = Fleet(3)
    fleet.now += 300
    fleet.pods[0].attempt, fleet.pods[0].started_at = 2, fleet.now - 60
    for pod in fleet.pods[1:]:
        pod.say(fleet.now - 70, ProcessExit(137, "SIGKILL", None))
        pod.stalls_at = pod.stops_at = fleet.now - 70
    for _ in range(20):
        fleet.run(1)
        assert due(fleet.watch, fleet.now) is None
    assert fleet.watch.attempt == 2


def test_what_is_reported_in_parts_is_not_judged_by_the_first() -> None:
    fleet = stopped(Fleet(2).run(60), "train-1").run(60)
    fleet.run(60)
    assert due(fleet.watch, fleet.now) is not None
    sight = fleet.watch.pods[fleet.kube["train-0"].uid]
    told = Polled(sight.pod.uid, fleet.now, fleet.pods[0].snapshot(fleet.now), is_whole=False)
    fleet.watch.polled(told)
    assert due(fleet.watch, fleet.now) is None


def test_a_pod_that_is_asked_in_vain_holds_nobody_up() -> None:
    fleet = Fleet(3)
    fleet.pods[0].answers = False
    fleet.run(60)
    stopped(fleet, "train-1").run(120)
    assert due(fleet.watch, fleet.now) is not None


def test_who_answers_is_known_at_once_also_within_one_moment() -> None:
    fleet = Fleet(3).run(20)
    watch, uid = fleet.watch, fleet.kube["train-1"].uid
    assert len(watch.seen(fleet.now).answering) == 3
    watch.polled(Polled(uid, fleet.now, None, "no answer"))
    assert [each.pod.name for each in watch.seen(fleet.now).silent] == ["train-1"]
    fleet.poll(fleet.pods[1])
    assert not watch.seen(fleet.now).silent
    assert len(watch.seen(fleet.now + 60).silent) == 3
    fleet.replace("train-2", phase="Failed")
    fleet.see()
    assert len(watch.seen(fleet.now).answering) == 2
