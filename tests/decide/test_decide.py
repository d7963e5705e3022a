# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One decision at a time: idempotent, withdrawn when refuted, and none if nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mwatch.decide.decide import decide, record_action
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.event import Exit
from mwatch.model.finding import Finding
from mwatch.model.job import ExitSeen, Job, Layout, Save
from mwatch.model.observation import SignSource, SignState
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from support.builders.decide import CPU, FLAT, act, decided, died, finding, record, running
from support.builders.job import START, add_checkpoints, add_sign, error


def test_an_attempt_gets_one_action() -> None:
    built, done = died(350, number=3), record()
    first = decide(built, [finding(Cause.KILLED)], done, Settings())
    written = record_action(done, first, built, at=built.now)
    again = decide(built, [finding(Cause.CRASH), finding(Cause.KILLED)], done, Settings())
    assert (again.action, again.cause) == (Action.NONE, Cause.KILLED)
    assert again.reason == "already decided for attempt 3: restart"
    assert again.finding == finding(Cause.KILLED)
    assert record_action(done, first, built, at=built.now + 9) is written
    assert len(done.acts) == 1


def test_the_next_attempt_is_decided_on_its_own() -> None:
    decision = decided(died(350, number=3), finding(Cause.CRASH), acts=(act(2, 200),))
    assert decision.action is Action.RESTART


def test_deciding_changes_neither_the_job_nor_the_record() -> None:
    built, done = died(350), record()
    add_checkpoints(built, 300)
    before = (repr(built.attempt), repr(built.checkpoints), repr(built.timeline))
    first = decide(built, [finding(Cause.NAN, since_iteration=320)], done, Settings())
    assert decide(built, [finding(Cause.NAN, since_iteration=320)], done, Settings()) == first
    assert before == (repr(built.attempt), repr(built.checkpoints), repr(built.timeline))
    assert not done.acts


def test_what_is_written_down_shows_how_far_the_attempt_got() -> None:
    built, done = died(350, number=2), record(act(1, 100))
    decision = decide(built, [finding(Cause.OOM)], done, Settings())
    written = record_action(done, decision, built, at=built.now)
    assert written == act(
        2,
        350,
        at=built.now,
        action=Action.STOP,
        cause=Cause.OOM,
        fingerprint="oom/x",
        resume_from=None,
        spends_budget=False,
    )


def test_a_decision_without_a_finding_is_known_by_its_cause() -> None:
    built, done = running(), record()
    healthy = decide(built, [], done, Settings())
    assert record_action(done, healthy, built, at=built.now).fingerprint == "healthy"


def calm(built: Job) -> Cause:
    decision = decided(built)
    assert decision.action is Action.NONE
    assert not decision.spends_budget
    return decision.cause


def test_a_job_without_findings_is_healthy() -> None:
    assert calm(running()) is Cause.HEALTHY


def test_a_job_that_is_done_is_finished() -> None:
    assert calm(running(is_done=True)) is Cause.FINISHED


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("interval", Cause.FINISHED),
        ("duration", Cause.FINISHED),
        ("evaluation-time-limit", Cause.FINISHED),
        ("signal", Cause.HEALTHY),
        ("terminated", Cause.HEALTHY),
    ],
)
def test_an_exit_that_was_asked_for_is_a_normal_end(reason: str, cause: Cause) -> None:
    built = running(phase=JobPhase.STOPPING)
    output = Exit(reason, 100, "exiting", None, None, "trainer.log", 9)
    built.attempt.exit = ExitSeen(built.now, "pod-0", output)
    assert calm(built) is cause


def test_nothing_seen_is_unknown_and_so_is_nothing_to_see_with() -> None:
    unread = running()
    unread.has_started = False
    assert calm(unread) is Cause.UNKNOWN
    assert calm(running(sights=())) is Cause.UNKNOWN


def test_an_end_that_nobody_explains_is_unknown() -> None:
    assert calm(died(code=0)) is Cause.UNKNOWN


def test_an_exit_code_of_0_within_the_last_log_interval_is_the_end() -> None:
    built = died(995, code=0)
    built.layout = replace(built.layout, log_interval=10)
    assert calm(built) is Cause.FINISHED
    built.layout = replace(built.layout, log_interval=5)
    assert calm(built) is Cause.UNKNOWN


def test_blind_is_shown_as_blind() -> None:
    decision = decided(running(), finding(Cause.BLIND, detector="blind"))
    assert (decision.action, decision.cause) == (Action.NONE, Cause.BLIND)


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.KILLED, Cause.FABRIC, Cause.HARDWARE])
def test_a_death_after_the_last_iteration_was_kept_needs_no_fixing(cause: Cause) -> None:
    built = died(1000, is_done=True)
    add_checkpoints(built, 900, 1000)
    decision = decided(built, finding(cause))
    assert (decision.action, decision.cause) == (Action.NONE, Cause.FINISHED)
    assert "what came after it does not matter" in decision.reason


def test_a_death_in_the_last_save_loses_the_end_of_the_run() -> None:
    built = died(1000, is_done=True)
    add_checkpoints(built, 900)
    assert decided(built, finding(Cause.KILLED)).resume_from == 900
    built.attempt.save = Save(1000, START + 1100, False)
    assert decided(built, finding(Cause.KILLED)).action is Action.RESTART


