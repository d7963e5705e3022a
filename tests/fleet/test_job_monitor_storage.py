# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Looks of several pods into one save folder, each as old as it may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mwatch.model.event import Checkpoint
from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.snapshot.snapshot_wire import PodSnapshot
from support.runs.job_monitor_runs import PERIOD, Fleet, TrainingPod


@dataclass
class LookingPod(TrainingPod):
    look: Observed | None = None
    look_at: float | None = None
    """Of a later one that found the same; then only its time is told."""

    def snapshot(self, now: float, age: float = 0.4) -> PodSnapshot:
        look = self.look if self.look_at is None else None
        return replace(super().snapshot(now, age), stored=look, stored_at=self.look_at)


def looking(fleet: Fleet, place: int) -> LookingPod:
    old = fleet.pods[place]
    pod = LookingPod(old.name, old.rank, old.world, old.skew, uid=old.uid, prints=old.prints)
    fleet.pods[place] = pod
    return pod


def test_an_older_look_of_another_pod_does_not_take_a_new_checkpoint_away() -> None:
    fleet = Fleet(2)
    first, second = looking(fleet, 0), looking(fleet, 1)
    fleet.run(20)
    begun = fleet.now
    there = StoredCheckpoints("/ckpt", (StoredCheckpoint(20, "complete", None, 1, begun - 2.0),))
    second.look = Observed(begun - 5.0 + second.skew, second.name, StoredCheckpoints("/ckpt", ()))
    first.look = Observed(begun + first.skew, first.name, there)
    fleet.run(20)
    assert fleet.watch.engine.job.checkpoints[20].stored == "complete"
    second.look = Observed(fleet.now + second.skew, second.name, StoredCheckpoints("/ckpt", ()))
    fleet.run(20)
    assert fleet.watch.engine.job.checkpoints[20].stored == "missing", "a newer look is believed"


def test_a_torn_checkpoint_is_known_though_the_folder_looks_as_it_did_during_the_save() -> None:
    """The first look began before the log said that the save was over, and proves nothing."""
    fleet = Fleet(2)
    pod = looking(fleet, 0)
    fleet.run(20)
    torn = StoredCheckpoints(
        "/ckpt", (StoredCheckpoint(20, "incomplete", "no .metadata", 1, fleet.now),)
    )
    pod.look = Observed(fleet.now + pod.skew, pod.name, torn)
    over = Checkpoint("save", "end", 20, "/ckpt", False, "saved", None, 0, "trainer.log", 99)
    pod.say(fleet.now + 1.0, over)
    fleet.run(PERIOD)
    known = fleet.watch.engine.job.checkpoints[20]
    assert (known.is_saved, known.stored) == (True, None)
    pod.look_at = fleet.now + 10.0 + pod.skew
    fleet.run(PERIOD)
    assert fleet.watch.engine.job.checkpoints[20].stored == "incomplete"


def test_a_choice_waits_until_every_pod_that_answers_has_reported_what_it_saw_before() -> None:
    fleet = Fleet(2).run(20)
    moment = fleet.now
    assert fleet.watch.unreported_since(moment, fleet.now)
    waited = 0
    while fleet.watch.unreported_since(moment, fleet.now):
        fleet.run(1)
        waited += 1
    assert 0 < waited <= PERIOD + 1
    fleet.pods[0].answers = False
    fleet.run(PERIOD)
    assert not fleet.watch.unreported_since(fleet.now - PERIOD, fleet.now), "a silent pod"
    assert not fleet.watch.unreported_since(fleet.now - 60, fleet.now)
