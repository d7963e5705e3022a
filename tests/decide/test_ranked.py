# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of several findings is acted on."""

from __future__ import annotations

import pytest

from mwatch.decide.verdict import ranked
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from support.builders.decide import decided, died, finding, running
from support.builders.job import START, add_checkpoints

NUMBERS = finding(Cause.NAN, since_iteration=340)
GUARDED = finding(Cause.NAN, since_iteration=351)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NUMBERS, finding(Cause.KILLED)),
        (NUMBERS, finding(Cause.HARDWARE)),
        (NUMBERS, finding(Cause.RERUN)),
        (NUMBERS, finding(Cause.OOM)),
        (finding(Cause.RERUN), GUARDED),
        (finding(Cause.HARDWARE), GUARDED),
        (GUARDED, finding(Cause.USER_ERROR)),
        (GUARDED, finding(Cause.CRASH)),
        (finding(Cause.HARDWARE), finding(Cause.HANG)),
        (finding(Cause.OOM), finding(Cause.CRASH)),
        (finding(Cause.USER_ERROR), finding(Cause.HANG)),
        (finding(Cause.DATA), finding(Cause.KILLED)),
        (finding(Cause.CHECKPOINT), finding(Cause.FABRIC)),
        (finding(Cause.STORAGE), finding(Cause.KILLED)),
        (finding(Cause.FABRIC), finding(Cause.HANG)),
        (finding(Cause.KILLED), finding(Cause.CRASH)),
        (finding(Cause.HANG), finding(Cause.RESUME_DIVERGED)),
        (finding(Cause.PREEMPTED, severity=Severity.WARNING), NUMBERS),
        (finding(Cause.CRASH), finding(Cause.OOM, severity=Severity.WARNING)),
        (finding(Cause.CRASH), finding(Cause.CRASH, since_time=None)),
        (finding(Cause.CRASH, since_time=START), finding(Cause.HANG)),
        (finding(Cause.KILLED), finding(Cause.CRASH, detector="crash_loop", since_time=START)),
        (NUMBERS, finding(Cause.STARTED_FROM_RANDOM)),
        (NUMBERS, finding(Cause.LOSS_SPIKE, since_iteration=345)),
        (finding(Cause.SLOW), finding(Cause.BLIND, severity=Severity.WARNING, since_time=START)),
    ],
)
def test_the_root_comes_first_in_whichever_order_they_are_reported(
    first: Finding, second: Finding
) -> None:
    built = died(350)
    assert list(ranked(built, [second, first])) == [first, second]
    assert list(ranked(built, [first, second])) == [first, second]


def test_what_only_informs_is_no_candidate() -> None:
    assert ranked(running(), [finding(Cause.NAN, severity=Severity.INFO)]) == []


def test_a_random_start_explains_the_spike_that_follows() -> None:
    built = running(50, number=2)
    add_checkpoints(built, 400, attempt=1)
    random = finding(Cause.STARTED_FROM_RANDOM)
    spike = finding(Cause.LOSS_SPIKE, since_iteration=1, since_time=START)
    assert decided(built, spike, random).cause is Cause.STARTED_FROM_RANDOM


def test_one_that_cannot_be_proven_gives_way_to_one_that_can() -> None:
    built = died(350)
    built.attempt.is_done = False
    decision = decided(built, finding(Cause.RESUME_DIVERGED), finding(Cause.CRASH))
    assert (decision.action, decision.cause) == (Action.RESTART, Cause.CRASH)


def test_where_none_is_acted_on_the_first_is_shown() -> None:
    built = running(silent=400)
    decision = decided(built, finding(Cause.SLOW), finding(Cause.HANG))
    assert (decision.action, decision.cause) == (Action.NONE, Cause.HANG)
