# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint is chosen, and the reason that is given."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.decide.resume import before_failed, choose, has_none_before, older_than_attempt
from mwatch.model.cause import Cause
from mwatch.model.decision import CHOSEN_BY_TRAINER, Action, describe_action
from mwatch.model.job import Attempt, Job, KnownCheckpoint, Layout, Save, SourceStatus
from mwatch.model.observation import Source
from mwatch.model.timeline import Rollback
from support.builders.decide import act, decided, died, finding
from support.builders.job import START, add_checkpoints, fault


def job_with(*iterations: int, **more: Any) -> Job:
    built = died(650)
    add_checkpoints(built, *iterations, **more)
    return built


def test_the_newest_that_the_log_says_was_saved_where_the_folder_is_out_of_reach() -> None:
    choice = choose(job_with(200, 400), before=None)
    why = "checkpoint 400: the newest one that was saved, according to the log"
    assert choice == (400, why, False, False)


def test_the_folder_knows_better_than_the_log() -> None:
    built = job_with(200, 400, 600, stored="complete")
    built.checkpoints[600].stored = "incomplete"
    choice = choose(built, before=None)
    assert choice.iteration == 400
    assert choice.reason == "checkpoint 400: the newest complete one; 600 is incomplete"


def test_the_reason_names_the_limit_and_what_is_newer() -> None:
    built = job_with(400, 500, 600, stored="complete")
    choice = choose(built, before=451, limit="before the first bad iteration 451")
    assert choice.reason == (
        "checkpoint 400: the newest complete one before the first bad iteration 451; "
        "600 and 500 are newer than that"
    )


def test_many_that_were_passed_over_are_counted_not_listed() -> None:
    built = job_with(*range(100, 1000, 100))
    reason = choose(built, before=101).reason
    assert reason.endswith("; 900, 800, 700, 600 and 4 more are newer than that")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stored": "incomplete"}, "incomplete"),
        ({"stored": "missing"}, "gone"),
        ({"stored": "something new"}, "incomplete"),
        ({"is_saved": False}, "not finished"),
        ({"load_failed": True}, "not loadable"),
        ({"load_failed": True, "stored": "complete"}, "not loadable"),
        ({"is_abandoned": True, "stored": "complete"}, "of an abandoned line"),
    ],
)
def test_what_is_never_chosen(change: dict[str, Any], why: str) -> None:
    built = job_with(400)
    add_checkpoints(built, 600, **change)
    choice = choose(built, before=None)
    assert choice.iteration == 400
    assert choice.reason.endswith(f"; 600 is {why}")


def test_what_the_timeline_abandoned_is_known_by_when_it_was_written() -> None:
    built = job_with(400)
    built.timeline.rollbacks.append(Rollback(START + 800, 400, 550, "nan"))
    add_checkpoints(built, 500, written_at=START + 900, stored="complete")
    add_checkpoints(built, 600)
    assert choose(built, before=None).iteration == 500
    built.checkpoints[500].written_at = None
    assert choose(built, before=None).iteration == 400


def test_unverified_only_where_nothing_verified_exists() -> None:
    built = job_with(600, stored="unverified")
    alone = choose(built, before=None)
    assert alone.iteration == 600
    assert "nothing verified exists" in alone.reason
    add_checkpoints(built, 400, stored="complete")
    choice = choose(built, before=None)
    assert choice.iteration == 400
    assert choice.reason.endswith("; 600 is unverified")


def test_an_asynchronous_save_that_was_only_queued_does_not_count() -> None:
    built = job_with(400)
    built.attempt.save = Save(600, START + 700, True, queued_at=START + 701)
    assert choose(built, before=None).iteration == 400


@pytest.mark.parametrize(
    ("load", "expected"),
    [("loaded", 400), ("begun", 400), ("unknown", 400), ("failed", None), ("random", None)],
)
def test_one_that_an_attempt_resumed_from_is_there(load: str, expected: int | None) -> None:
    built = died(450, load=load, resumed_from=400)
    assert choose(built, before=None).iteration == expected
    built.sources[Source.CHECKPOINTS] = SourceStatus(True, START, "up")
    assert choose(built, before=None).iteration is None


def test_nothing_was_ever_written() -> None:
    choice = choose(died(first_iteration=1), before=None)
    assert choice == (None, "no checkpoint was ever written: from the beginning", False, False)
    decision = decided(died(), finding(Cause.CRASH))
    assert (decision.action, decision.resume_from) == (Action.RESTART, None)


def test_nothing_known_is_not_nothing_there() -> None:
    reason = CHOSEN_BY_TRAINER
    assert (
        describe_action(Action.RESTART, None, reason)
        == "restart from the checkpoint that the trainer picks"
    )
    assert choose(died(first_iteration=None), before=None).reason == reason
    assert choose(died(first_iteration=None, load="random"), before=None).reason != reason


def test_one_that_the_attempt_died_loading_is_there_if_it_was_not_its_fault() -> None:
    built = died(450, load="begun", load_iteration=400)
    assert choose(built, before=None).iteration == 400
    add_checkpoints(built, 400, is_saved=False)
    assert choose(built, before=None).iteration == 400
    built.checkpoints[400].load_failed = True
    assert choose(built, before=None).iteration is None


