# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Bad numbers: how far to go back, how often, and what a person is advised."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.decide.decide import record_action
from mwatch.decide.resume import first_bad, rollback_refusal, target
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.job import Job, Layout, Save, Stream
from mwatch.model.settings import CheckpointSettings, Settings
from mwatch.model.timeline import Rollback
from support.builders.decide import act, decided, finding, record, running
from support.builders.job import START, add_checkpoints, job, rank, step, steps


def bad_since(iteration: int | None, *checkpoints: int, last: int = 650, **more: Any) -> Job:
    built = running(last, **more)
    add_checkpoints(built, *checkpoints)
    return built


@pytest.mark.parametrize(
    ("margin", "first", "expected"),
    [(1, 401, 400), (1, 400, 300), (2, 401, 300), (100, 500, 400), (100, 499, 300), (0, 400, 300)],
)
def test_the_margin_counts_from_the_first_bad_iteration(
    margin: int, first: int, expected: int
) -> None:
    built = bad_since(first, 300, 400, 500)
    settings = Settings(checkpoints=CheckpointSettings(margin_iterations=margin))
    decision = decided(built, finding(Cause.NAN, since_iteration=first), settings=settings)
    assert decision.resume_from == expected


def test_where_nothing_shows_the_first_bad_iteration_the_whole_attempt_is_suspect() -> None:
    nan = finding(Cause.NAN)
    assert first_bad(running(650, first_iteration=401), nan) == 401
    assert first_bad(running(650, first_iteration=None, resumed_from=300), nan) == 301
    assert first_bad(running(650, first_iteration=None), nan) == 1


def test_before_the_first_checkpoint_it_goes_back_to_the_beginning() -> None:
    decision = decided(bad_since(15, 20, 40, last=60), finding(Cause.NAN, since_iteration=15))
    assert (decision.action, decision.resume_from) == (Action.RESTART, None)
    assert decision.quarantine_from == 1
    assert decision.resume_reason == (
        "none was written before the first bad iteration 15: from the beginning"
    )


@pytest.mark.parametrize(
    ("bad", "total", "number", "is_refused"),
    [
        (15, None, 1, True),
        (15, 60_000, 1, True),
        (15, 60, 1, False),  # a quarter of a short run went well
        (80, 60_000, 1, False),
        (15, 60_000, 2, False),
    ],
)
def test_a_new_run_whose_numbers_go_bad_at_once_is_not_tried_again(
    bad: int, total: int | None, number: int, *, is_refused: bool
) -> None:
    built = bad_since(bad, last=bad + 40, number=number, first_iteration=1)
    built.layout = Layout(total_iterations=total)
    nan = finding(Cause.NAN, since_iteration=bad, detector="loss_nan")
    assert (rollback_refusal(built, record(), nan, Settings()) is not None) is is_refused


def test_thousands_of_iterations_are_not_thrown_away_without_being_asked_to() -> None:
    built = bad_since(8990, 9000, 9500, last=9600)
    decision = decided(built, finding(Cause.NAN, since_iteration=8990))
    assert decision.action is Action.STOP
    assert "no checkpoint before the first bad iteration 8990 can be used" in decision.reason


def back(attempt: int, bad: int, to: int | None) -> Act:
    return act(attempt, 650, cause=Cause.NAN, first_bad=bad, resume_from=to)


@pytest.mark.parametrize("again", [401, 451, 472])
def test_the_same_samples_failing_twice_are_proposed_to_be_skipped(again: int) -> None:
    built = bad_since(again, 400, number=2)
    nan = finding(Cause.NAN, since_iteration=again)
    decision = decided(built, nan, acts=(back(1, 451, 400),))
    assert decision.action is Action.STOP
    assert "the same samples failed twice" in decision.reason
    assert decision.proposal is not None
    assert "resume from checkpoint 400 with --iterations-to-skip" in decision.proposal


@pytest.mark.parametrize("again", [473, 640])
def test_other_samples_are_worth_another_rollback(again: int) -> None:
    built = bad_since(again, 400, number=2)
    nan = finding(Cause.NAN, since_iteration=again)
    decision = decided(built, nan, acts=(back(1, 451, 400),))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 400)


def test_the_iterations_to_skip_are_those_of_the_bad_line() -> None:
    built = running(650, number=2)
    built.attempt.steps.clear()
    built.attempt.steps.extend(steps([2.0, None], first=450, covers=3))
    nan = finding(Cause.NAN, since_iteration=449)
    decision = decided(built, nan, acts=(back(1, 449, None),))
    assert decision.proposal is not None
    assert "resume from the beginning with --iterations-to-skip 449 450 451," in decision.proposal
    assert "the rollback to the beginning" in decision.reason


def test_a_long_line_is_not_written_out() -> None:
    layout = Layout(log_interval=100)
    built = bad_since(501, 400, number=2, layout=layout)
    built.attempt.steps.clear()
    nan = finding(Cause.NAN, since_iteration=501)
    decision = decided(built, nan, acts=(back(1, 501, 400),))
    assert decision.proposal is not None
    assert "--iterations-to-skip 501 502 ... 600," in decision.proposal