def test_a_hang_after_the_last_iteration_still_holds_the_gpus() -> None:
    built = running(1000, silent=4000, is_done=True, phase=JobPhase.STOPPING)
    add_checkpoints(built, 1000)
    add_sign(built, CPU, FLAT)
    decision = decided(built, finding(Cause.HANG, since_time=built.attempt.progress_at))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 1000)


def test_a_run_that_ended_in_nan_is_fixed_all_the_same() -> None:
    built = died(1000, code=0, is_done=True)
    add_checkpoints(built, 900, 1000)
    decision = decided(built, finding(Cause.NAN, since_iteration=950))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 900)


def test_an_end_before_time_is_early_whatever_was_stated() -> None:
    built = died(100, code=0)
    output = Exit("duration", 100, "exiting", None, None, "trainer.log", 9)
    built.attempt.exit = ExitSeen(built.now, "pod-0", output)
    assert decided(built, finding(Cause.FINISHED_EARLY)).action is Action.RESTART


def test_the_exit_code_of_a_worker_shows_that_the_wrapper_gave_up() -> None:
    built = died()
    built.attempt.errors.append(error("elastic", exit_code=93))
    assert decided(built, finding(Cause.CRASH)).action is Action.STOP


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (1, 100, "smaller micro batch"),
        (101, 300, "it ran 200 iterations before: look for a leak"),
        (None, 300, "smaller micro batch"),
    ],
)
def test_what_to_do_about_memory_depends_on_how_long_it_lasted(
    first: int | None, last: int, words: str
) -> None:
    decision = decided(died(last, first_iteration=first), finding(Cause.OOM))
    assert decision.proposal is not None
    assert words in decision.proposal
    assert decision.proposal.endswith("then start again")


def test_the_catalogue_shows_how_to_fix_what_keeps_coming_back() -> None:
    known = finding(Cause.CRASH, fault="process-too-many-files")
    unknown = finding(Cause.CRASH)
    proposals = [decided(died(code=93), each).proposal for each in (known, unknown)]
    assert proposals[0] is not None
    assert proposals[0] != proposals[1] == "find the cause, then start again"


def test_processes_that_are_gone_at_the_last_iteration_may_have_finished() -> None:
    built = running(999, silent=400, layout=Layout(world_size=8, total_iterations=1000))
    add_sign(built, SignSource.PROCESS, SignState.DEAD, rank=0)
    assert decided(built, finding(Cause.HANG, cannot_heal=True)).action is Action.NONE
    built.layout = Layout(world_size=8, total_iterations=2000)
    assert decided(built, finding(Cause.HANG, cannot_heal=True)).action is Action.RESTART


@pytest.mark.parametrize("id", ["storage-full", "storage-quota", "storage-read-only"])
def test_what_the_catalogue_calls_futile_is_stopped(id: str) -> None:
    decision = decided(died(350), finding(Cause.STORAGE, fault=id))
    assert decision.action is Action.STOP
    assert "a restart does not fix it" in decision.reason


def test_other_faults_of_the_same_cause_and_bad_checkpoints_are_restarted() -> None:
    built = died(350)
    add_checkpoints(built, 200, 300)
    for cause, id in [
        (Cause.STORAGE, "storage-io-error"),
        (Cause.CHECKPOINT, "checkpoint-file-corrupt"),
    ]:
        assert decided(built, finding(cause, fault=id)).action is Action.RESTART


def set_up_failed(**change: Any) -> Job:
    """It has ended before its first step."""
    built = died()
    built.attempt.steps.clear()
    for name, value in {"iteration": None, "first_iteration": None, **change}.items():
        setattr(built.attempt, name, value)
    built.best_iteration = None
    return built


SET_UP_FAULTS = [
    finding(Cause.FABRIC, fault="nccl-internal-error"),
    finding(Cause.FABRIC, fault="nccl-connect-refused"),
    finding(Cause.CRASH, fault="cuda-illegal-address"),
    finding(Cause.HARDWARE, fault="cuda-fabric-not-ready"),
    finding(Cause.CRASH, fault="process-bus-error"),
    finding(Cause.CRASH, fingerprint="crash/SIGBUS"),
]


@pytest.mark.parametrize("found", SET_UP_FAULTS, ids=lambda each: each.fault)
def test_a_run_that_has_never_worked_is_not_restarted_by_chance(found: Finding) -> None:
    decision = decided(set_up_failed(), found)
    assert decision.action is Action.STOP
    assert "this run has never made a step" in decision.reason


@pytest.mark.parametrize("found", SET_UP_FAULTS, ids=lambda each: each.fault)
def test_the_same_fault_in_a_run_that_has_worked_is_restarted(found: Finding) -> None:
    saved = set_up_failed()
    add_checkpoints(saved, 300)
    worked = [died(350), saved, set_up_failed(number=2), set_up_failed(resumed_from=300)]
    assert [decided(built, found).action for built in worked] == [Action.RESTART] * 4


@pytest.mark.parametrize(
    "found",
    [
        finding(Cause.CRASH, fingerprint="crash/SIGSEGV"),
        finding(Cause.FABRIC, fault="store-connect-timeout"),
        finding(Cause.HARDWARE, fault="xid-74"),
        finding(Cause.HANG),
    ],
    ids=lambda each: each.cause,
)
def test_a_start_that_chance_may_have_broken_is_tried_again(found: Finding) -> None:
    assert decided(set_up_failed(), found).action is Action.RESTART
