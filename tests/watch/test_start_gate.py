# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watcher that is there before the training: what it sees meanwhile begins no attempt."""

from __future__ import annotations

from mwatch.model.event import Fault
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    ProcessExit,
    Source,
    SourceStatusChange,
    StoredCheckpoints,
)
from mwatch.watch.watcher import StartGate
from support.builders.events import events, megatron_line

FOLDER = Observed(5.0, "p", StoredCheckpoints("/ckpt", ()))
LOST = Observed(6.0, "p", SourceStatusChange(Source.GPU, False, "no GPU"))
XID = Observed(7.0, "p", Fault("xid-79", None, "0", "Xid 79", "root", None, None, "nvml", 0))
START = Observed(60.0, "p", AttemptStart(1, None, None))


def test_what_comes_before_the_wrapper_waits_for_it() -> None:
    first = StartGate()
    assert first.let_through([FOLDER, LOST, XID]) == []
    assert not first.has_begun
    told = first.let_through([START])
    assert [each.what for each in told] == [START.what, FOLDER.what, LOST.what, XID.what]
    assert [each.at for each in told] == [60.0] * 4, "nothing is older than the beginning"
    assert first.let_through([LOST]) == [LOST]


def test_a_line_a_record_or_an_end_is_a_beginning() -> None:
    line = Observed(1.0, "p", events(megatron_line(5) + "\n")[0])
    beat = Observed(1.0, "p", Beat(0, 1, 1, "compute", "a", 1, None))
    gone = Observed(1.0, "p", ProcessExit(1, None, None))
    for each in (line, beat, gone):
        assert StartGate().let_through([each]) == [each]


def test_a_beginning_stands_before_what_was_seen_with_it() -> None:
    told = StartGate().let_through([LOST, START, FOLDER])
    assert told == [START, LOST, FOLDER]
