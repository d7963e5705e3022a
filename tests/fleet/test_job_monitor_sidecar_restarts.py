# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar that is started again and has lost how far it had told reads the log from its start:
what the controller was told before is no new attempt of the training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from mwatch import json_codec
from mwatch.model.event import Fault, Iteration
from mwatch.model.observation import AttemptStart, Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import from_wire, to_wire
from mwatch.model.snapshot.snapshot_wire import PodSnapshot
from mwatch.sidecar.event_buffer import MAX_ENTRIES, EventBuffer
from support.builders.events import megatron_line, one
from support.runs.job_monitor_runs import START, Fleet, TrainingPod

NONE_FOUND = "checkpoint-none-found"


def encode(observed: Observed) -> bytes:
    return json_codec.encode(to_wire(observed))


@dataclass
class LoggingPod(TrainingPod):
    """Its sidecar answers by a real ring, and reads a log that outlives it."""

    inode: int = 7
    log: list[Observed] = field(default_factory=list)
    """The file that is there now."""
    ring: EventBuffer = field(default_factory=lambda: EventBuffer("first", encode))
    cursor: str = ""
    lives: int = 1

    def say(self, at: float, what: object) -> None:
        observed = Observed(at + self.skew, self.name, what)  # type: ignore[arg-type]
        if isinstance(what, Iteration | Fault):
            self.log.append(observed)
        self.ring.add(observed, self.inode)

    def rotate(self) -> None:
        self.inode, self.line = self.inode + 1, 0
        self.log.clear()

    def lose(self, now: float, *, read: int | None = None) -> None:
        """Another process, without the file of its cursor; `read`: so much for a beginning."""
        self.lives += 1
        self.ring = EventBuffer(f"life{self.lives}", encode)
        self.ring.add(Observed(now, self.name, AttemptStart(self.attempt, None, None)))
        self.read_on(now, 0, read)

    def read_on(self, now: float, start: int, end: int | None = None) -> None:
        for observed in self.log[start:end]:
            self.ring.add(observed._replace(at=now + self.skew), self.inode)

    def snapshot(self, now: float, age: float = 0.4) -> PodSnapshot:
        made = super().snapshot(now, age)
        news = self.ring.after(self.cursor)
        self.cursor = news.cursor
        events = tuple(from_wire(json_codec.decode(each), self.name) for each in news.bodies)
        return replace(made, events=events, gap=news.gap, cursor=news.cursor)


def fleet_of_two() -> tuple[Fleet, LoggingPod]:
    fleet = Fleet(2)
    last = fleet.pods[-1]
    pod = LoggingPod(last.name, last.rank, last.world, last.skew, uid=last.uid, prints=True)
    fleet.pods[-1] = pod
    pod.say(START, Fault(NONE_FOUND, None, None, "no checkpoint", "symptom", None, 1, "t.log", 1))
    pod.line = 1
    return fleet, pod


def trained() -> tuple[Fleet, LoggingPod]:
    """A checkpoint was saved meanwhile: to begin at random now would be the end of the run."""
    fleet, pod = fleet_of_two()
    fleet.run(30)
    there = StoredCheckpoint(20, "complete", None, 1, START + 20)
    fleet.watch.engine.observe(Observed(fleet.now, pod.name, StoredCheckpoints("/ckpt", (there,))))
    fleet.run(30)
    assert (fleet.watch.attempt, fleet.cause) == (1, "healthy")
    fleet.detectors.clear()
    return fleet, pod


def numbers(fleet: Fleet) -> list[int]:
    return [step.iteration for step in fleet.watch.engine.job.attempt.steps]


def is_one_attempt(fleet: Fleet) -> bool:
    assert "started_from_random" not in fleet.detectors
    assert not fleet.watch.engine.job.past
    assert numbers(fleet) == list(range(1, numbers(fleet)[-1] + 1)), "each once, and none is lost"
    return fleet.watch.attempt == 1 and fleet.cause == "healthy"


def test_a_sidecar_that_has_lost_its_cursor_makes_no_attempt() -> None:
    fleet, pod = trained()
    pod.lose(fleet.now)
    fleet.run(20)
    assert is_one_attempt(fleet)
    assert numbers(fleet)[-1] >= 75
    assert len([each for each in fleet.watch.engine.job.attempt.faults]) == 1


