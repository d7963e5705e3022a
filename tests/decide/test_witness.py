# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Two witnesses before an action: which are believed, missing, or disagree."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.decide.witness import AGREES, TIMEOUT_FAULTS
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.job import Job
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from support.builders.decide import (
    CPU,
    DEAD,
    FLAT,
    GPU,
    MOVING,
    PROCESS,
    RAS,
    RECORDER,
    STOPPED,
    decided,
    finding,
    running,
)
from support.builders.job import START, add_sign, fault, rank


def hang(built: Job, **change: Any) -> Decision:
    usual = {"since_time": built.attempt.progress_at}
    return decided(built, finding(Cause.HANG, **(usual | change)))


AGREEING = [(source, state) for source, states in AGREES.items() for state in sorted(states)]
SILENT_ONES = [
    (source, state)
    for source in SignSource
    for state in SignState
    if state not in AGREES[source] and state is not MOVING
    if (source, state) != (SignSource.PROCESS, SignState.TRACED)
]


@pytest.mark.parametrize(("source", "state"), AGREEING)
def test_a_silent_job_with_an_independent_witness_is_restarted(
    source: SignSource, state: SignState
) -> None:
    built = running(silent=400, sights=(Source.LOG,))
    add_sign(built, source, state, rank=3)
    if state is SignState.SUSPENDED:  # of one pod; of the whole job it would be a person's
        add_sign(built, SignSource.CPU_TIME, SignState.UNKNOWN, stream="pod-1")
    decision = hang(built)
    assert decision.action is Action.RESTART
    assert [each.agrees for each in decision.witnesses] == [True, True]
    assert f"{source} of rank 3 agrees" in decision.reason


@pytest.mark.parametrize(("source", "state"), SILENT_ONES)
def test_a_sign_that_says_nothing_is_no_witness(source: SignSource, state: SignState) -> None:
    built = running(silent=400)
    add_sign(built, source, state)
    decision = hang(built)
    assert decision.action is Action.NONE
    assert f"{source} reports {state}" in decision.reason


def test_a_command_that_a_person_has_stopped_has_time_to_be_continued() -> None:
    built = running(silent=400)
    add_sign(built, SignSource.PROCESS, SignState.SUSPENDED, rank=None)
    decision = hang(built)
    assert decision.action is Action.NONE
    assert "it has 300 s to be continued" in decision.reason
    stopped_at = next(iter(built.attempt.signs.values())).at
    built.now = stopped_at + 301
    add_sign(built, SignSource.PROCESS, SignState.SUSPENDED, rank=None, first_at=stopped_at)
    assert hang(built).action is Action.RESTART


def test_nothing_is_done_while_a_debugger_is_attached() -> None:
    built = running(silent=4000)
    add_sign(built, SignSource.CPU_TIME, SignState.FLAT, rank=3)
    assert hang(built).action is Action.RESTART
    add_sign(built, SignSource.PROCESS, SignState.TRACED, rank=3)
    assert hang(built).action is Action.NONE


@pytest.mark.parametrize("source", [SignSource.CPU_TIME, SignSource.GPU_ACTIVITY])
def test_rest_at_the_time_of_the_last_progress_proves_nothing(source: SignSource) -> None:
    """A save had just ended, and no report came after that."""
    built = running(silent=110)
    add_sign(built, source, SignState.FLAT, rank=3, at=built.attempt.last_progress + 2)
    assert hang(built).action is Action.NONE
    add_sign(built, source, SignState.FLAT, rank=3, at=built.attempt.last_progress + 20)
    assert hang(built).action is Action.RESTART


def test_silence_alone_is_not_acted_on_and_the_reason_names_what_is_missing() -> None:
    decision = hang(running(silent=4000))
    assert decision.action is Action.NONE
    assert decision.reason == (
        "not acted on: progress is silent for 4000 s, and there is no independent witness"
    )


def test_the_probe_does_not_vouch_for_progress_that_it_read() -> None:
    built = running(silent=400)
    built.attempt.ranks = {n: rank(n, 100, at=built.attempt.progress_at) for n in range(8)}
    add_sign(built, SignSource.STACKS, SignState.STUCK)
    assert hang(built).action is Action.NONE


