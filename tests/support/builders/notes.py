# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents and snapshots for the tests of TensorBoard's notes, and TensorBoard's own reader."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mwatch.export.tensorboard.notes import TensorboardNotes
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Culprit, CulpritState, Finding, Severity
from mwatch.model.incident import IncidentRecord, IncidentTimes, SavedEvidence
from mwatch.model.snapshot.snapshot import Numbers, Snapshot
from support.builders.snapshot import busy_snapshot

HANG = IncidentRecord(
    id="20260105T121314Z-a1-hang",
    run="run",
    attempt=1,
    cause=Cause.HANG,
    summary="no progress for 9 s",
    confidence=0.9,
    detector="stalled",
    culprit=Culprit(3, CulpritState.STUCK, {"tp": 1}, node="node-7"),
    first_bad_iteration=42,
    times=IncidentTimes(detected=1_767_615_194.0),
)
ACTED = replace(
    HANG,
    action=Action.RESTART,
    is_carried_out=True,
    reason="two witnesses agree",
    resume_from=40,
    resume_reason="newest complete",
    evidence=SavedEvidence("/ckpt/.mwatch/incidents/20260105T121314Z-a1-hang"),
)
STALLED = Finding("stalled", Cause.HANG, Severity.CRITICAL, "no progress for 9 s")


def at(iteration: int, loss: float = 2.0, **changes: Any) -> Snapshot:
    numbers = Numbers(losses={"lm loss": loss})
    quiet = replace(busy_snapshot(), findings=(), iteration=iteration, numbers=numbers)
    return replace(quiet, at=1_767_615_000.0 + 60 * iteration, **changes)


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "mwatch"))
    found.Reload()
    return found


def written(folder: Path, *deeds: Callable[[TensorboardNotes], None]) -> EventAccumulator:
    notes = TensorboardNotes(folder)
    for deed in deeds:
        deed(notes)
    notes.close(60.0)
    assert (notes.dropped, notes.failures, notes.problem) == (0, 0, None)
    return read(folder)


def points(found: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in found.Scalars(tag)]


def texts(found: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(each.step, each.tensor_proto.string_val[0].decode()) for each in found.Tensors(tag)]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)
