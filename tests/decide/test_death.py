# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A death carries its own proof, unless training goes on after it."""

from __future__ import annotations

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.job import Job, ProcessGone, Stream
from mwatch.model.observation import ProcessExit, SignSource, SignState
from mwatch.model.phase import JobPhase
from support.builders.decide import decided, died, finding, running
from support.builders.job import START, add_sign, rank


def hang(built: Job) -> Decision:
    return decided(built, finding(Cause.HANG, since_time=built.attempt.progress_at))


def test_a_hang_that_ended_in_a_death_needs_no_other_witness() -> None:
    decision = hang(died(code=None, signal="SIGABRT"))
    assert decision.action is Action.RESTART
    assert [each.text for each in decision.witnesses] == ["pod-0: ended (SIGABRT)"]


def test_a_death_of_which_nobody_knows_how_is_still_a_death() -> None:
    decision = decided(died(code=None), finding(Cause.CRASH))
    assert decision.witnesses[0].text == "pod-0: ended (cause unknown)"


def test_an_attempt_that_is_over_by_its_log_alone_is_over() -> None:
    built = running(phase=JobPhase.ENDED)
    decision = decided(built, finding(Cause.CRASH))
    assert decision.action is Action.RESTART
    assert decision.witnesses[0].name == "crashed"


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.OOM, Cause.USER_ERROR, Cause.KILLED])
def test_a_crash_after_which_training_goes_on_was_none(cause: Cause) -> None:
    built = running(150)
    decision = decided(built, finding(cause, since_time=START + 201))
    assert decision.action is Action.NONE
    assert decision.reason == "not acted on: training went on (iteration 150 came 49 s after it)"
    assert decision.witnesses[-1].agrees is False


def test_the_probe_too_shows_that_training_went_on() -> None:
    built = running()
    built.attempt.ranks[0] = rank(0, 120, at=built.now + 30)
    assert decided(built, finding(Cause.OOM)).action is Action.NONE


def test_a_step_that_was_under_way_does_not_refute_a_crash() -> None:
    built = running(100)
    decision = decided(built, finding(Cause.CRASH, since_time=built.attempt.progress_at - 4))
    assert decision.action is Action.RESTART


def test_an_incomplete_checkpoint_beside_a_running_job_is_no_reason_to_restart() -> None:
    built = running()
    reported = finding(Cause.CHECKPOINT, detector="checkpoint_incomplete")
    assert decided(built, reported).action is Action.NONE


def lost(*, silent: float, reason: str | None = "NodeLost") -> Job:
    built = running(silent=silent)
    gone = ProcessExit(None, None, reason)
    built.attempt.gone["pod-1"] = ProcessGone(built.attempt.progress_at, "pod-1", gone)
    return built


@pytest.mark.parametrize("reason", ["NodeLost", None])
def test_a_pod_that_is_gone_is_a_second_witness(reason: str | None) -> None:
    decision = hang(lost(silent=400, reason=reason))
    assert decision.action is Action.RESTART
    assert decision.witnesses[1].text == f"pod-1: {reason or 'gone'}"


def test_a_pod_that_went_before_the_last_progress_was_of_another_time() -> None:
    built = lost(silent=400)
    built.attempt.progress_at += 60
    assert hang(built).action is Action.NONE


def test_the_late_report_of_a_lost_pod_does_not_end_the_next_attempt() -> None:
    built = lost(silent=0)
    reported = finding(Cause.LOST_POD, since_time=built.now)
    decision = decided(built, reported)
    assert decision.act_at == built.now + 10
    built.attempt.line_at = built.now = built.now + 8
    assert decided(built, reported).action is Action.NONE


def test_a_pod_that_ended_well_before_the_others_is_no_death() -> None:
    built = died(code=0)
    built.attempt.phase = JobPhase.TRAINING
    assert hang(built).action is Action.NONE


def test_an_exception_about_bad_numbers_is_proven_by_the_end_of_its_process() -> None:
    caught = running(silent=60.0)
    caught.streams["pod-0"] = Stream("pod-0", has_wrapper=True)
    guard = finding(Cause.NAN, detector="crashed", since_iteration=101)
    add_sign(caught, SignSource.CPU_TIME, SignState.MOVING)
    assert decided(caught, guard).action is Action.NONE
    assert decided(caught, finding(Cause.NAN, since_iteration=90)).action is Action.STOP
    assert decided(died(), guard).action is not Action.NONE
