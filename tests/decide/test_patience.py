# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Detection and action have separate times: a stall that may recover must first cost a restart."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Culprit, CulpritState
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.phase import DeadlineSlot, JobPhase
from support.builders.decide import (
    CPU,
    FLAT,
    PROCESS,
    STOPPED,
    act,
    decided,
    died,
    finding,
    running,
)
from support.builders.job import START, add_checkpoints, add_sign


def stalled(silent: float, last: int = 100, **change: Any) -> Job:
    """With a checkpoint of its last iteration, so that a restart loses no steps."""
    built = running(last, silent=silent, **change)
    add_checkpoints(built, last)
    add_sign(built, CPU, FLAT)
    return built


def hang(built: Job, **change: Any) -> float:
    usual = {"since_time": built.attempt.progress_at}
    found = finding(Cause.HANG, **(usual | change))
    decision = decided(built, found, stall_factor=1.0)
    assert decision.action is Action.RESTART
    assert decision.act_at is not None
    return decision.act_at - built.attempt.progress_at


@pytest.mark.parametrize("silent", [20, 299, 301, 4000])
def test_a_job_that_has_not_shown_its_cost_waits_for_the_default(silent: float) -> None:
    assert hang(stalled(silent)) == 300


def test_a_stall_is_acted_on_when_it_has_cost_as_much_as_this_jobs_own_restart() -> None:
    built = stalled(20)
    for slot, seconds in (
        (DeadlineSlot.STARTING, 60),
        (DeadlineSlot.LOADING, 30),
        (DeadlineSlot.FIRST_STEP, 20),
    ):
        built.calibration.learn(slot, seconds)
    built.calibration.recomputed.append(40)
    assert hang(built) == 150


def test_the_steps_that_this_restart_would_lose_are_part_of_its_cost() -> None:
    built = stalled(20)
    built.calibration.learn(DeadlineSlot.LOADING, 30)
    built.calibration.learn(DeadlineSlot.FIRST_STEP, 20)
    built.checkpoints.clear()
    assert hang(built) == 50 + 100  # from the beginning: all 100 of them, a second each
    add_checkpoints(built, 70)
    assert hang(built) == 50 + 30
    built.calibration.recomputed.append(40)
    assert hang(built) == 50 + 40  # as much as it was the last time


def test_a_job_that_never_loaded_takes_what_a_save_takes() -> None:
    built = stalled(20)
    built.calibration.learn(DeadlineSlot.FIRST_STEP, 40)
    built.calibration.learn(DeadlineSlot.SAVING, 25)
    assert hang(built) == 65
    built.calibration.learn(DeadlineSlot.FIRST_SAVE, 35)
    assert hang(built) == 75


def test_a_stall_that_may_be_an_evaluation_is_left_alone_as_long_as_that_may_take() -> None:
    assert hang(stalled(20), may_take_seconds=700.0) == 700
    assert hang(stalled(20), may_take_seconds=100.0) == 300
    assert hang(stalled(20), may_take_seconds=9000.0) == 1800


def test_no_stall_is_waited_for_longer_than_half_an_hour() -> None:
    built = stalled(20, last=5000)
    built.checkpoints.clear()
    assert hang(built) == 1800


def test_a_storage_stall_of_half_a_minute_is_worth_no_restart_however_cheap() -> None:
    built = stalled(20)
    built.calibration.learn(DeadlineSlot.FIRST_STEP, 1)
    assert hang(built) == 30


def test_what_cannot_heal_waits_for_the_backoff_alone() -> None:
    assert hang(stalled(8), cannot_heal=True) == 10


def test_the_moment_does_not_move_when_looked_at_again() -> None:
    built = stalled(20)
    first = hang(built)
    built.now += 50
    add_sign(built, CPU, FLAT)
    assert hang(built) == first


def test_the_decision_is_withdrawn_when_the_finding_goes_away() -> None:
    built = stalled(20)
    assert decided(built, finding(Cause.HANG)).action is Action.RESTART
    assert decided(built).action is Action.NONE


def test_a_death_waits_for_the_backoff_after_its_end_not_after_its_first_sign() -> None:
    built = died()
    decision = decided(built, finding(Cause.CRASH, since_time=START + 10))
    assert decision.act_at == built.attempt.ended_at + 10  # type: ignore[operator]


def test_a_finding_without_a_time_counts_from_the_last_progress() -> None:
    built = running()
    decision = decided(built, finding(Cause.NAN, since_time=None, since_iteration=90))
    assert decision.act_at == built.attempt.progress_at + 10


def test_bad_numbers_do_not_heal_and_wait_for_the_backoff_alone() -> None:
    built = running(150)
    decision = decided(built, finding(Cause.NAN, since_time=START + 210, since_iteration=110))
    assert decision.act_at == START + 220


def test_a_crash_that_only_the_log_shows_waits_for_training_to_show_itself() -> None:
    built = running()
    decision = decided(built, finding(Cause.OOM, since_time=built.now))
    assert decision.act_at == built.now + 10  # three slow steps are shorter than the backoff
    built.calibration.steps.extend([60.0] * 60)
    decision = decided(built, finding(Cause.OOM, since_time=built.now))
    assert decision.act_at == built.now + 180


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (JobPhase.TRAINING, 1800),
        (JobPhase.SAVING, 1800),
        (JobPhase.EVALUATING, 3600),
        (JobPhase.STOPPING, 900),
        (JobPhase.QUEUED, 3600),
    ],
)
def test_without_the_probe_it_waits_as_long_as_the_phase_may_take(
    phase: JobPhase, seconds: float
) -> None:
    built = running(sights=(Source.LOG,), phase=phase)
    decision = decided(built, finding(Cause.CRASH, since_time=built.now))
    assert decision.act_at == built.now + seconds


