# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is seen at all: a log is seen when a log speaks, not when somebody else tells a fault."""

from __future__ import annotations

from mwatch.model.event import Fault
from mwatch.model.fault import Role
from mwatch.model.observation import Observed, Source
from mwatch.state.fold import fold
from support.builders.fold import START, Story

XID = Fault("xid-79", "node-a", "GPU-1", "Xid 79", Role.ROOT.value, None, 3, "NVML", 0)
"""As a source that reads no log tells it: of no line."""


def tell(story: Story, fault: Fault) -> None:
    fold(story.job, Observed(START, "node-a", fault))


def test_a_fault_that_no_line_reported_is_no_view_of_a_log() -> None:
    story = Story()
    tell(story, XID)
    assert not story.job.sees(Source.LOG)
    assert [seen.fault for seen in story.job.attempt.faults] == [XID]


def test_a_fault_of_a_line_is_a_view_of_its_log() -> None:
    story = Story()
    tell(story, XID._replace(file="trainer.log", line=7))
    assert story.job.sees(Source.LOG)


def test_a_log_that_was_seen_before_a_fault_of_the_node_is_still_seen() -> None:
    story = Story().trains(1, 2)
    tell(story, XID)
    assert story.job.sees(Source.LOG)