def test_rollbacks_are_capped() -> None:
    built = bad_since(6000, 5000, last=6100, number=4)
    nan = finding(Cause.NAN, since_iteration=6000)
    done = (back(1, 1000, 900), back(2, 2000, 1900), back(3, 3000, 2900))
    assert decided(built, nan, acts=done[:2]).action is Action.RESTART
    decision = decided(built, nan, acts=done)
    assert decision.action is Action.STOP
    assert "3 rollbacks were made already" in decision.reason


def test_a_crash_is_no_rollback() -> None:
    built = bad_since(6000, 5000, last=6100, number=4)
    nan = finding(Cause.NAN, since_iteration=6000)
    crashes = tuple(act(number, number * 100) for number in (1, 2, 3))
    assert decided(built, nan, acts=crashes).action is Action.RESTART


def test_a_rollback_is_written_down_with_its_first_bad_iteration() -> None:
    built = bad_since(451, 400, 500)
    done = record()
    decision = decided(built, finding(Cause.NAN, since_iteration=451))
    written = record_action(done, decision, built, at=built.now)
    assert (written.first_bad, written.resume_from, written.quarantine_from) == (451, 400, 401)
    assert list(done.acts) == [written]


def test_numbers_that_go_bad_where_they_were_good_before_put_the_loaded_one_in_doubt() -> None:
    built = running(32, resumed_from=30)
    add_checkpoints(built, 10, 20, 30)
    nan = finding(Cause.NAN, since_iteration=32)
    assert target(built, nan, Settings()).iteration == 30
    built.earlier_steps[32] = step(32, at=built.attempt.started_at - 10)
    choice = target(built, nan, Settings())
    assert choice.iteration == 20
    assert "passed iteration 32" in choice.reason


def test_without_a_known_checkpoint_the_newest_one_may_be_bad_too() -> None:
    """The log begins in the middle of a run, and nobody sees the folder."""
    built = running(6100, first_iteration=5900)
    nan = finding(Cause.NAN, since_iteration=6000)
    decision = decided(built, nan)
    assert decision.action is Action.STOP
    assert "no older one is known" in decision.reason
    assert decision.proposal is not None
    assert "choose by hand what to resume from" in decision.proposal


def test_bad_numbers_of_an_earlier_attempt_prove_nothing() -> None:
    built = running(32, resumed_from=30)
    add_checkpoints(built, 10, 20, 30)
    nan = finding(Cause.NAN, since_iteration=32)
    built.earlier_steps[32] = step(32, at=built.attempt.started_at - 10, loss=float("nan"))
    assert target(built, nan, Settings()).iteration == 30
    built.earlier_steps[32] = step(32, at=built.attempt.started_at - 10)
    built.timeline.rollbacks.append(Rollback(0.0, 30, 31, "nan"))
    assert target(built, nan, Settings()).iteration == 30


def _with_queued_save(iteration: int, queued_at: float) -> Job:
    built = bad_since(60, 10, last=70)
    built.calibration.learn_steps([1.0] * 20, [1] * 20)
    built.attempt.save = Save(iteration, queued_at - 1.0, is_async=True, queued_at=queued_at)
    return built


def test_a_better_checkpoint_that_is_still_being_written_is_waited_for() -> None:
    """As long as the steps take that it spares."""
    nan = finding(Cause.NAN, since_iteration=60)
    built = _with_queued_save(50, queued_at=START + 300.0)
    decision = decided(built, nan)
    assert (decision.action, decision.resume_from) == (Action.RESTART, 10)
    assert decision.act_at == pytest.approx(START + 340.0)


@pytest.mark.parametrize("iteration", [5, 10, 60, 65])
def test_a_checkpoint_that_is_no_better_or_holds_bad_numbers_is_not(iteration: int) -> None:
    nan = finding(Cause.NAN, since_iteration=60)
    decision = decided(_with_queued_save(iteration, queued_at=START + 300.0), nan)
    plain = decided(bad_since(60, 10, last=70), nan)
    assert decision.act_at == plain.act_at


@pytest.mark.parametrize(
    ("apart", "seconds", "is_quoted"), [(0.1, None, True), (2.0, None, False), (2.0, 30.0, True)]
)
def test_numbers_of_lines_that_came_all_at_once_may_be_of_another_run(
    apart: float, seconds: float | None, is_quoted: bool
) -> None:
    lines = [step(n, at=START + n * apart, loss=None, seconds=seconds) for n in (1, 2, 3)]
    built = job(lines)
    nan = finding(Cause.NAN, since_iteration=2, since_time=built.now)
    assert decided(built, nan).action is not Action.NONE, "only a wrapper knows when they came"
    built.streams["pod-0"] = Stream("pod-0", has_wrapper=True)
    decision = decided(built, nan)
    assert (decision.action is Action.NONE) is is_quoted
    assert ("quoted" in decision.reason) is is_quoted
    built.attempt.ranks[0] = rank(0, 3, at=built.now)
    assert decided(built, nan).action is not Action.NONE, "a rank has made them"