def test_the_first_save_of_a_process_is_given_its_own_time() -> None:
    built = running(sights=(Source.LOG,), phase=JobPhase.SAVING)
    built.calibration.learn(DeadlineSlot.SAVING, 1)
    first = decided(built, finding(Cause.CRASH, since_time=built.now))
    built.attempt.saves_done = 1
    later = decided(built, finding(Cause.CRASH, since_time=built.now))
    assert (first.act_at, later.act_at) == (built.now + 1800, built.now + 300)


def test_a_gpu_that_is_lost_is_not_waited_for() -> None:
    built = running()
    lost = finding(Cause.HARDWARE, detector="gpu_fault", cannot_heal=True, since_time=built.now)
    decision = decided(built, lost)
    assert (decision.action, decision.act_at) == (Action.RESTART, built.now + 10)


def test_a_fabric_that_could_heal_is_given_its_time() -> None:
    built = stalled(100)
    add_sign(built, PROCESS, STOPPED, rank=2)
    since = built.attempt.progress_at
    decision = decided(built, finding(Cause.FABRIC, detector="fabric_fault", since_time=since))
    assert decision.act_at == since + 375  # with a quarter for what is not measured


def test_a_rank_that_has_not_joined_may_still_come() -> None:
    late = Culprit(3, CulpritState.NEVER_JOINED)
    assert hang(stalled(20), cannot_heal=True, culprit=late) == 300
    stopped = Culprit(3, CulpritState.SILENT)
    assert hang(stalled(20), cannot_heal=True, culprit=stopped) == 10


def test_who_was_held_by_a_person_has_all_its_time_anew() -> None:
    """It needs its time to finish the step that was held, and the person may still be there."""
    built = stalled(400)
    built.attempt.released_at = built.now - 5
    assert hang(built) == 395 + 300
    built.attempt.released_at = built.attempt.last_progress - 5  # it was another silence
    assert hang(built) == 300


def test_work_that_was_seen_long_after_the_last_progress_begins_the_wait_anew() -> None:
    """A step of minutes that works, and rests for a moment at its end, has not hung."""
    built = stalled(400)
    built.attempt.moved_at[CPU, None, "pod-0"] = built.now - 10
    assert hang(built) == 390 + 300
    built.attempt.moved_at[CPU, None, "pod-0"] = built.attempt.last_progress + 10
    assert hang(built) == 300, "the report of the last step"


def test_a_stop_waits_once_for_the_line_that_may_name_another_cause() -> None:
    built = died()
    acts = tuple(act(number, number * 100, at=built.now) for number in range(2, 5))
    decision = decided(built, finding(Cause.OOM, since_time=built.now), acts=acts)
    assert decision.act_at == built.now + 10


def test_each_restart_that_ended_in_the_same_stall_makes_the_next_wait_longer() -> None:
    """A long evaluation that nothing announces comes again after each restart, in whatever phase
    it then seems to be."""
    found = finding(Cause.HANG, since_time=START + 200.0)
    waits = []
    for number in (1, 2, 3):
        built = stalled(20, number=number)
        before = tuple(
            act(each, 100, cause=Cause.HANG, fingerprint=f"hang/{each}")
            for each in range(1, number)
        )
        decision = decided(built, found, acts=before, max_same_fingerprint=9)
        assert decision.act_at is not None
        waits.append(decision.act_at - built.attempt.progress_at)
    assert waits == [375, 1500, 1800]


def test_a_limit_that_is_a_guess_is_not_acted_on_alone() -> None:
    built = stalled(4000)
    decision = decided(built, finding(Cause.HANG, is_guess=True))
    assert decision.action is Action.NONE and "too little is known" in decision.reason
    decision = decided(built, finding(Cause.HANG, is_guess=True, cannot_heal=True))
    assert decision.action is Action.RESTART, "proof that waiting is useless"


def test_a_stall_that_may_recover_is_not_restarted_from_the_beginning() -> None:
    built = running(silent=4000)
    add_sign(built, CPU, FLAT)
    found = finding(Cause.HANG, since_time=built.attempt.progress_at)
    decision = decided(built, found, restart_stalled_from_beginning=False)
    assert decision.action is Action.NONE and "loses all 100 iterations" in decision.reason
    assert decided(built, found).action is Action.RESTART, "the policy may allow it"
    for allowed in (found, finding(Cause.CRASH)):
        dead = died()
        decision = decided(dead, allowed, restart_stalled_from_beginning=False)
        assert decision.action is Action.RESTART and decision.resume_from is None
    add_sign(built, PROCESS, STOPPED)
    decision = decided(built, found, restart_stalled_from_beginning=False)
    assert decision.action is Action.RESTART, "nobody continues a process that a signal holds"
    built = running(silent=4000)
    add_sign(built, CPU, FLAT)
    stuck = finding(Cause.HANG, since_time=built.attempt.progress_at, cannot_heal=True)
    decision = decided(built, stuck, restart_stalled_from_beginning=False)
    assert decision.action is Action.RESTART, "a process that is stopped does not come back"