def test_a_word_that_is_too_old_does_not_count() -> None:
    built = running(silent=400)
    add_sign(built, CPU, FLAT, at=built.now - 121)
    decision = hang(built)
    assert decision.action is Action.NONE
    assert "cpu_time has not reported since" in decision.reason


def test_a_word_from_before_the_last_progress_speaks_of_another_time() -> None:
    built = running(silent=60)
    add_sign(built, CPU, FLAT, at=built.attempt.progress_at - 1)
    assert hang(built, cannot_heal=True).action is Action.NONE


@pytest.mark.parametrize("state", [DEAD, SignState.NEVER_JOINED, SignState.OUT_OF_STEP])
def test_what_is_reported_once_counts_until_something_moves(state: SignState) -> None:
    source = PROCESS if state is DEAD else RECORDER
    built = running(silent=400)
    add_sign(built, source, state, rank=3, at=built.attempt.progress_at - 2)
    assert hang(built).action is Action.RESTART
    built.attempt.progress_at += 300
    assert hang(built).action is Action.NONE


@pytest.mark.parametrize("source", [GPU, RAS, RECORDER, SignSource.TENSORBOARD, CPU])
def test_a_witness_that_sees_it_move_is_shown_and_nothing_is_done(source: SignSource) -> None:
    built = running(silent=4000)
    add_sign(built, GPU, FLAT, rank=1)
    add_sign(built, source, MOVING, text="it moves")
    decision = hang(built)
    assert decision.action is Action.NONE
    assert decision.reason.endswith(f"but {source}: it moves")
    assert [each.agrees for each in decision.witnesses] == [True, True, False]


def test_a_process_that_is_alive_may_hang_all_the_same() -> None:
    built = running(silent=400)
    add_sign(built, PROCESS, MOVING)
    add_sign(built, CPU, FLAT)
    assert hang(built).action is Action.RESTART


@pytest.mark.parametrize("state", [STOPPED, DEAD])
def test_ranks_that_spin_do_not_excuse_the_one_that_is_stopped(state: SignState) -> None:
    built = running(silent=400)
    add_sign(built, PROCESS, state, rank=3)
    add_sign(built, CPU, MOVING, rank=0)
    assert hang(built).action is Action.RESTART


@pytest.mark.parametrize("state", [STOPPED, SignState.SUSPENDED])
def test_a_pod_that_is_stopped_is_not_excused_by_another_one(state: SignState) -> None:
    """One process a pod: when its rank is stopped, all that the pod runs is."""
    built = running(silent=400)
    add_sign(built, PROCESS, state, stream="pod-1")
    add_sign(built, CPU, MOVING, stream="pod-0")
    assert hang(built).action is Action.RESTART


def test_a_rank_that_is_busy_itself_may_still_arrive() -> None:
    built = running(silent=400)
    add_sign(built, RECORDER, SignState.NEVER_JOINED, rank=3)
    built.attempt.phase = JobPhase.LOADING
    add_sign(built, CPU, MOVING, rank=3)
    assert hang(built).action is Action.NONE


@pytest.mark.parametrize(
    ("phase", "action"),
    [(JobPhase.TRAINING, Action.RESTART), (JobPhase.SAVING, Action.NONE)],
)
def test_a_busy_cpu_spins_while_training_and_works_while_saving(
    phase: JobPhase, action: Action
) -> None:
    built = running(silent=4000, phase=phase)
    add_sign(built, RAS, FLAT)
    add_sign(built, CPU, MOVING)
    assert hang(built).action is action


def spinning(**change: Any) -> Job:
    """All GPUs are flat, and the CPU of rank 0 is busy; the probe sees it wait since the stall."""
    built = running(silent=4000, **change)
    for number in range(2):
        add_sign(built, GPU, FLAT, rank=number)
    add_sign(built, CPU, MOVING, rank=0)
    since = built.attempt.progress_at
    built.attempt.ranks[0] = rank(0, 100, at=built.now, moved_at=since, phase="collective")
    return built


