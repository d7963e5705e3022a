# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A difference of clocks that is a time zone, and one that is not; the year of a stamp."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mwatch.replay.timestamps import Stamps, zone_step


@pytest.mark.parametrize("hours", [-14, -3.5, 0, 1, 5.75, 14])
def test_whole_quarters_of_an_hour_are_a_zone(hours: float) -> None:
    assert zone_step(hours * 3600.0 + 3.0, 5.0) == hours * 3600.0


@pytest.mark.parametrize("seconds", [450.0, 3600.0 + 6.0, 15 * 3600.0, -15 * 3600.0])
def test_anything_else_is_none(seconds: float) -> None:
    assert zone_step(seconds, 5.0) == 0.0


def test_a_stamp_without_a_year_is_never_of_the_future() -> None:
    written = datetime(2026, 11, 17, tzinfo=UTC).timestamp()
    printed = datetime(2026, 4, 23, 14, 53, 12, tzinfo=UTC).timestamp()
    text = "[rank3]:[W423 14:53:12 TCPStore.cpp:125] [c10d] recvValue failed"
    assert Stamps(written, latest=written).of_glog(text) == printed
    assert Stamps(written).of_glog(text) != printed, "the nearest one is in 2027"
