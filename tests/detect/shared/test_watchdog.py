# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The rank that did not join while every other rank waited until the timeout."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.stall import absentee
from mwatch.model.job import Job, Layout
from support.builders.job import START, fault, job, steps

SINCE = START + 200


def hung(*waiting: int, world: int | None = 4) -> Job:
    reported = [fault("collective-timeout", at=SINCE + 600, rank=rank) for rank in waiting]
    return job(steps([2.0] * 5), faults=reported, layout=Layout(world_size=world))


def test_the_one_that_did_not_wait_is_missing() -> None:
    assert absentee(hung(0, 1, 3), SINCE) == 2
    assert absentee(hung(1, world=2), SINCE) == 0


@pytest.mark.parametrize(
    "built",
    [hung(0, 1), hung(0, 1, 2, 3), hung(), hung(0, world=None), hung(world=1), hung(0, 1, 2, 9)],
)
def test_nobody_is_named_where_several_or_none_are_missing(built: Job) -> None:
    assert absentee(built, SINCE) is None


def test_a_timeout_of_another_time_says_nothing() -> None:
    assert absentee(hung(0, 1, 3), SINCE + 700) is None
