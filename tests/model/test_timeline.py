# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints belong to the line that is being continued."""

from __future__ import annotations

import pytest

from mwatch.model.timeline import (
    MAX_ATTEMPTS,
    MAX_ROLLBACKS,
    BegunAttempt,
    CheckpointStanding,
    Rollback,
    Timeline,
)


def rolled_back(*points: tuple[float, int]) -> Timeline:
    timeline = Timeline()
    for at, to_iteration in points:
        timeline.roll_back(Rollback(at, to_iteration, None, "test"))
    return timeline


def test_without_a_rollback_everything_is_good() -> None:
    assert Timeline().standing(600, None) is CheckpointStanding.GOOD


def test_what_was_written_before_a_rollback_above_its_point_is_abandoned_for_ever() -> None:
    timeline = rolled_back((1000.0, 400))
    assert not timeline.is_abandoned(400, 500.0)
    assert timeline.is_abandoned(401, 500.0)
    assert timeline.is_abandoned(600, 1000.0)
    assert not timeline.is_abandoned(450, 1001.0)  # the new line
    assert timeline.is_abandoned(600, 1000.0)


def test_a_checkpoint_of_unknown_age_above_the_point_is_abandoned() -> None:
    assert rolled_back((1000.0, 400)).is_abandoned(500, None)
    assert not rolled_back((1000.0, 400)).is_abandoned(300, None)


def test_rollbacks_nest() -> None:
    timeline = rolled_back((1000.0, 400), (2000.0, 200), (3000.0, 250))
    assert timeline.is_abandoned(450, 1500.0)  # of the second line
    assert timeline.is_abandoned(300, 900.0)  # good then, not since
    assert timeline.is_abandoned(300, 2500.0)
    assert not timeline.is_abandoned(250, 2500.0)
    assert not timeline.is_abandoned(300, 3500.0)


def test_a_storage_clock_that_is_ahead_does_not_save_what_lay_there() -> None:
    timeline = Timeline()
    timeline.roll_back(Rollback(1000.0, 400, 551, "nan", marked=((600, 1030.0),)))
    assert timeline.is_abandoned(600, 1030.0)
    assert not timeline.is_abandoned(600, 1031.0)  # written anew
    assert not timeline.is_abandoned(500, 1010.0)


def test_what_was_written_since_the_first_bad_sign_is_suspect_until_a_rollback() -> None:
    timeline = Timeline()
    timeline.suspect(900.0, 551, "loss went missing")
    found = [timeline.standing(number, 800.0) for number in (500, 550, 551, 600)]
    assert found == [
        CheckpointStanding.GOOD,
        CheckpointStanding.GOOD,
        CheckpointStanding.SUSPECT,
        CheckpointStanding.SUSPECT,
    ]
    timeline.roll_back(Rollback(1000.0, 500, 551, "nan"))
    assert timeline.standing(600, 800.0) is CheckpointStanding.ABANDONED
    assert timeline.standing(600, 1200.0) is CheckpointStanding.GOOD


def test_the_earliest_bad_sign_counts_and_a_rollback_to_after_it_fixes_nothing() -> None:
    timeline = Timeline()
    timeline.suspect(900.0, 551, "late")
    timeline.suspect(910.0, 540, "early")
    timeline.suspect(920.0, 700, "later")
    assert timeline.is_suspect(540)
    timeline.roll_back(Rollback(1000.0, 560, None, "a person's wish"))
    assert timeline.is_suspect(560)


def test_attempts_are_numbered_and_the_newest_few_are_kept() -> None:
    timeline = Timeline()
    for number in range(1, MAX_ATTEMPTS + 10):
        timeline.begin(number, float(number), None)
    timeline.begin(73, 73.0, 400)
    timeline.begin(70, 73.0, None)
    assert (timeline.attempt, len(timeline.attempts)) == (73, MAX_ATTEMPTS)
    assert list(timeline.attempts)[-2] == BegunAttempt(73, 73.0, 400)


@pytest.mark.parametrize("step", [1, -1])
def test_however_many_rollbacks_nothing_that_was_abandoned_comes_back(step: int) -> None:
    count = 3 * MAX_ROLLBACKS
    points = [(1000.0 * number, 10_000 + step * 10 * number) for number in range(1, count)]
    timeline = rolled_back(*points)
    assert len(timeline.rollbacks) == MAX_ROLLBACKS
    for at, point in points:
        assert timeline.is_abandoned(point + 1, at)
    assert not timeline.is_abandoned(points[-1][1] + 1, points[-1][0] + 1)
