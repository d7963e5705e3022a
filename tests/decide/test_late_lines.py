# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The last log lines of a process that is gone may arrive late."""

from __future__ import annotations

from dataclasses import replace

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.job import Job, ProcessGone
from mwatch.model.observation import ProcessExit
from support.builders.decide import DEAD, PROCESS, decided, died, finding, running
from support.builders.job import add_checkpoints, add_sign, error


def vanished(last: int = 100, **change: float) -> Job:
    """Silent for 46 seconds; its process was found to be gone a second ago."""
    built = running(last, silent=46.0, **change)
    add_sign(built, PROCESS, DEAD, rank=0, at=built.now - 1)
    return built


def hang(built: Job) -> Decision:
    reported = finding(Cause.HANG, since_time=built.attempt.progress_at, cannot_heal=True)
    return decided(built, reported)


def early(built: Job) -> Decision:
    reported = finding(Cause.FINISHED_EARLY, detector="finished_early", since_time=built.now)
    return decided(built, reported)


def test_where_nobody_saw_how_it_ended_its_last_lines_are_waited_for() -> None:
    built = vanished()
    decision = hang(built)
    assert decision.action is Action.RESTART
    assert decision.act_at == built.now - 1 + 60


def test_a_death_that_is_reported_again_does_not_put_it_off() -> None:
    built = vanished()
    first = hang(built).act_at
    key, seen = next(iter(built.attempt.signs.items()))
    built.attempt.signs[key] = replace(seen, at=seen.at + 30, first_at=seen.at)
    built.now += 31
    assert hang(built).act_at == first


def test_an_exit_code_or_an_error_is_the_last_word() -> None:
    for reported in (ProcessExit(-9, None, None), ProcessExit(None, None, "NodeLost")):
        built = vanished()
        built.attempt.gone["pod-0"] = ProcessGone(built.now, "pod-0", reported)
        assert hang(built).act_at == built.attempt.progress_at + 10
    built = vanished()
    built.attempt.errors.append(error(at=built.now))
    assert hang(built).act_at == built.attempt.progress_at + 10


def test_exit_code_0_comes_before_the_lines_that_say_that_all_is_done() -> None:
    built = died(code=0)
    assert early(built).act_at == built.now + 60
    built = died(code=15)
    assert early(built).act_at == built.now + 10


def test_a_checkpoint_of_the_last_iteration_says_that_it_has_finished() -> None:
    for built in (vanished(900), died(900, code=0)):
        add_checkpoints(built, 1000, stored="complete")
        decision = early(built) if built.attempt.gone else hang(built)
        assert decision.action is Action.NONE
        assert "checkpoint 1000 is of its last iteration" in decision.reason


def test_processes_that_are_gone_in_the_last_iterations_may_have_finished() -> None:
    assert hang(vanished(998)).action is Action.NONE
    assert hang(vanished(997)).action is Action.RESTART


def test_a_crash_in_the_last_iterations_is_a_crash() -> None:
    built = died(999)
    assert decided(built, finding(Cause.CRASH)).action is Action.RESTART


def test_what_the_log_shows_its_end_is_not_waited_for() -> None:
    built = died(code=0)
    reported = finding(Cause.CHECKPOINT, detector="crashed", since_time=built.now)
    assert decided(built, reported).act_at == built.now + 10