def test_a_rank_that_waits_in_a_collective_spins_and_does_not_excuse_flat_gpus() -> None:
    decision = hang(spinning())
    assert decision.action is Action.RESTART
    assert all(each.agrees for each in decision.witnesses)


@pytest.mark.parametrize("source", [RAS, RECORDER])
def test_collectives_that_all_are_in_explain_a_busy_cpu(source: SignSource) -> None:
    built = spinning()
    built.attempt.ranks.clear()
    assert hang(built).action is Action.NONE
    add_sign(built, source, SignState.ALL_EQUAL)
    assert hang(built).action is Action.RESTART


def test_a_busy_rank_that_does_not_wait_in_a_collective_may_be_at_work() -> None:
    for phase, stood in (("data", 4000), ("compute", 4000), ("collective", 2)):
        built = spinning()
        built.attempt.ranks[0] = rank(0, 100, at=built.now, moved_at=built.now - stood, phase=phase)
        assert hang(built).action is Action.NONE


def test_one_gpu_that_works_is_enough_to_wait() -> None:
    built = spinning()
    add_sign(built, GPU, MOVING, rank=1)
    assert hang(built).action is Action.NONE


def test_a_busy_cpu_is_at_work_outside_of_steps_whatever_the_gpus_do() -> None:
    assert hang(spinning(phase=JobPhase.FIRST_STEP)).action is Action.NONE


def test_activity_from_before_a_death_does_not_undo_it() -> None:
    built = running(silent=400)
    add_sign(built, GPU, MOVING, at=built.now - 10)
    add_sign(built, PROCESS, DEAD, rank=3, at=built.now - 5)
    assert hang(built).action is Action.RESTART


@pytest.mark.parametrize("id", sorted(TIMEOUT_FAULTS))
def test_a_timeout_inside_the_job_is_a_second_witness(id: str) -> None:
    built = running(silent=700)
    built.attempt.faults += [fault(id, at=built.now - 5), fault(id, at=built.now - 4)]
    add_sign(built, CPU, MOVING)
    decision = hang(built)
    assert decision.action is Action.RESTART
    assert [each.name for each in decision.witnesses] == ["progress", "log"]


def test_a_timeout_before_the_last_progress_was_outlived() -> None:
    built = running(silent=400)
    built.attempt.faults.append(fault("collective-timeout", at=START + 120))
    assert hang(built).action is Action.NONE


def test_a_fault_of_a_newer_catalogue_is_named_by_its_id() -> None:
    built = running(silent=400)
    newer = fault("gloo-timeout", at=built.now)._replace(entry=None)
    built.attempt.faults.append(newer)
    assert "log agrees (gloo-timeout)" in hang(built).reason


@pytest.mark.parametrize("cause", [Cause.FABRIC, Cause.LOST_POD, Cause.STORAGE, Cause.HARDWARE])
def test_causes_inferred_from_silence_need_the_same_proof(cause: Cause) -> None:
    built = running(silent=4000)
    silent = finding(cause, detector="rank_silent")
    assert decided(built, silent).action is Action.NONE
    add_sign(built, GPU, FLAT)
    assert decided(built, silent).action is Action.RESTART


def test_a_job_that_still_makes_progress_is_not_hung_whatever_the_others_say() -> None:
    built = running(silent=2)
    add_sign(built, PROCESS, STOPPED, rank=3)
    decision = decided(built, finding(Cause.LOST_POD, detector="rank_silent", cannot_heal=True))
    assert decision.action is Action.NONE
    assert decision.reason == "not acted on: the last progress was 2 s ago, which is usual"


def test_an_old_stall_is_no_silence_where_iterations_came_after_it() -> None:
    built = running(silent=2)
    add_sign(built, CPU, FLAT)
    assert hang(built, since_time=START + 150).action is Action.NONE


def test_without_data_on_progress_its_silence_means_nothing() -> None:
    built = running(silent=4000, sights=(Source.GPU,))
    add_sign(built, GPU, FLAT)
    decision = hang(built)
    assert decision.action is Action.NONE
    assert decision.reason == "not acted on: progress cannot be measured"
