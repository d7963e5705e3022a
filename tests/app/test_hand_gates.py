# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a due action back, in which order, and what a person's own wish passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kube_builders import ACT, pytorch_job
from mwatch.app.fleet_settings import FleetSettings, MaintenanceWindow
from mwatch.app.hand_gates import gate
from mwatch.app.hand_state import HeldBy
from mwatch.model.kube_ledger import Halt

NOW = 1_800_000_000.0
USUAL = FleetSettings()
ALWAYS = replace(USUAL, maintenance=(MaintenanceWindow(frozenset(range(7)), 0, 1440, "Lustre"),))
HALT = Halt(NOW - 5, NOW + 60, "ann", "storm")
PAUSED = {**ACT, "mwatch.dev/pause": "mine"}


@pytest.mark.parametrize(
    "settings, halt, annotations, age, expected",
    [
        (USUAL, None, ACT, 1.0, None),
        (USUAL, None, ACT, None, HeldBy.STALE_SIGHT),
        (USUAL, None, ACT, 30.1, HeldBy.STALE_SIGHT),
        (replace(USUAL, acting=False), HALT, PAUSED, 1.0, HeldBy.SWITCH),
        (ALWAYS, HALT, PAUSED, 1.0, HeldBy.HALT),
        (USUAL, HALT._replace(until=NOW - 1), ACT, 1.0, None),
        (USUAL, HALT._replace(until=None), ACT, 1.0, HeldBy.HALT),
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
    found = gate(job, settings, halt, now=NOW, sight_age=age, is_asked=False)
    assert (None if found is None else found.held_by) is expected
    asked = gate(job, settings, halt, now=NOW, sight_age=age, is_asked=True)
    is_blind = expected is HeldBy.STALE_SIGHT
    assert (asked is not None) is is_blind


def test_people_are_named() -> None:
    found = gate(pytorch_job(), USUAL, HALT, now=NOW, sight_age=1.0, is_asked=False)
    assert found is not None and "by ann: storm" in found.text and "until 2027" in found.text
