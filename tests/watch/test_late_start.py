# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar that is started in the middle of an attempt, which it reads from the log's start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mwatch.config import catalogue
from mwatch.engine.engine import Engine
from mwatch.model.decision import Action
from mwatch.model.observation import AttemptStart, Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import from_wire, to_wire
from mwatch.parse.grammar import Grammar
from mwatch.watch.collector import VolumeCollector
from mwatch_trainer import contract
from support.builders.events import megatron_line
from support.builders.run import TestClock
from support.builders.volume import write_attempt

ENTRIES = catalogue.load([])
CATALOGUE = {entry.id: entry for entry in ENTRIES}
AGO = 3600.0
"""Seconds since the attempt began, from random weights."""
NONE_FOUND = (
    "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt\n"
    "    will not load any checkpoints and will start from random\n"
)


def seen_late(volume: Path, saved_ago: float, ahead: float = 0.0) -> Engine:
    """By whoever is told what such a sidecar sees, on a clock that is `ahead` of its own."""
    clock = TestClock(time.monotonic())
    write_attempt(volume, 1, started_at=clock.now() - AGO, save=None)
    steps = "".join(f"{megatron_line(each)}\n" for each in range(1, 10))
    (volume / contract.LOG).write_text(NONE_FOUND + steps)
    live = VolumeCollector(volume, "p", Grammar(ENTRIES, None), CATALOGUE, clock)
    engine = Engine("r", CATALOGUE)
    clock.monotonic += 0.1
    there = StoredCheckpoint(5, "complete", None, 1, clock.now() - saved_ago)
    stored = Observed(clock.now(), "p", StoredCheckpoints("/ckpt", (there,)))
    for observed in (*live.read(), stored):
        told = observed._replace(at=observed.at + ahead)
        engine.observe(from_wire(to_wire(told)))
    engine.evaluate(clock.now() + ahead)
    live.close()
    return engine


@pytest.mark.parametrize("ahead", [0.0, 100.0])
def test_what_the_attempt_has_saved_before_we_came_was_not_there_when_it_began(
    tmp_path: Path, ahead: float
) -> None:
    engine = seen_late(tmp_path, AGO / 2, ahead)
    said = engine.evaluate(engine.job.now)
    assert engine.job.attempt.load == "random"
    assert "started_from_random" not in {each.detector for each in said.findings}
    assert said.decision.action is Action.NONE
    assert engine.job.checkpoints[5].attempt == 1


def test_a_checkpoint_that_was_there_when_it_began_is_still_reported(tmp_path: Path) -> None:
    engine = seen_late(tmp_path, AGO * 2)
    said = engine.evaluate(engine.job.now)
    assert "started_from_random" in {each.detector for each in said.findings}


def test_time_before_we_came_is_nobodys_silence(tmp_path: Path) -> None:
    engine = seen_late(tmp_path, AGO / 2)
    assert engine.job.now - engine.job.attempt.started_at < 1.0


def test_an_attempt_that_begins_while_we_look_is_not_late(tmp_path: Path) -> None:
    """Whoever sets the clock of the machine back does not make it older."""
    clock = TestClock(time.monotonic())
    live = VolumeCollector(tmp_path, "p", Grammar(ENTRIES, None), CATALOGUE, clock)
    live.read()
    write_attempt(tmp_path, 1, started_at=clock.now() - AGO, save=None)
    (start,) = [each.what for each in live.read() if isinstance(each.what, AttemptStart)]
    assert start.late_seconds is None
    live.close()
