# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A large job in which nothing happens: fewer evaluations, the same verdicts at the same second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.fleet import job_monitor
from mwatch.fleet.visibility import Polled
from mwatch.model.kube.node import KubeNode
from mwatch.model.observation import Observed, ProcessExit, Sign, SignState
from mwatch.model.snapshot.snapshot_wire import PodSnapshot
from support.runs.job_monitor_runs import Fleet, TrainingPod

PODS = 12


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_monitor, "MIN_PODS", PODS)


class SteadyFleet(Fleet):
    """Its sidecars say so when nothing but time has passed."""

    def poll(self, pod: TrainingPod) -> None:
        uid = self.kube[pod.name].uid
        view = self.watch.pods[uid]
        if not pod.answers or view.snapshot is None or view.problem:
            super().poll(pod)
            return
        snapshot = pod.snapshot(self.now)
        is_steady = not snapshot.events and _states(snapshot) == _states(view.snapshot)
        self.watch.polled(self.answer(Polled(uid, self.now, snapshot, "", True, 9401), is_steady))

    def answer(self, polled: Polled, is_steady: bool) -> Polled:
        return polled._replace(is_steady=is_steady)


class WholeFleet(SteadyFleet):
    """Its sidecars send all they have; what has not changed since the last time is left out."""

    def answer(self, polled: Polled, is_steady: bool) -> Polled:
        assert polled.snapshot is not None
        return polled._replace(snapshot=replace(polled.snapshot, wrapper=None))


def _states(snapshot: PodSnapshot) -> list[SignState]:
    return [each.what.state for each in snapshot.signs if isinstance(each.what, Sign)]


def trained(kind: type[Fleet], seconds: int = 60) -> Fleet:
    return kind(PODS).run(seconds)


def test_a_job_in_which_nothing_happens_is_evaluated_seldom() -> None:
    fleet = trained(SteadyFleet)
    before = fleet.watch.evaluations
    fleet.run(60)
    assert fleet.cause == "healthy"
    assert fleet.watch.evaluations - before <= 24, "at the lines of its printer, and every 5 s"
    assert fleet.watch.assessment is not None and fleet.watch.assessment.at == fleet.now


def test_the_periodic_status_of_a_node_is_not_a_change() -> None:
    """Of thousands of nodes a few do so every second."""
    fleet = trained(SteadyFleet)
    fleet.nodes = (KubeNode("n1", "0"), KubeNode("n2", "0"))
    fleet.run(5)
    before = fleet.watch.evaluations
    for second in range(60):
        fleet.nodes = (KubeNode("n1", str(second)), fleet.nodes[1])
        fleet.run(1)
    assert fleet.watch.evaluations - before <= 24
    before = fleet.watch.evaluations
    for ready in (False, True, False, True):
        fleet.nodes = (KubeNode("n1", is_ready=ready), fleet.nodes[1])
        fleet.run(1)
    assert fleet.watch.evaluations - before == 4


def test_a_small_job_is_evaluated_each_second() -> None:
    fleet = SteadyFleet(4).run(30)
    before = fleet.watch.evaluations
    fleet.run(30)
    assert fleet.watch.evaluations - before == 30


@pytest.mark.parametrize("fault", ["stop", "stall", "exit", "silence"])
def test_a_fault_is_found_at_the_same_second_with_the_same_state(fault: str) -> None:
    fleets = [trained(Fleet), trained(SteadyFleet), trained(WholeFleet)]
    for fleet in fleets:
        pod = fleet.pods[PODS // 2]
        if fault in ("stop", "stall"):
            for each in fleet.pods:
                each.stalls_at = fleet.now
        if fault == "stop":
            pod.stops_at = fleet.now
        elif fault == "exit":
            pod.say(fleet.now, ProcessExit(1, None, None))
        elif fault == "silence":
            pod.answers = False
        fleet.run(30)
    one, *others = fleets
    for two in others:
        assert one.causes == two.causes and (fault == "silence" or one.cause != "healthy")
        assert one.findings == two.findings
        first, second = (each.watch.engine.job.attempt for each in (one, two))
        assert first.ranks == second.ranks
        assert first.signs == second.signs and len(first.signs) == 2 * PODS
        stopped = [each for each in second.signs.values() if each.sign.state is SignState.STOPPED]
        assert len(stopped) == (fault == "stop")


@pytest.mark.parametrize("kind", [SteadyFleet, WholeFleet])
def test_answers_without_changes_are_not_observed_record_by_record(
    kind: type[SteadyFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, observed = trained(kind), set[str]()
    observe = fleet.watch.engine.observe

    def counted(each: Observed) -> None:
        observed.add(each.stream)
        observe(each)

    monkeypatch.setattr(fleet.watch.engine, "observe", counted)
    fleet.run(15)
    still = {pod.name for pod in fleet.pods[1:-1]}  # not the one with rank 0, nor the printer
    assert len(still - observed) > PODS // 2, "but for the first to show an iteration"
    assert min(each.at for each in fleet.watch.engine.job.attempt.ranks.values()) > fleet.now - 8
