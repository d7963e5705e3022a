# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Training goes on without a completed checkpoint."""

from __future__ import annotations

from typing import Any

from mwatch.detect.checkpoint_overdue import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Exit
from mwatch.model.finding import Severity
from mwatch.model.job import ExitSeen, Job, Layout, Save, Stream
from mwatch.model.observation import Source
from support.builders.job import START, add_checkpoints, found, job, step

SAVES = Layout(save_interval=100, save_folder="/ckpt")
BOTH = (Source.LOG, Source.CHECKPOINTS)


def at(iteration: int, layout: Layout = SAVES, **more: Any) -> Job:
    lines = [step(iteration)]
    built = job(lines, layout=layout, **({"first_iteration": 1} | more))
    built.streams["pod-0"] = Stream("pod-0", prints_checkpoints=True)
    return built


def is_overdue(built: Job) -> bool:
    return bool(found(DETECTOR, built))


def test_three_intervals_without_a_save_are_overdue() -> None:
    built = at(551, last_save_at=START + 300)
    add_checkpoints(built, 100, 200, 250)
    (finding,) = found(DETECTOR, built)
    assert (finding.cause, finding.severity) == (Cause.CHECKPOINT_OVERDUE, Severity.WARNING)
    assert finding.since_iteration == 350
    assert finding.since_time == START + 300


def test_just_before_it_is_quiet() -> None:
    built = at(550)
    add_checkpoints(built, 100, 200, 250)
    assert not is_overdue(built)


def test_a_save_that_never_ended_is_named() -> None:
    built = at(551, save=Save(300, START, True, queued_at=START, file="trainer.log", line=7))
    add_checkpoints(built, 200)
    (finding,) = found(DETECTOR, built)
    assert "300" in finding.summary
    assert finding.evidence[0].line == 7


def test_an_attempt_is_counted_from_where_it_began() -> None:
    assert not is_overdue(at(10_200, first_iteration=10_001))
    assert not is_overdue(at(10_200, resumed_from=10_000))
    assert is_overdue(at(10_301, resumed_from=10_000))
    assert is_overdue(at(301))


def test_checkpoints_of_an_abandoned_line_do_not_count() -> None:
    built = at(750, resumed_from=400, first_iteration=401)
    add_checkpoints(built, 500, 700, is_abandoned=True)
    assert is_overdue(built)
    add_checkpoints(built, 720)
    assert not is_overdue(built)


def test_the_newest_known_need_not_be_the_last_saved() -> None:
    built = at(551)
    add_checkpoints(built, 500)
    add_checkpoints(built, 900, is_saved=False, stored="incomplete")
    assert not is_overdue(built)


def test_a_run_that_was_never_asked_to_save_is_left_alone() -> None:
    assert not is_overdue(at(5000, Layout(save_interval=100)))
    assert not is_overdue(at(5000, Layout()))
    assert not is_overdue(at(5000, Layout(save_folder="/ckpt")))


def test_without_arguments_its_own_saves_show_the_distance() -> None:
    built = at(700, Layout())
    add_checkpoints(built, 100, 200)
    assert not is_overdue(built)
    add_checkpoints(built, 300)
    assert is_overdue(built)
    add_checkpoints(built, 600)
    assert not is_overdue(built)


def test_saves_that_nobody_can_see_are_not_missed() -> None:
    built = at(5000)
    built.streams.clear()
    assert not is_overdue(built)
    assert is_overdue(at(5000, sights=BOTH))


def test_a_run_that_ends_needs_no_more() -> None:
    assert not is_overdue(at(5000, is_done=True))
    bye = ExitSeen(START, "pod-0", Exit("interval", 1, "bye", None, None, "trainer.log", 4))
    assert not is_overdue(at(5000, exit=bye))
    assert found(DETECTOR, job(layout=SAVES)) == []


def test_blind_means_no_verdict() -> None:
    assert found(DETECTOR, at(5000, sights=())) == []


def test_a_toy_that_saves_every_second_is_not_late_before_the_folder_was_looked_at_again() -> None:
    built = at(551)
    add_checkpoints(built, 100, 200, saved_at=built.now - 59.0)
    assert not is_overdue(built)
    add_checkpoints(built, 100, 200, saved_at=built.now - 61.0)
    assert is_overdue(built)


def test_a_storage_whose_clock_is_ahead_hides_nothing() -> None:
    built = at(551)
    add_checkpoints(built, 200, written_at=built.now + 3600.0)
    assert is_overdue(built)
