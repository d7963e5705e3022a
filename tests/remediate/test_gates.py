# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a due action back, in which order, and what a person's own wish passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mwatch.config.fleet import FleetSettings, MaintenanceWindow
from mwatch.model.kube.ledger import Halt
from mwatch.remediate.gates import BACK_SECONDS, HeldBy, gate, not_back
from support.builders.kube import ACT, pytorch_job
from support.runs.job_monitor_runs import Fleet

NOW = 1_800_000_000.0
USUAL = FleetSettings()
ALWAYS = replace(USUAL, maintenance=(MaintenanceWindow("00:00", "24:00", why="Lustre"),))
HALT = Halt(NOW - 5, NOW + 60, "ann", "storm")
PAUSED = {**ACT, "mwatch.dev/pause": "mine"}


@pytest.mark.parametrize(
    "settings, halt, annotations, age, expected",
    [
        (USUAL, None, ACT, 1.0, None),
        (USUAL, None, ACT, None, HeldBy.STALE_VIEW),
        (USUAL, None, ACT, 30.1, HeldBy.STALE_VIEW),
        (replace(USUAL, acting=False), HALT, PAUSED, 1.0, HeldBy.SWITCH),
        (ALWAYS, HALT, PAUSED, 1.0, HeldBy.HALT),
        (USUAL, structs.replace(HALT, until=NOW - 1), ACT, 1.0, None),
        (USUAL, structs.replace(HALT, until=None), ACT, 1.0, HeldBy.HALT),
        (ALWAYS, None, PAUSED, 1.0, HeldBy.PAUSE),
        (ALWAYS, None, ACT, 1.0, HeldBy.MAINTENANCE),
    ],
)
def test_each_gate_says_what_it_is(
    settings: FleetSettings,
    halt: Halt | None,
    annotations: dict[str, str],
    age: float | None,
    expected: HeldBy | None,
) -> None:
    job = pytorch_job(annotations=annotations)
    found = gate(job, settings, halt, now=NOW, view_age=age, is_asked=False)
    assert (None if found is None else found.held_by) is expected
    asked = gate(job, settings, halt, now=NOW, view_age=age, is_asked=True)
    is_blind = expected is HeldBy.STALE_VIEW
    assert (asked is not None) is is_blind


def test_people_are_named() -> None:
    found = gate(pytorch_job(), USUAL, HALT, now=NOW, view_age=1.0, is_asked=False)
    assert found is not None and "by ann: storm" in found.text and "until 2027" in found.text


def test_a_gang_that_lost_a_pod_waits_for_the_wrapper_of_the_new_one_but_not_for_ever() -> None:
    fleet = Fleet(2).run(60)
    fleet.take_away("train-1")
    fleet.fill("train-1")
    fleet.run(5)
    whole = fleet.now
    held = not_back(fleet.watch, whole, {"train-0"}, fleet.now)
    assert held is not None and held.held_by is HeldBy.PODS and "train-1" in held.text
    assert not_back(fleet.watch, whole, {"train-1"}, fleet.now) is None
    assert not_back(fleet.watch, whole, (), fleet.now + BACK_SECONDS) is None
    assert not_back(Fleet(2).run(10).watch, whole, (), whole) is None, "nothing was lost"
