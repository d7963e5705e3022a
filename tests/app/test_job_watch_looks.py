# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Looks of several pods into one save folder, each as old as it may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from job_watch_runs import Fleet, TrainingPod
from mwatch.model.observation import Observed, Stored, StoredCheckpoint
from mwatch.model.snapshot_wire import PodSnapshot


@dataclass
class LookingPod(TrainingPod):
    look: Observed | None = None

    def snapshot(self, now: float, age: float = 0.4) -> PodSnapshot:
        return replace(super().snapshot(now, age), stored=self.look)


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
    there = Stored("/ckpt", (StoredCheckpoint(20, "complete", None, 1, begun - 2.0),))
    second.look = Observed(begun - 5.0 + second.skew, second.name, Stored("/ckpt", ()))
    first.look = Observed(begun + first.skew, first.name, there)
    fleet.run(20)
    assert fleet.watch.engine.job.checkpoints[20].stored == "complete"
    second.look = Observed(fleet.now + second.skew, second.name, Stored("/ckpt", ()))
    fleet.run(20)
    assert fleet.watch.engine.job.checkpoints[20].stored == "missing", "a newer look is believed"
