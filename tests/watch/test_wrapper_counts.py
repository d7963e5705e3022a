# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What of the trainer's output was lost, as a real wrapper counts it."""

from __future__ import annotations

from pathlib import Path

from mwatch.watch.collector import PERIOD_SECONDS, WrapperCounts
from support.builders.volume import ManualClock
from support.runs import wrapper_runs
from support.waiting import until


def test_a_wrapper_is_asked_now_and_then(tmp_path: Path) -> None:
    clock = ManualClock()
    with wrapper_runs.running(tmp_path, "sleep", "60"):
        wrapper_runs.child_pid(tmp_path)
        counts = WrapperCounts(str(tmp_path), clock)

        def asked() -> dict[str, int]:
            counts.ask_when_due()
            return counts.dropped

        assert asked() == {}, "not at once"
        clock.now += PERIOD_SECONDS
        assert until(asked) == {"log": 0}


def test_where_there_is_no_wrapper_nothing_is_known(tmp_path: Path) -> None:
    clock = ManualClock()
    counts = WrapperCounts(str(tmp_path), clock)
    for _ in range(3):
        clock.now += PERIOD_SECONDS
        counts.ask_when_due()
        until(lambda: not counts._call.is_busy)
    assert counts.dropped == {}
