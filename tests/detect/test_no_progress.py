# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Several attempts in a row that do not get further: a loop, not a recovery."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.no_progress import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Exit
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, ExitSeen, Job, ProcessGone
from mwatch.model.observation import ProcessExit
from mwatch.model.phase import JobPhase
from mwatch.model.timeline import Rollback
from support.builders.job import START, error, found, job


def ended(number: int, iteration: int | None, **more: Any) -> Attempt:
    """An attempt that began at iteration 1 and died after `iteration`; None: before any."""
    usual: dict[str, Any] = {
        "phase": JobPhase.ENDED,
        "first_iteration": None if iteration is None else 1,
        "iteration": iteration,
        "ended_at": START + 100 * number + 50,
        "errors": [error(error="ValueError")],
    }
    return Attempt(number, START + 100 * number, **(usual | more))


def history(*attempts: Attempt) -> Job:
    """The last one is the current one."""
    built = job()
    built.past.extend(attempts[:-1])
    built.attempt = attempts[-1]
    built.best_iteration = max((each.iteration or 0 for each in attempts), default=0) or None
    built.now = attempts[-1].ended_at or attempts[-1].started_at + 10
    return built


def test_three_attempts_that_do_not_get_further_are_a_loop() -> None:
    built = history(ended(1, 500), ended(2, 450), ended(3, 450), ended(4, 450))
    (finding,) = found(DETECTOR, built)
    assert finding.cause is Cause.CRASH
    assert finding.severity is Severity.CRITICAL
    assert finding.since_time == START + 200
    assert finding.since_iteration == 451
    assert "after iteration 450" in finding.summary
    assert len(finding.evidence) == 3


def test_two_are_not_yet_a_loop() -> None:
    assert found(DETECTOR, history(ended(1, 500), ended(2, 450), ended(3, 450))) == []


def test_a_new_furthest_iteration_begins_the_count_anew() -> None:
    built = history(ended(1, 500), ended(2, 450), ended(3, 501), ended(4, 450), ended(5, 450))
    assert found(DETECTOR, built) == []


def test_attempts_that_never_did_an_iteration_count() -> None:
    (finding,) = found(DETECTOR, history(ended(1, None), ended(2, None), ended(3, None)))
    assert finding.since_iteration is None
    assert "before any iteration" in finding.summary


def test_a_resumed_attempt_that_did_nothing_is_no_progress() -> None:
    """The probe tells where it stands before it has done anything."""
    stood = [ended(i, 500, first_iteration=None) for i in (2, 3, 4)]
    assert len(found(DETECTOR, history(ended(1, 480), *stood))) == 1


def test_while_the_newest_attempt_runs_it_is_only_a_warning() -> None:
    running = Attempt(5, START + 500, phase=JobPhase.TRAINING, first_iteration=400, iteration=420)
    lost = [ended(i, 450) for i in (2, 3, 4)]
    (finding,) = found(DETECTOR, history(ended(1, 500), *lost, running))
    assert finding.severity is Severity.WARNING
    running.iteration = 501
    assert found(DETECTOR, history(ended(1, 500), *lost, running)) == []


def bye(reason: str) -> ExitSeen:
    return ExitSeen(START, "pod-0", Exit(reason, None, "", None, None, "trainer.log", 3))


WANTED = [
    {"is_done": True},
    {"exit": bye("interval")},
    {"exit": bye("duration")},
    {"exit": bye("signal")},
    {"gone": {"pod-0": ProcessGone(START, "pod-0", ProcessExit(143, None, "Preempted"))}},
    {"gone": {"pod-0": ProcessGone(START, "pod-0", ProcessExit(None, None, "deleted"))}},
    {"errors": [error("elastic", exit_code=16)]},
]


@pytest.mark.parametrize("change", WANTED)
def test_an_attempt_that_somebody_wanted_to_end_does_not_count(change: dict[str, Any]) -> None:
    built = history(ended(1, 500), ended(2, 450), ended(3, 450, **change), ended(4, 450))
    assert found(DETECTOR, built) == []


def unloadable(number: int, checkpoint: int) -> Attempt:
    return ended(number, None, load="failed", load_iteration=checkpoint)


def test_trying_one_bad_checkpoint_after_another_is_no_loop() -> None:
    tried = [unloadable(number, 600 - 100 * number) for number in (2, 3, 4)]
    assert found(DETECTOR, history(ended(1, 600), *tried)) == []


def test_trying_the_same_bad_checkpoint_again_and_again_is_a_loop() -> None:
    tried = [unloadable(number, 400) for number in (2, 3, 4, 5)]
    assert len(found(DETECTOR, history(ended(1, 600), *tried))) == 1


def test_after_a_rollback_less_is_progress() -> None:
    attempts = [ended(1, 600), ended(2, 450), ended(3, 460), ended(4, 470)]
    built = history(*attempts)
    assert len(found(DETECTOR, built)) == 1
    built.timeline.rollbacks.append(Rollback(START + 201, 400, 590, "nan"))
    assert found(DETECTOR, built) == []


def test_a_first_attempt_and_a_blind_watcher_give_no_verdict() -> None:
    assert found(DETECTOR, job()) == []
    built = history(ended(1, None), ended(2, None), ended(3, None))
    built.sources = {}
    assert found(DETECTOR, built) == []
