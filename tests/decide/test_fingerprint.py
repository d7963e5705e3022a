# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The same failure again and again without progress is not restarted."""

from __future__ import annotations

from mwatch.decide import history
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from support.builders.decide import act, decided, died, finding


def test_the_third_time_without_progress_is_a_stop() -> None:
    acts = (act(1, 500, fingerprint="crash/x"), act(2, 500, fingerprint="crash/x"))
    decision = decided(died(500, number=3), finding(Cause.CRASH), acts=acts)
    assert decision.action is Action.STOP
    assert decision.reason.endswith(
        "the same thing happened 3 times without progress in between (crash/x)"
    )


def test_the_second_time_is_not() -> None:
    acts = (act(1, 500, fingerprint="crash/x"),)
    assert decided(died(500, number=2), finding(Cause.CRASH), acts=acts).action is Action.RESTART


def test_the_second_time_is_one_too_many_where_each_restart_loses_everything() -> None:
    acts = (act(1, 500, fingerprint="crash/x", resume_from=None),)
    decision = decided(died(500, number=2), finding(Cause.CRASH), acts=acts)
    assert decision.action is Action.STOP
    assert "again after a restart that lost all progress" in decision.reason
    early = (act(1, 3, fingerprint="crash/x", resume_from=None),)
    decision = decided(died(500, number=2), finding(Cause.CRASH), acts=early)
    assert decision.action is Action.RESTART, "three steps are not much"


def test_something_else_in_between_does_not_count() -> None:
    acts = (act(1, 500, fingerprint="crash/x"), act(2, 500, fingerprint="crash/y"))
    decision = decided(died(500, number=3), finding(Cause.CRASH), acts=acts)
    assert decision.action is Action.RESTART


def test_progress_in_between_forgives() -> None:
    acts = (act(1, 300, fingerprint="crash/x"), act(2, 400, fingerprint="crash/x"))
    decision = decided(died(500, number=3), finding(Cause.CRASH), acts=acts)
    assert decision.action is Action.RESTART


def test_a_first_time_is_never_a_repetition() -> None:
    decision = decided(died(), finding(Cause.CRASH), max_same_fingerprint=0)
    assert decision.action is Action.RESTART


def test_a_finding_without_a_fingerprint_is_known_by_its_cause_and_fault() -> None:
    plain = finding(Cause.STORAGE, fingerprint="")
    assert history.fingerprint(plain) == "storage:crashed"
    named = finding(Cause.STORAGE, fingerprint="", fault="storage-stale")
    assert history.fingerprint(named) == "storage:storage-stale"