def test_what_was_printed_while_no_sidecar_ran_is_reported() -> None:
    fleet, pod = trained()
    pod.answers = False
    fleet.run(20)
    pod.lose(fleet.now)
    pod.answers = True
    fleet.run(10)
    assert is_one_attempt(fleet)
    assert numbers(fleet)[-1] >= 85


def test_a_log_that_is_read_again_in_parts_makes_no_attempt() -> None:
    """Asked in the middle of it, the sidecar is behind what the controller knows."""
    fleet, pod = trained()
    pod.lose(fleet.now, read=20)
    fleet.poll(pod)
    fleet.poll(pod)
    pod.read_on(fleet.now, 20)
    fleet.poll(pod)
    fleet.run(10)
    assert is_one_attempt(fleet)


def test_a_sidecar_that_loses_it_again_and_again_makes_no_attempt() -> None:
    fleet, pod = trained()
    for read in (0, 10, 3, None):
        pod.lose(fleet.now, read=read)
        fleet.poll(pod)
    fleet.run(10)
    assert is_one_attempt(fleet)


def test_a_log_that_was_rotated_meanwhile_is_new_from_its_first_line() -> None:
    fleet, pod = trained()
    fleet.poll(pod)
    pod.answers = False
    pod.rotate()
    fleet.run(20)
    assert pod.line < 60, "by their numbers alone these lines would seem to be told"
    pod.lose(fleet.now)
    pod.answers = True
    fleet.run(10)
    assert is_one_attempt(fleet)
    assert numbers(fleet)[-1] >= 85


def test_an_attempt_that_begins_after_such_a_restart_is_seen() -> None:
    fleet, pod = trained()
    pod.lose(fleet.now)
    fleet.run(10)
    fleet.restart(2)
    fleet.run(20)
    assert fleet.watch.attempt == 2
    assert fleet.watch.engine.job.attempt.first_iteration == 51
    pod.lose(fleet.now)
    fleet.run(10)
    assert fleet.watch.attempt == 2, "the lines of the first are in its log, too"
    assert len(fleet.watch.engine.job.past) == 1
    assert numbers(fleet) == list(range(51, numbers(fleet)[-1] + 1))


def test_a_second_sidecar_that_has_lost_all_still_reports_a_training_that_goes_back() -> None:
    """The workers begin again while no sidecar runs: those lines were never told."""
    fleet, pod = trained()
    pod.answers = False
    pod.first_iteration, pod.started_at = 40, fleet.now
    fleet.run(10)
    pod.lose(fleet.now)
    pod.answers = True
    fleet.run(10)
    assert fleet.watch.attempt == 2
    assert fleet.watch.engine.job.attempt.first_iteration == 41


def test_a_reader_who_missed_something_in_a_flood_gets_all_that_is_left() -> None:
    ring = EventBuffer("life", lambda observed: b"x")
    line = one(megatron_line(1) + "\n", Iteration)
    for number in range(1, 11):
        ring.add(Observed(1.0, "p", line._replace(line=number)), 7)
    cursor = ring.after("").cursor
    for number in range(11, MAX_ENTRIES + 100):
        ring.add(Observed(1.0, "p", line._replace(line=number)), 7)
    found = ring.after(cursor)
    assert found.gap and len(found.bodies) == MAX_ENTRIES


@pytest.mark.parametrize("newest", [3, 10, 30])
def test_a_number_that_was_given_twice_is_not_taken_for_the_first(newest: int) -> None:
    """The disk was full: the second process counts on from less than the first had told."""
    line = one(megatron_line(1) + "\n", Iteration)
    first = EventBuffer("life", encode)
    for number in range(1, 21):
        first.add(Observed(1.0, "p", line._replace(line=number)), 7)
    cursor = first.after("").cursor
    second = EventBuffer("life", encode, newest=3)
    for _ in range(newest):
        second.mark()
    for number in range(4, 31):
        second.add(Observed(1.0, "p", line._replace(line=number)), 7)
    told = [json_codec.decode(each)["line"] for each in second.after(cursor).bodies]
    assert told == list(range(21, 31))