@pytest.mark.parametrize(
    "change", [{"stored": "missing"}, {"stored": "incomplete"}, {"load_failed": True}]
)
def test_written_and_nothing_usable_is_a_stop(change: dict[str, Any]) -> None:
    built = job_with(400, 600, **change)
    assert choose(built, before=None).nothing_complete
    decision = decided(built, finding(Cause.CRASH))
    assert decision.action is Action.STOP
    assert "no checkpoint can be used: 600 and 400 are" in decision.reason
    assert decision.proposal is not None
    assert "choose by hand" in decision.proposal


def test_a_first_save_that_the_attempt_died_in_was_never_written() -> None:
    built = job_with(600, stored="incomplete", is_saved=False)
    built.attempt.save = Save(600, START + 700, False)
    assert not choose(built, before=None).nothing_complete
    built.attempt.save = None
    assert choose(built, before=None).nothing_complete


def test_one_that_nobody_finished_or_saw_was_never_written() -> None:
    built = job_with(600, is_saved=False)
    assert not choose(built, before=None).nothing_complete


def test_the_failed_one_is_the_one_that_was_asked_for_where_the_log_does_not_show() -> None:
    built = died(650, load="unknown", resumed_from=400)
    add_checkpoints(built, 200, 400, 600)
    assert decided(built, finding(Cause.CHECKPOINT)).resume_from == 200


def test_the_failed_one_is_the_newest_where_nothing_shows() -> None:
    built = job_with(200, 400, 600)
    assert decided(built, finding(Cause.CHECKPOINT)).resume_from == 400


def test_the_only_one_failed() -> None:
    built = died(650, load="failed", load_iteration=600)
    add_checkpoints(built, 600, load_failed=True)
    decision = decided(built, finding(Cause.CHECKPOINT))
    assert decision.action is Action.STOP
    assert "no checkpoint before 600 can be used: 600 is not loadable" in decision.reason


def test_an_attempt_that_did_load_is_not_sent_further_back() -> None:
    built = died(650, load="loaded", load_iteration=400, resumed_from=400)
    add_checkpoints(built, 400, 500)
    add_checkpoints(built, 600, stored="incomplete")
    assert decided(built, finding(Cause.CHECKPOINT)).resume_from == 500


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"attempt": 1}, 400),
        ({"attempt": 2}, None),
        ({"attempt": None, "written_at": START - 1}, 400),
        ({"attempt": None, "written_at": START + 1}, None),
        ({"attempt": None, "saved_at": None}, None),
        ({"attempt": 1, "stored": "unverified"}, None),
        ({"attempt": 1, "stored": "incomplete"}, None),
    ],
)
def test_older_than_the_attempt(change: dict[str, Any], expected: int | None) -> None:
    built = died(650, number=2)
    add_checkpoints(built, 400, **change)
    assert older_than_attempt(built).iteration == expected


def test_nothing_before_the_first_checkpoint() -> None:
    assert has_none_before(died(), 50)
    assert has_none_before(job_with(100, 200), 50)
    assert has_none_before(job_with(100), 100)
    assert not has_none_before(job_with(100, 200), 150)


def test_old_checkpoints_that_were_pruned_are_guessed_by_the_distance_of_the_others() -> None:
    assert not has_none_before(job_with(9000, 9500), 8990)
    built = job_with(9000)
    built.layout = Layout(save_interval=500)
    assert not has_none_before(built, 8990)


def test_a_run_that_was_resumed_once_has_something_before() -> None:
    built = job_with(100)
    built.past.append(Attempt(1, START, resumed_from=40))
    assert not has_none_before(built, 90)


def test_iteration_zero_is_the_beginning_and_no_checkpoint() -> None:
    built = died(10, load="loaded", resumed_from=0, first_iteration=1)
    add_checkpoints(built, 0, stored="complete")
    assert choose(built, before=None).reason == "no checkpoint was ever written: from the beginning"


def test_a_load_that_failed_where_no_checkpoint_is_known_does_not_begin_anew() -> None:
    decision = decided(died(load="failed"), finding(Cause.CHECKPOINT))
    assert decision.action is Action.STOP
    assert "no older one is known" in decision.reason


def test_one_corrupt_checkpoint_after_another_is_no_loop() -> None:
    built = died(load="failed", load_iteration=60, number=4)
    add_checkpoints(built, 40, 60)
    acts = [act(number, cause=Cause.CHECKPOINT, fingerprint="checkpoint/x") for number in (1, 2, 3)]
    decision = decided(built, finding(Cause.CHECKPOINT), acts=tuple(acts))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 40)


def test_a_tracker_that_is_garbage_does_not_put_the_checkpoints_in_doubt() -> None:
    built = died(faults=[fault("checkpoint-tracker-invalid")], load="failed")
    add_checkpoints(built, 10, 20, 30)
    assert before_failed(built).iteration == 30


def test_a_tracker_that_names_what_never_was_does_not_either() -> None:
    built = died(load="failed", load_iteration=40)
    add_checkpoints(built, 10, 20, 30)
    built.checkpoints[40] = KnownCheckpoint(40, load_failed=True)
    assert before_failed(built).iteration == 30


def test_a_checkpoint_that_was_loaded_and_then_broke_the_start_is_not_loaded_again() -> None:
    built = died(31, load="loaded", resumed_from=30)
    built.attempt.steps.clear()
    add_checkpoints(built, 10, 20, 30)
    assert before_failed(built).iteration == 20
    stepped = died(31, load="loaded", resumed_from=30)
    add_checkpoints(stepped, 10, 20, 30)
    assert before_failed(stepped).iteration == 30
