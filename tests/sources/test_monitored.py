# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A source reports when it is found and when it is lost, and not in between.

A source that was never there was not lost: a machine without a GPU reports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mwatch.model.observation import (
    Observed,
    Sign,
    SignSource,
    SignState,
    Source,
    SourceStatusChange,
)
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.background import MonitoredSource

SIGN = Observed(5.0, "pod-0", Sign(SignSource.PROCESS, SignState.STOPPED, 0, "stopped"))


def test_changes_are_reported_once_with_the_reason() -> None:
    readings: list[Reading[Sequence[Observed]]] = [
        Absent("no GPU"), Failed("driver"), Ok([SIGN]), Ok(()), Failed("lost"), Absent("gone"),
    ]  # fmt: skip
    source = MonitoredSource("gpus", "pod-0", lambda: readings.pop(0), Source.GPU)
    observed = [source.poll(float(now)) for now in range(6)]

    def change(at: float, is_up: bool, reason: str) -> Observed:
        return Observed(at, "pod-0", SourceStatusChange(Source.GPU, is_up, reason))

    assert observed == [
        [],
        [change(1.0, False, "driver")],
        [change(2.0, True, "read"), SIGN],
        [],
        [change(4.0, False, "lost")],
        [],
    ]
    assert (source.is_up, source.reason, source.read_at) == (False, "gone", 3.0)


def test_a_source_without_a_kind_only_reports_what_it_reads() -> None:
    source = MonitoredSource("wrapper", "pod-0", lambda: Ok([SIGN]))
    assert (source.is_up, source.reason) == (False, "not read yet")
    assert source.poll(1.0) == [SIGN]
    assert source.is_up
