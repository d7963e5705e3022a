# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A controller that asks its pods late must not take its own delay for their silence."""

from __future__ import annotations

from dataclasses import replace

from mwatch.fleet.visibility import Polled
from mwatch.model.settings import Settings
from support.runs.job_monitor_runs import START, Fleet

LATE = 8
"""Seconds between two answers of a pod, where five are meant: for most of it it is seen."""


def asked_late(fleet: Fleet, seconds: int) -> set[str]:
    """Detectors that spoke meanwhile. Some answers tell of a look that is a second old."""
    spoke: set[str] = set()
    for _ in range(seconds):
        fleet.now += 1.0
        fleet.see()
        for place, pod in enumerate(fleet.pods):
            if int(fleet.now - START) % LATE == place % LATE:
                snapshot = pod.snapshot(fleet.now, age=1.9 if place % 2 else 0.1)
                uid = fleet.kube[pod.name].uid
                fleet.watch.polled(Polled(uid, fleet.now, snapshot, port=9401))
        spoke |= {each.detector for each in fleet.watch.look(fleet.now).findings}
    return spoke


def test_pods_that_are_asked_late_are_not_silent_while_all_wait() -> None:
    fleet = Fleet(8).run(60)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    assert "rank_silent" not in asked_late(fleet, 40)


def test_pods_that_are_asked_late_are_not_silent_while_all_train() -> None:
    assert "rank_silent" not in asked_late(Fleet(8).run(60), 40)


def test_a_policy_that_is_more_patient_stays_so() -> None:
    watch = Fleet(2).watch
    patient = replace(Settings(), hang=replace(Settings().hang, beat_silence_seconds=60.0))
    watch.use(patient)
    assert watch.engine.settings.hang.beat_silence_seconds == 60.0
    watch.use(Settings())
    assert watch.engine.settings.hang.beat_silence_seconds > LATE + 1
