# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every row of the policy table: what is done, and what to resume from."""

from __future__ import annotations

import pytest

from mwatch.decide.policy import RULES, acts
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.event import Exit
from mwatch.model.finding import Severity
from mwatch.model.job import ExitSeen
from mwatch.model.observation import SignState
from support.builders.decide import CPU, FLAT, decided, died, finding, running
from support.builders.job import add_checkpoints, add_sign

OUTSIDE = [
    Cause.UNSCHEDULABLE,
    Cause.IMAGE,
    Cause.VOLUME,
    Cause.PREEMPTED,
    Cause.DRAINED,
    Cause.SUSPENDED,
    Cause.DELETED_BY_USER,
]
WATCHED = [
    Cause.RESUME_DIVERGED,
    Cause.SLOW,
    Cause.LOSS_STUCK,
    Cause.CHECKPOINT_OVERDUE,
    Cause.BLIND,
    Cause.UNKNOWN,
]
DEATHS = [
    Cause.FABRIC,
    Cause.KILLED,
    Cause.LOST_POD,
    Cause.STORAGE,
    Cause.CRASH,
    Cause.FINISHED_EARLY,
    Cause.HARDWARE,
]


def test_every_cause_has_a_rule() -> None:
    assert set(RULES) == set(Cause)


@pytest.mark.parametrize("cause", DEATHS)
def test_a_death_restarts_from_the_newest_complete_checkpoint(cause: Cause) -> None:
    built = died(350)
    add_checkpoints(built, 100, 200, 300)
    decision = decided(built, finding(cause))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 300)
    assert decision.cause is cause
    assert decision.spends_budget
    assert decision.quarantine_from is None


def test_a_hang_restarts_from_the_newest_complete_checkpoint() -> None:
    built = running(350, silent=400)
    add_checkpoints(built, 200, 300)
    add_sign(built, CPU, FLAT)
    decision = decided(built, finding(Cause.HANG, since_time=built.attempt.progress_at))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 300)


def test_hardware_keeps_off_the_node_and_nothing_else_does() -> None:
    kept_off = [cause for cause in DEATHS if decided(died(), finding(cause)).avoid_node]
    assert kept_off == [Cause.HARDWARE]


def test_a_fault_that_asks_for_another_node_gets_it() -> None:
    assert decided(died(), finding(Cause.CRASH, fault="mlx5-health")).avoid_node


def test_a_sick_node_is_left_even_when_the_numbers_lead() -> None:
    built = died(350)
    add_checkpoints(built, 300)
    numbers = finding(Cause.NAN, since_iteration=340)
    decision = decided(built, numbers, finding(Cause.HARDWARE))
    assert decision.cause is Cause.NAN
    assert decision.avoid_node


@pytest.mark.parametrize("cause", [Cause.NAN, Cause.LOSS_SCALE_COLLAPSE, Cause.LOSS_SPIKE])
def test_bad_numbers_go_back_to_before_the_first_bad_sign(cause: Cause) -> None:
    built = running(650)
    add_checkpoints(built, 400, 500, 600)
    decision = decided(built, finding(cause, since_iteration=451))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 400)
    assert decision.quarantine_from == 401


def test_a_checkpoint_that_could_not_be_loaded_gives_way_to_the_one_before() -> None:
    built = died(350, load="failed", load_iteration=300)
    add_checkpoints(built, 100, 200, 300, 400)
    built.checkpoints[300].load_failed = True
    decision = decided(built, finding(Cause.CHECKPOINT))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 200)
    assert decision.quarantine_from == 201


@pytest.mark.parametrize("cause", [Cause.OOM, Cause.USER_ERROR, Cause.DATA])
def test_what_a_restart_does_not_fix_is_stopped_at_once(cause: Cause) -> None:
    built = died(350)
    add_checkpoints(built, 300)
    decision = decided(built, finding(cause))
    assert decision.action is Action.STOP
    assert decision.resume_from is None
    assert not decision.spends_budget
    assert decision.proposal is not None
    assert decision.proposal.endswith("resume from 300")


