# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A start from random weights: normal for a first run, an incident where work is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mwatch.detect.started_from_random import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, Job, Layout, ProcessGone, Stream
from mwatch.model.observation import ProcessExit, Source
from support.builders.job import START, add_checkpoints, error, fault, found, job, steps

BOTH = (Source.LOG, Source.CHECKPOINTS)


def again(
    *past: Attempt, load: str = "random", sights: Iterable[Source] = (Source.LOG,), **more: Any
) -> Job:
    """A later attempt that has just looked for a checkpoint."""
    built = job([], number=len(past) + 1, load=load, sights=sights, **more)
    built.past.extend(past)
    return built


def ended(number: int = 1, iteration: int | None = 50, **more: Any) -> Attempt:
    built = Attempt(number, START - 1000, iteration=iteration, ended_at=START - 10)
    for name, value in more.items():
        setattr(built, name, value)
    return built


def severities(built: Job) -> list[Severity]:
    return [finding.severity for finding in found(DETECTOR, built)]


def test_a_first_run_into_an_empty_folder_is_normal() -> None:
    same = Layout(save_folder="/ckpt", load_folder="/ckpt")
    assert found(DETECTOR, job([], load="random", layout=same)) == []
    assert found(DETECTOR, job([], load="random", sights=BOTH)) == []


def test_its_own_checkpoints_do_not_count() -> None:
    built = job(steps([2.0] * 20), load="random", sights=BOTH)
    add_checkpoints(built, 10, stored="complete", written_at=START + 111)
    assert found(DETECTOR, built) == []
    built.checkpoints[10].attempt = None  # seen in the folder before the log said so
    assert found(DETECTOR, built) == []


def test_a_checkpoint_of_an_earlier_attempt_makes_it_critical() -> None:
    built = again(ended(), faults=[fault("checkpoint-none-found")])
    add_checkpoints(built, 40, attempt=1)
    (finding,) = found(DETECTOR, built)
    assert (finding.cause, finding.severity) == (Cause.STARTED_FROM_RANDOM, Severity.CRITICAL)
    assert finding.since_iteration == 1
    assert finding.since_time == START
    assert "40" in finding.summary
    assert len(finding.evidence) == 1


def test_a_checkpoint_in_the_folder_makes_the_first_attempt_critical() -> None:
    built = job([], load="random", sights=BOTH)
    add_checkpoints(built, 40, attempt=None, is_saved=False, stored="complete")
    assert severities(built) == [Severity.CRITICAL]
    built.attempt.iteration = 60  # it has passed it by now, but is older than the attempt
    built.checkpoints[40].written_at = START - 5000
    assert severities(built) == [Severity.CRITICAL]


def test_the_folder_knows_better_than_a_guess_who_wrote_a_checkpoint() -> None:
    built = again(ended(), sights=BOTH)
    add_checkpoints(built, 40, attempt=2, stored="complete", written_at=START - 500)
    assert severities(built) == [Severity.CRITICAL]
    built.checkpoints[40].attempt = 1  # a number that the log had given to another one
    built.checkpoints[40].written_at = START + 500
    built.past.clear()
    assert severities(built) == []


def test_checkpoints_that_nobody_would_load_do_not_count() -> None:
    for spoilt in (
        {"is_abandoned": True},
        {"load_failed": True},
        {"stored": "incomplete"},
        {"stored": "missing"},
    ):
        built = job([], load="random", sights=BOTH)
        add_checkpoints(built, 40, **({"attempt": None, "stored": "complete"} | spoilt))
        assert found(DETECTOR, built) == []


def test_an_attempt_that_had_resumed_shows_that_there_was_one() -> None:
    assert severities(again(ended(resumed_from=30))) == [Severity.CRITICAL]


def test_lost_work_without_any_checkpoint_is_a_warning() -> None:
    assert severities(again(ended())) == [Severity.WARNING]
    assert severities(again(ended(iteration=None))) == []


def test_a_run_that_had_finished_may_be_started_anew() -> None:
    built = again(ended(is_done=True, resumed_from=30))
    assert severities(built) == []
    add_checkpoints(built, 40, attempt=1)
    assert severities(built) == [Severity.WARNING]


def test_another_folder_to_load_from_was_meant_to_hold_something() -> None:
    other = Layout(save_folder="/ckpt", load_folder="/base-model")
    assert severities(job([], load="random", layout=other)) == [Severity.WARNING]


def test_iteration_1_again_is_a_sign_where_rank_0_cannot_be_read() -> None:
    built = job(steps([10.4, 10.3]), number=2, load="unknown")
    built.past.append(ended())
    add_checkpoints(built, 40, attempt=1)
    assert severities(built) == [Severity.CRITICAL]
    built.attempt.first_iteration = 41
    assert severities(built) == []


def test_loaded_weights_are_not_random() -> None:
    built = again(ended(), load="loaded", first_iteration=1)  # --finetune
    add_checkpoints(built, 40, attempt=1)
    assert severities(built) == []


def test_no_log_no_verdict() -> None:
    built = again(ended(), sights=())
    add_checkpoints(built, 40, attempt=1)
    assert found(DETECTOR, built) == []


def counted_again(*, is_numbered: bool = False, **before: Any) -> Job:
    """A wrapper watches, and the iterations of its command begin again at 1."""
    built = job(steps([3.0, 2.9]), number=2, is_numbered=is_numbered)
    built.past.append(ended(**before))
    built.streams["pod-0"] = Stream("pod-0", has_wrapper=True)
    add_checkpoints(built, 40, attempt=1)
    return built


def test_a_command_that_counts_again_by_itself_is_perhaps_another_training() -> None:
    assert severities(counted_again()) == [Severity.WARNING]


def test_a_new_process_or_one_that_failed_before_has_lost_its_checkpoint() -> None:
    assert severities(counted_again(is_numbered=True)) == [Severity.CRITICAL]
    assert severities(counted_again(faults=[fault("cuda-out-of-memory")])) == [Severity.CRITICAL]
    assert severities(counted_again(errors=[error()])) == [Severity.CRITICAL]
    gone = {"pod-0": ProcessGone(START, "pod-0", ProcessExit(1, None, None))}
    assert severities(counted_again(gone=gone)) == [Severity.CRITICAL]
