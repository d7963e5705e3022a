# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that leave, as the watch tells of them."""

from __future__ import annotations

from dataclasses import replace

from mwatch.fleet.cluster_view import KEPT_SECONDS, DeletedPodTracker, PodSeen
from mwatch.model.kube.pod import Disruption
from support.builders.kube import pod

TOPS = {"job-uid": "job-uid"}
RUNS = PodSeen(pod(), 9401)
GOES = PodSeen(pod(deleting=True), 9401)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def over(seen: PodSeen) -> PodSeen:
    return seen._replace(pod=replace(seen.pod, phase="Failed"))


def test_a_pod_is_kept_as_it_was_when_somebody_began_to_delete_it() -> None:
    told, crashed = DeletedPodTracker(Clock()), DeletedPodTracker(Clock())
    for leavings, steps in ((told, (RUNS, GOES, over(GOES))), (crashed, (RUNS, over(RUNS)))):
        before = None
        for step in (*steps, None):
            leavings.on_change(before, step)
            before = step
    assert told.by_job(TOPS)["job-uid"] == (GOES.pod,)
    assert crashed.by_job(TOPS)["job-uid"][0].is_over


def test_pods_that_stay_and_those_of_others_are_left_out() -> None:
    leavings = DeletedPodTracker(Clock())
    leavings.on_change(None, RUNS)
    leavings.on_change(RUNS, over(RUNS))
    assert leavings.by_job(TOPS) == {}
    leavings.on_change(RUNS, None)
    assert leavings.by_job({}) == {}


def test_what_the_cluster_says_of_it_later_is_noticed() -> None:
    leavings = DeletedPodTracker(Clock())
    leavings.on_change(RUNS, GOES)
    why = Disruption("EvictionByEvictionAPI", "drain", 1.0)
    leavings.on_change(GOES, GOES._replace(pod=replace(over(GOES).pod, disruption=why)))
    (left,) = leavings.by_job(TOPS)["job-uid"]
    assert left.disruption == why and not left.is_over


def test_it_is_known_whose_pod_it_was_when_what_made_it_is_gone_and_forgotten_in_the_end() -> None:
    clock = Clock()
    leavings = DeletedPodTracker(clock)
    leavings.on_change(RUNS, GOES)
    assert leavings.by_job({"job-uid": "above"}) == {"above": (GOES.pod,)}
    assert leavings.by_job({}) == {"above": (GOES.pod,)}
    clock.now = KEPT_SECONDS + 1
    assert leavings.by_job({}) == {}