@pytest.mark.parametrize("cause", WATCHED)
def test_what_is_only_watched_is_never_acted_on(cause: Cause) -> None:
    decision = decided(running(), finding(cause))
    assert (decision.action, decision.cause) == (Action.NONE, cause)
    assert not decision.spends_budget


@pytest.mark.parametrize("cause", OUTSIDE)
def test_what_somebody_outside_did_is_left_to_them_even_after_a_death(cause: Cause) -> None:
    reported = finding(cause, severity=Severity.INFO)
    numbers = finding(Cause.NAN, since_iteration=90)
    decision = decided(died(), finding(Cause.KILLED), numbers, reported)
    assert (decision.action, decision.cause) == (Action.NONE, cause)
    assert not decision.spends_budget


def test_started_from_random_stops_where_an_older_checkpoint_is_complete() -> None:
    built = running(50, number=2)
    add_checkpoints(built, 400, attempt=1, stored="complete")
    decision = decided(built, finding(Cause.STARTED_FROM_RANDOM))
    assert decision.action is Action.STOP
    assert decision.proposal == "fix the load path and resume from checkpoint 400"


def test_started_from_random_is_left_alone_with_its_own_checkpoints() -> None:
    built = running(250)
    add_checkpoints(built, 100, 200, stored="complete")
    decision = decided(built, finding(Cause.STARTED_FROM_RANDOM))
    assert decision.action is Action.NONE
    assert decision.reason == "no usable checkpoint is older than this attempt"


def test_exit_16_restarts_from_the_checkpoint_that_megatron_saved() -> None:
    built = died(123, code=16)
    add_checkpoints(built, 100, 123)
    decision = decided(built, finding(Cause.RERUN))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 123)
    assert not decision.avoid_node


@pytest.mark.parametrize("cause", sorted(set(Cause)))
@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARNING])
def test_less_than_critical_is_shown_and_not_acted_on(cause: Cause, severity: Severity) -> None:
    ends = {Cause.KILLED, Cause.FINISHED_EARLY, Cause.RERUN}
    assert acts(cause, severity) is (cause in ends and severity is Severity.WARNING)


def test_a_warning_of_a_spike_says_that_it_is_only_shown() -> None:
    decision = decided(running(), finding(Cause.LOSS_SPIKE, severity=Severity.WARNING))
    assert decision.reason == "loss_spike: a warning is shown, not acted on"


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.FINISHED_EARLY, Cause.NAN])
def test_the_wrapper_that_gave_up_is_never_restarted(cause: Cause) -> None:
    decision = decided(died(code=93), finding(cause, since_iteration=90))
    assert decision.action is Action.STOP
    assert "gave up" in decision.reason


def test_unknown_signs_are_no_proof_of_a_hang() -> None:
    built = running(silent=4000)
    add_sign(built, CPU, SignState.UNKNOWN)
    assert decided(built, finding(Cause.HANG)).action is Action.NONE


def asked_to_exit(built_at: float) -> ExitSeen:
    output = Exit("interval", 100, "exiting program at iteration 100", None, None, "trainer.log", 9)
    return ExitSeen(built_at, "pod-0", output)


def test_a_crash_after_an_exit_that_was_asked_for_is_a_normal_end() -> None:
    built = died(100)
    built.attempt.exit = asked_to_exit(built.now)
    decision = decided(built, finding(Cause.CRASH))
    assert (decision.action, decision.cause) == (Action.NONE, Cause.FINISHED)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.DRAINED, Cause.DELETED_BY_USER])
def test_what_is_left_of_a_gang_that_somebody_took_pods_of_is_restarted_without_budget(
    cause: Cause,
) -> None:
    built = died(350)
    add_checkpoints(built, 100, 200, 300)
    broken = finding(cause, detector=cause.value, cannot_heal=True)
    decision = decided(built, broken, restarts_per_window=0)
    assert (decision.action, decision.resume_from) == (Action.RESTART, 300)
    assert decision.cause is cause and not decision.spends_budget
    output = decided(built, finding(cause, detector="crashed", cannot_heal=True))
    assert output.action is Action.NONE, "a last word alone: the pods may all be gone"
