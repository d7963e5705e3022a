# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The restart budget: its window, the backoff, and the guard against loops."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.decide import history
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.settings import ActSettings
from support.builders.decide import HOUR, act, decided, died, finding, record, running
from support.builders.job import START


def crashed(*acts: Act, last: int = 1000, **limits: Any) -> tuple[Action, str]:
    """Attempt 9 has died after iteration `last`; `acts` came before."""
    decision = decided(died(last, number=9), finding(Cause.CRASH), acts=acts, **limits)
    return decision.action, decision.reason


def test_the_last_restart_of_the_budget_is_given() -> None:
    acts = [act(number, number * 100) for number in range(1, 5)]
    assert crashed(*acts)[0] is Action.RESTART


def test_one_more_is_refused_and_the_reason_says_so() -> None:
    acts = [act(number, number * 100) for number in range(1, 6)]
    action, reason = crashed(*acts)
    assert action is Action.STOP
    assert reason.endswith("the budget is spent: 5 restarts in the last 6 hours, and 5 are allowed")


def test_restarts_that_are_older_than_the_window_are_forgiven() -> None:
    acts = [act(number, number * 100, at=START - 6 * HOUR) for number in range(1, 6)]
    assert crashed(*acts)[0] is Action.RESTART


def test_what_spends_no_budget_and_what_was_no_restart_does_not_count() -> None:
    acts = [act(number, number * 100) for number in range(1, 5)]
    free = act(5, 500, spends_budget=False)
    stop = act(6, 600, action=Action.STOP)
    assert crashed(*acts, free, stop)[0] is Action.RESTART


@pytest.mark.parametrize(("done", "seconds"), [(0, 10), (1, 20), (2, 40), (4, 160), (30, 900)])
def test_the_backoff_doubles_with_each_recent_restart(done: int, seconds: float) -> None:
    acts = record(*(act(number, number) for number in range(done)))
    limits = ActSettings(restarts_per_window=100)
    assert history.backoff_seconds(acts, START, limits) == seconds


def test_the_backoff_never_exceeds_its_ceiling_even_at_first() -> None:
    limits = ActSettings(backoff_first_seconds=10, backoff_max_seconds=5)
    assert history.backoff_seconds(record(), START, limits) == 5


def test_a_decision_waits_for_the_backoff() -> None:
    built = died(1000, number=9)
    acts = (act(1, 100), act(2, 200))
    decision = decided(built, finding(Cause.CRASH), acts=acts)
    assert decision.act_at == built.now + 40


def test_restarts_that_do_not_pass_the_furthest_iteration_end_in_a_stop() -> None:
    acts = [act(1, 500), act(2, 480), act(3, 500)]
    action, reason = crashed(*acts, last=500)
    assert action is Action.STOP
    assert "no progress: the last 3 restarts did not pass the furthest iteration" in reason


def test_one_that_does_pass_it_opens_a_new_account() -> None:
    acts = [act(1, 500), act(2, 480), act(3, 500)]
    assert crashed(*acts, last=501)[0] is Action.RESTART


def test_attempts_that_die_before_their_first_iteration_make_no_progress() -> None:
    built = died(number=4)
    built.attempt.iteration = None
    acts = (act(1), act(2), act(3))
    assert decided(built, finding(Cause.CRASH), acts=acts).action is Action.STOP
    assert decided(built, finding(Cause.CRASH), acts=acts[:2]).action is Action.RESTART


def test_a_restart_from_the_beginning_is_progress_only_when_it_gets_further() -> None:
    acts = [act(1, 80, resume_from=None), act(2, 70, resume_from=None)]
    assert len(history.fruitless(record(*acts), died(80, number=3))) == 2
    assert history.fruitless(record(*acts), died(81, number=3)) == []


def test_a_rerun_is_not_held_against_the_job() -> None:
    acts = [act(1, 500), act(2, 500, cause=Cause.RERUN), act(3, 500)]
    assert len(history.fruitless(record(*acts), died(500, number=4))) == 2


def test_after_a_rollback_the_furthest_is_where_it_went_back_to() -> None:
    back = act(1, 600, cause=Cause.NAN, first_bad=550, resume_from=400)
    assert history.fruitless(record(back), died(450, number=2)) == []
    assert history.fruitless(record(back), died(400, number=2)) == [back]


def test_attempts_that_somebody_else_restarted_count_as_progress_too() -> None:
    built = died(90, number=4)
    built.past.extend([attempt_that_reached(2, 90), attempt_that_reached(3, 700)])
    assert history.reached(built, record(act(2, 500))) == 700
    assert history.fruitless(record(act(2, 500)), built) == []


def attempt_that_reached(number: int, iteration: int) -> Attempt:
    return Attempt(number, START, iteration=iteration)


def test_whoever_starts_a_stopped_job_again_has_changed_something() -> None:
    acts = [act(1, 500), act(2, 500), act(3, 500), act(4, 500, action=Action.STOP)]
    assert crashed(*acts, last=500)[0] is Action.RESTART


@pytest.mark.parametrize("detector", ["crash_loop", "no_progress"])
def test_a_loop_of_attempts_that_others_restarted_is_stopped(detector: str) -> None:
    loop = finding(Cause.CRASH, detector=detector, summary="3 attempts in a row")
    decision = decided(died(), finding(Cause.KILLED), loop)
    assert (decision.action, decision.cause) == (Action.STOP, Cause.KILLED)
    assert decision.reason == "found killed: 3 attempts in a row"


def test_a_loop_stops_the_job_also_where_nobody_knows_why_it_died() -> None:
    loop = finding(Cause.CRASH, detector="crash_loop")
    assert decided(died(), loop).action is Action.STOP


def test_a_loop_is_no_reason_to_stop_an_attempt_that_still_runs() -> None:
    loop = finding(Cause.CRASH, detector="no_progress", severity=Severity.WARNING)
    built: Job = running()
    assert decided(built, loop).action is Action.NONE
