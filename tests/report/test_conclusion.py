# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What each attempt ended by, and how the run stands: one answer for every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.report import story_json
from support.builders.fold import READY, WORLD, line, loaded, loading, saved, saving
from support.builders.story import Watch, quiet

OLD = Path(__file__).parents[1] / "data" / "story-v1.json"


def good(*iterations: int) -> list[str]:
    return [line(each, losses=f" lm loss: {6 - each / 100:.6E} |") for each in iterations]


def bad(*iterations: int) -> list[str]:
    return [line(each, losses="", change={"grad norm": "nan"}) for each in iterations]


def acted_on(mode: str) -> Watch:
    """NaN from 4 on: a restart is due, and the attempt is killed."""
    watch = Watch(mode)
    watch.says(WORLD, READY, *good(1, 2, 3), saving(3), saved(3), *bad(4, 5, 6))
    watch.sees(ProcessExit(None, "SIGKILL", None))
    return watch


def test_an_attempt_that_mwatch_ended_has_the_cause_that_it_was_ended_for() -> None:
    watch = acted_on("act")
    assert [each.cause for each in watch.story().attempts] == [Cause.NAN]
    watch.sees(AttemptStart(2, 3, 8))
    watch.says(WORLD, loading(3), loaded(3), READY, *good(4, 5, 6, 7))
    report = watch.story()
    assert [each.cause for each in report.attempts] == [Cause.NAN, Cause.HEALTHY]
    decision = report.attempts[0].decision
    assert decision is not None
    assert decision.resume_from == 3


def test_a_run_that_was_stopped_for_good_keeps_the_reason_of_the_stop() -> None:
    report = acted_on("act").story(is_over=True)
    assert (report.verdict.cause, report.attempts[-1].cause) == (Cause.NAN, Cause.NAN)
    assert report.acted_at is not None
    assert report.decision.resume_from == 3


def test_an_attempt_that_was_only_observed_is_judged_by_how_it_went_on() -> None:
    """mwatch would have restarted it; nobody did, and it healed."""
    watch = Watch("observe")
    watch.says(WORLD, READY, *good(1, 2, 3), saving(3), saved(3), *bad(4, 5, 6))
    assert watch.recorder.conclusions.actions
    watch.says(*good(*range(7, 40)))
    report = watch.story()
    assert report.verdict.cause is report.attempts[-1].cause is Cause.HEALTHY


def test_an_attempt_that_was_fine_until_the_next_one_began_is_unknown() -> None:
    watch = Watch("observe")
    watch.says(WORLD, READY, *good(1, 2, 3))
    watch.sees(AttemptStart(2, None, 8))
    first, _ = watch.story().attempts
    assert (first.cause, first.decision) == (Cause.UNKNOWN, None)


def test_a_fine_run_that_a_person_interrupts_is_healthy_and_not_unknown() -> None:
    watch = Watch("observe")
    watch.says(WORLD, READY, *good(1, 2, 3))
    report = watch.recorder.report(is_over=True, is_interrupted=True)
    assert (report.verdict.cause, report.exit_code) == (Cause.HEALTHY, 0)
    text = "interrupted by a person after iteration 3; no fault was seen"
    assert report.verdict.summary == report.attempts[-1].summary == text


def test_a_run_that_stood_still_when_a_person_interrupted_it_is_not_called_healthy() -> None:
    watch = Watch("observe")
    watch.says(WORLD, READY, *good(1))
    watch.at += 25.0
    watch.look()
    report = watch.recorder.report(is_over=True, is_interrupted=True)
    assert (report.verdict.cause, report.exit_code) == (Cause.UNKNOWN, 3)
    assert "25 s after its last progress: it may have been stuck" in report.verdict.summary


def test_a_run_that_a_person_interrupts_in_a_save_says_so() -> None:
    watch = Watch("observe")
    watch.says(WORLD, READY, *good(1, 2, 3), saving(3))
    watch.at += 40.0
    watch.look()
    report = watch.recorder.report(is_over=True, is_interrupted=True)
    assert report.verdict.cause is Cause.HEALTHY
    assert "after iteration 3, saving for 40 s; no fault was seen" in report.verdict.summary


def test_a_sick_run_that_a_person_interrupts_stays_sick() -> None:
    watch = acted_on("observe")
    report = watch.recorder.report(is_over=True, is_interrupted=True)
    assert report.verdict.cause is Cause.NAN


@pytest.mark.parametrize(("age", "cause"), [(30.0, Cause.HEALTHY), (600.0, Cause.UNKNOWN)])
def test_a_record_that_nobody_goes_on_with_does_not_say_healthy_for_ever(
    age: float, cause: Cause
) -> None:
    """`mwatch run` was killed: its last story says that training goes on."""
    left = quiet(is_over=False, iteration=7, ended_at=1000.0)
    seen = left.seen_at(1000.0 + age)
    assert seen.verdict.cause is cause
    assert ("after iteration 7, 600 s ago" in seen.verdict.summary) == (cause is Cause.UNKNOWN)
    over = quiet(ended_at=1000.0)
    assert over.seen_at(1000.0 + age) == over


def test_a_story_of_an_older_release_has_every_key_of_the_json() -> None:
    old, new = story_json.read(OLD).to_json(), acted_on("act").story().to_json()
    assert set(old) == set(new)
    assert set(old["incidents"][0]) == set(new["incidents"][0])
    assert old["verdict"]["cause"] == "finished"
    assert [each["cause"] for each in old["attempts"]] == ["killed", "finished"]
    assert (old["incidents"][0]["cause"], old["incidents"][0]["detector"]) == ("killed", "crashed")
