# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exit 16: Megatron asks to be resumed, sometimes more than once."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision
from mwatch.model.finding import Severity
from support.builders.decide import act, decided, died, finding
from support.builders.job import add_checkpoints, fault

NAN = "Unexpected result nan on rank 0 at iteration #124 invocation #1 (message='found NaN')"


def asked(*before: Act, last: int = 123, text: str | None = None, **change: Any) -> Decision:
    faults = [fault("rerun-unexpected-result", text=text)] if text else []
    built = died(last, code=16, number=9, faults=faults)
    add_checkpoints(built, 123)
    return decided(built, finding(Cause.RERUN, **change), acts=before)


def rerun(attempt: int, iteration: int | None = 123) -> Act:
    return act(attempt, iteration, cause=Cause.RERUN, fingerprint="rerun/x")


def test_the_first_time_it_is_resumed_wherever_it_is() -> None:
    decision = asked()
    assert (decision.action, decision.avoid_node) == (Action.RESTART, False)


@pytest.mark.parametrize("before", [(1,), (1, 2)])
def test_asked_again_it_gets_another_node(before: tuple[int, ...]) -> None:
    decision = asked(*map(rerun, before))
    assert (decision.action, decision.avoid_node) == (Action.RESTART, True)


def test_the_fourth_time_in_a_row_is_a_stop() -> None:
    decision = asked(rerun(1), rerun(2), rerun(3))
    assert decision.action is Action.STOP
    assert "asked 4 times in a row" in decision.reason


def test_bad_numbers_that_come_again_are_not_asked_about_again() -> None:
    assert asked(text=NAN).action is Action.RESTART
    assert asked(rerun(1), text=NAN).action is Action.STOP
    assert asked(rerun(1), text=NAN.replace("nan", "97.1")).action is Action.RESTART


def test_attempts_that_printed_nothing_stand_at_the_same_place() -> None:
    assert asked(rerun(1), rerun(2, None), rerun(3, None)).action is Action.STOP


def test_further_on_it_is_another_question() -> None:
    decision = asked(rerun(1), rerun(2), rerun(3), last=500)
    assert (decision.action, decision.avoid_node) == (Action.RESTART, False)


def test_a_crash_in_between_begins_anew() -> None:
    decision = asked(rerun(1), rerun(2), act(3, 123), rerun(4))
    assert (decision.action, decision.avoid_node) == (Action.RESTART, True)


def test_it_is_not_counted_as_no_progress_but_spends_the_budget() -> None:
    crashes = [act(number, 123) for number in (1, 2, 3)]
    assert asked(*crashes).action is Action.RESTART
    assert asked(*crashes, act(4, 123), act(5, 123)).action is Action.STOP


def test_a_warning_is_enough_for_the_trainer_itself_asks() -> None:
    assert asked(severity=Severity.WARNING).action is Action.RESTART
